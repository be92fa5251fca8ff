"""The HTTP client: every call of the contract that the command line makes, and one way to fail.

Errors: `Unreachable` when no answer came, `Refused` when it was a refusal; nothing of httpx gets out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from service.contracts import TERMINAL

Json = dict[str, Any]

_TIMEOUT = httpx.Timeout(30, connect=5)
_UPLOAD_TIMEOUT = httpx.Timeout(600, connect=5)
"""A large archive is checked before the answer comes."""
_STREAM_TIMEOUT = httpx.Timeout(45, connect=5)
"""Three heartbeats of the event stream."""
_PATIENCE_S = 120.0
"""How long a broken event stream is tried again before the service counts as gone."""
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ClientError(Exception):
    """What to tell the user; `status` is 0 when there was no answer."""

    def __init__(self, detail: str, *, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code


class Unreachable(ClientError):
    """The service did not answer, or not as the service does."""


class Refused(ClientError):
    """A problem document: `status`, `code` and `detail` are the service's."""


class PatchyardClient:
    """One service, one key. A context manager; not thread-safe."""

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        try:
            base = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise Unreachable(f"{url!r} is not an address: {error}") from None
        if base.scheme not in ("http", "https") or not base.host or not 0 < (base.port or 80) < 65_536:
            raise Unreachable(f"{url!r} is not an address like http://127.0.0.1:8080")
        if not key.isascii() or not key.isprintable():
            raise Unreachable("the API key has characters no key has", status=401, code="unauthorized")
        self._http = httpx.Client(
            base_url=base,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=_TIMEOUT,
            transport=transport,
            trust_env=base.host not in _LOOPBACK,  # a proxy of the network cannot reach this machine's loopback
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, task: Json, archive: BinaryIO | None) -> Json:
        """The accepted task; `archive` is read to its end."""
        if archive is None:
            return self._json("POST", "/v1/tasks", **_as_json(task))
        files = {
            "task": (None, json.dumps(task), "application/json"),
            "workspace": ("workspace", archive, "application/octet-stream"),
        }
        return self._json("POST", "/v1/tasks", files=files, timeout=_UPLOAD_TIMEOUT)

    def task(self, task_id: str) -> Json:
        return self._json("GET", f"/v1/tasks/{_segment(task_id)}")

    def tasks(self, limit: int) -> Iterator[Json]:
        """The newest `limit` tasks."""
        cursor: str | None = None
        while limit > 0:
            query = {"limit": min(limit, 200), **({"cursor": cursor} if cursor else {})}
            page = self._json("GET", "/v1/tasks", params=query)
            yield from page["items"]
            limit -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def cancel(self, task_id: str) -> Json:
        return self._json("POST", f"/v1/tasks/{_segment(task_id)}/cancel")

    def patch(self, task_id: str) -> bytes:
        """The patch's bytes; none for a task that changed nothing."""
        return self._send("GET", f"/v1/tasks/{_segment(task_id)}/patch").content

    def models(self) -> Json:
        return self._json("GET", "/v1/models")

    def create_key(self, wanted: Json) -> Json:
        return self._json("POST", "/v1/keys", **_as_json(wanted))

    def keys(self, team: str | None) -> list[Json]:
        found: list[Json] = self._json("GET", "/v1/keys", params=_team(team))["items"]
        return found

    def revoke_key(self, key_id: str, team: str | None) -> None:
        self._send("DELETE", f"/v1/keys/{_segment(key_id)}", params=_team(team))

    def ready(self) -> tuple[int, Json]:
        """Status and document of `/readyz`."""
        with _answered():
            response = self._http.get("/readyz")
        return response.status_code, _document(response)

    def events(self, task_id: str, after: int = 0) -> Iterator[Json]:
        """Every event after `after`, in order and once, to the terminal one; a broken stream is taken up again.

        Unreachable after two minutes without a single new event or connection.
        """
        pause, last_sign = _PAUSE_S, time.monotonic()
        while True:
            try:
                for event in self._stream(task_id, after):
                    pause, last_sign = _PAUSE_S, time.monotonic()
                    if event is None or event["seq"] <= after:
                        continue
                    after = event["seq"]
                    yield event
                    if event["type"] == "state" and event["data"]["state"] in TERMINAL:
                        return
            except ClientError as error:
                gone = time.monotonic() - last_sign > _PATIENCE_S
                if gone or (isinstance(error, Refused) and error.status not in (429, 503)):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _stream(self, task_id: str, after: int) -> Iterator[Json | None]:
        """Events of one connection; None for a sign of life."""
        path = f"/v1/tasks/{_segment(task_id)}/events"
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with _answered(), self._http.stream("GET", path, headers=headers, timeout=_STREAM_TIMEOUT) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise _refusal(response)
            yield None
            for line in _lines(response.iter_bytes()):
                if line.startswith(b"data:"):
                    yield _event(line[5:])
                elif line.startswith(b":"):
                    yield None

    def _json(self, method: str, path: str, **options: Any) -> Json:
        return _document(self._send(method, path, **options))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with _answered():
            response = self._http.request(method, path, **options)
        if not response.is_success:
            raise _refusal(response)
        return response


def _as_json(document: Json) -> dict[str, Any]:
    """For httpx; unlike its own, it writes what is no JSON or no Unicode too, and the service says what is wrong."""
    return {"content": json.dumps(document), "headers": {"Content-Type": "application/json"}}


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"cannot reach the service: {error or type(error).__name__}") from error


def _refusal(response: httpx.Response) -> ClientError:
    if response.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
        return Unreachable(f"what answers there is not Patchyard (HTTP {response.status_code})")
    problem = _document(response)
    details = [f"{item.get('pointer')}: {item.get('detail')}" for item in problem.get("errors") or []]
    text = "; ".join([str(problem.get("detail")), *details])
    return Refused(text, status=response.status_code, code=str(problem.get("code")))


def _document(response: httpx.Response) -> Json:
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreachable(f"what answers there is not Patchyard (HTTP {response.status_code})")
    return found


def _event(data: bytes) -> Json:
    try:
        event: Json = json.loads(data)
    except ValueError as error:
        raise Unreachable(f"the event stream is broken: {error}") from None
    return event


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Complete lines; only LF ends one, because JSON may hold what Python counts as line ends too."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")


def _segment(name: str) -> str:
    """An id as one path segment, whatever the user typed."""
    return quote(name, safe="", errors="surrogateescape").replace(".", "%2E")


def _team(team: str | None) -> dict[str, str]:
    return {} if team is None else {"team": team}
