# The service's image (API, worker and keeper are one), and the Redis of compose.yaml from the same base.
# Works with the classic builder and without an image registry (BASE_IMAGE, see scripts/base-image.sh).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# A venv keeps uv apart from the distribution's Python; the version is the newest that reads our uv.lock.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check "uv>=0.9,<1"
ENV UV_PROJECT_ENVIRONMENT=/opt/venv UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1
WORKDIR /src
# The dependencies first: they change rarely, and this layer is most of the time.
COPY pyproject.toml uv.lock README.md ./
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-install-project
COPY service service
COPY worker worker
COPY sandbox_image sandbox_image
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-editable && chmod -R a+rX /opt/venv

FROM ${BASE_IMAGE} AS redis
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 10002 -g 10002 -m 0700 /data
USER 10002:10002
WORKDIR /data
CMD ["redis-server"]

FROM ${BASE_IMAGE} AS service
RUN useradd --uid 10003 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin patchyard \
 && install -d -o 10003 -g 10003 -m 0700 /data
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PATCHYARD_DATA_DIR=/data
USER 10003:10003
WORKDIR /data
EXPOSE 8080
CMD ["python", "-m", "service.api"]
