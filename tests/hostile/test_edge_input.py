"""Bad input at the edge: never a 500, never a hang, nothing left behind, flat memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from api_kit import ADMIN, TAR, Api, catalogue, serving, wait_until

from service.api import middleware
from service.embedded import EmbeddedRedis
from service.events import TextDelta
from service.store import Store

MIB = 1 << 20


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    with serving(redis_url, tmp_path) as running:
        yield running


def problem(answer: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert code in (None, body["code"])
    assert status not in (429, 503) or int(answer.headers["retry-after"]) > 0
    return body


def leftovers(api: Api) -> list[Path]:
    return list((api.settings.blob_dir / "tmp").iterdir())


def connect(api: Api) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", urlsplit(api.url).port or 0), timeout=15)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def head(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {ADMIN}", *headers, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("field", ["volumes", "privileged", "team_id", "state", "owner", "mounts", "team", "submitter"])
def test_t19_no_field_of_ours_can_be_assigned(api: Api, field: str) -> None:
    _, client = api.key("team-b", "submit")
    body = problem(client.post("/v1/tasks", json={"prompt": "a", "model": "demo", field: "default"}), 422)
    assert [error["pointer"] for error in body["errors"]] == [f"/{field}"]
    for inside in ("limits", "resources", "workspace", "permissions"):
        problem(client.post("/v1/tasks", json={"prompt": "a", "model": "demo", inside: {field: 1}}), 422)
    assert client.get("/v1/tasks").json()["items"] == []


@pytest.mark.parametrize(
    ("size", "status", "code"), [(100_000, 202, None), (MIB // 2, 422, "invalid_request"), (10 * MIB, 413, "too_large")]
)
def test_a_huge_prompt_is_refused_and_its_answer_arrives(api: Api, size: int, status: int, code: str | None) -> None:
    answer = api.client().post("/v1/tasks", json={"prompt": "x" * size, "model": "demo"})
    assert answer.status_code == status, answer.text
    if code is not None:
        assert "xxxxx" not in json.dumps(problem(answer, status, code))
    _, wrong = api.client("wrong"), api.client("wrong")
    problem(wrong.post("/v1/workspaces", content=bytes(size)), 401)


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/keys"])
@pytest.mark.parametrize(
    "body",
    [
        rb'{"prompt": "a \ud83d b", "name": "a \ud83d b"}',
        rb'{"prompt": "\u0000", "name": "\u0000"}',
        b"\xff",
        b"",
        b"{",
    ],
)
def test_text_that_is_not_unicode_is_422(api: Api, path: str, body: bytes) -> None:
    problem(api.client().post(path, content=body, headers={"Content-Type": "application/json"}), 422)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/tasks/", 404),
        ("GET", "//v1/tasks", 404),
        ("GET", "/v1/queue", 404),
        ("GET", "/v1/usage", 404),
        ("GET", "/v1/teams", 404),
        ("POST", "/v1/session", 404),
        ("GET", "/v1/tasks/x/receipt", 404),
        ("GET", "/v1/tasks/x/approvals", 404),
        ("POST", "/v1/tasks/x/retry", 404),
        ("POST", "/v1/tasks/x/pause", 404),
        ("POST", "/v1/tasks/x/resume", 404),
        ("POST", "/v1/tasks/x/messages", 404),
        ("POST", "/v1/tasks/x/review", 404),
        ("DELETE", "/v1/tasks/x", 405),
        ("PUT", "/v1/tasks", 405),
        ("POST", "/healthz", 405),
        ("GET", "/redoc", 404),
        ("GET", "/docs/../x", 404),
    ],
)
def test_a_route_of_a_later_version_or_of_nobody_is_a_problem_too(
    api: Api, method: str, path: str, status: int
) -> None:
    problem(api.client().request(method, path), status, "route_not_found" if status == 404 else "method_not_allowed")


@pytest.mark.parametrize("path", ["/healthz", "/v1/tasks", "/v1/nothing", "/docs", "/openapi.json", "/v1/tasks?x=1"])
def test_every_answer_has_the_security_headers(api: Api, path: str) -> None:
    headers = api.client().get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "server" not in headers


@pytest.mark.parametrize("given", ["a b", "x" * 65, "<script>", "ü".encode(), ""])
def test_an_odd_request_id_is_not_taken_over(api: Api, given: str | bytes) -> None:
    answer = api.client().get("/healthz", headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"].startswith("req_")


def test_an_upload_that_announces_too_much_is_refused_unread(redis_url: str, tmp_path: Path) -> None:
    with serving(redis_url, tmp_path, max_upload_bytes=MIB) as api, connect(api) as sock:
        sock.sendall(head("/v1/workspaces", f"Content-Length: {2 << 30}", "Expect: 100-continue"))
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 413
        body = json.loads(answer.read())
        assert (body["code"], body["limit_bytes"]) == ("too_large", MIB)


def test_an_upload_without_a_length_is_cut_off_at_the_cap(redis_url: str, tmp_path: Path) -> None:
    with serving(redis_url, tmp_path, max_upload_bytes=MIB) as api, connect(api) as sock:
        sock.sendall(head("/v1/workspaces", "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + bytes(65_536) + b"\r\n"
        for _ in range(17):
            sock.sendall(chunk)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 413
        assert answer.getheader("connection") == "close"
        wait_until(lambda: leftovers(api) == [])


@pytest.mark.parametrize("path", ["/v1/workspaces", "/v1/tasks"])
def test_a_client_that_leaves_in_mid_upload_leaves_no_file(api: Api, path: str) -> None:
    with connect(api) as sock:
        sock.sendall(
            head(path, "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {100 * MIB}")
            if path == "/v1/tasks"
            else head(path, f"Content-Length: {100 * MIB}")
        )
        if path == "/v1/tasks":
            sock.sendall(b'--b\r\nContent-Disposition: form-data; name="workspace"; filename="x"\r\n\r\n')
        sock.sendall(bytes(3 * MIB))
        wait_until(lambda: leftovers(api) != [])
    wait_until(lambda: leftovers(api) == [])
    assert api.client().get("/healthz").status_code == 200


def test_slow_uploads_do_not_hold_up_others(api: Api) -> None:
    sockets = [connect(api) for _ in range(10)]
    try:
        for sock in sockets:
            sock.sendall(head("/v1/workspaces", "Content-Length: 1000000") + b"x")
        began = time.monotonic()
        assert api.client().post("/v1/workspaces", content=TAR).status_code == 201
        assert time.monotonic() - began < 3
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize(
    "archive", [b"", b"not an archive", TAR[:-20], b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", bytes(100)]
)
def test_what_is_no_archive_is_422(api: Api, archive: bytes) -> None:
    problem(api.client().post("/v1/workspaces", content=archive), 422)
    assert leftovers(api) == []


def process_memory(pid: int) -> int:
    """Highest resident set size ever, bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


@pytest.fixture
def process(redis_url: str, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A whole API process; its address and pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    prefix = f"t-{os.getpid()}-{port}:"
    store = Store.connect(redis_url, blobs=None, prefix=prefix)  # type: ignore[arg-type]
    store.publish_catalogue(catalogue())
    store.close()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PATCHYARD_")},
        "PATCHYARD_REDIS_URL": redis_url,
        "PATCHYARD_REDIS_PREFIX": prefix,
        "PATCHYARD_DATA_DIR": str(tmp_path / "data"),
        "PATCHYARD_PORT": str(port),
        "PATCHYARD_ADMIN_KEY": ADMIN,
    }
    with (tmp_path / "api.log").open("wb") as log:
        running = subprocess.Popen([sys.executable, "-m", "service.api"], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(url), 20)
        yield url, running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(15)
    assert "Traceback" not in (tmp_path / "api.log").read_text()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("multipart", [False, True])
def test_memory_stays_flat_while_a_large_archive_streams_in(process: tuple[str, int], multipart: bool) -> None:
    """P12 in small: 200 MiB of noise go through to intake, which refuses them; 32 MiB is the bound for any size."""
    url, pid = process
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60) as client:
        assert client.post("/v1/workspaces", content=TAR).status_code == 201
        before = process_memory(pid)
        noise = os.urandom(MIB)
        if multipart:
            boundary = b'--b\r\nContent-Disposition: form-data; name="workspace"; filename="x"\r\n\r\n'
            answer = client.post(
                "/v1/tasks",
                content=(piece for pieces in ([boundary], [noise] * 200, [b"\r\n--b--\r\n"]) for piece in pieces),
                headers={"Content-Type": "multipart/form-data; boundary=b"},
            )
        else:
            answer = client.post("/v1/workspaces", content=(noise for _ in range(200)))
        assert answer.status_code == 422
    assert process_memory(pid) - before < 32 * MIB


def test_redis_down_is_503_at_once_and_over_when_it_is_back(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="py-down-") as folder:
        redis = EmbeddedRedis(Path(folder)).start()
        try:
            with serving(redis.url, tmp_path) as api:
                client = api.client()
                task = api.submit()["id"]
                workspace = client.post("/v1/workspaces", content=TAR).json()["id"]
                redis.stop()
                for method, path, more in [
                    ("GET", "/v1/tasks", {}),
                    ("GET", f"/v1/tasks/{task}?wait=5", {}),
                    ("GET", f"/v1/tasks/{task}/events", {}),
                    ("POST", f"/v1/tasks/{task}/cancel", {}),
                    ("POST", "/v1/tasks", {"json": {"prompt": "a"}}),
                    ("POST", "/v1/workspaces", {"content": TAR}),
                    ("GET", "/v1/models", {}),
                    ("GET", "/readyz", {}),
                    ("GET", "/metrics", {}),
                ]:
                    began = time.monotonic()
                    problem(client.request(method, path, **more), 503)
                    assert time.monotonic() - began < 5
                assert client.get("/healthz").status_code == 200
                redis.start()
                assert client.get(f"/v1/tasks/{task}").json()["state"] == "queued"
                api.submit(workspace={"id": workspace})
        finally:
            redis.stop()


def test_a_stream_outlives_a_restart_of_redis(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="py-down-") as folder:
        redis = EmbeddedRedis(Path(folder)).start()
        try:
            with serving(redis.url, tmp_path) as api:
                task = api.submit()["id"]
                restarted = threading.Event()
                with api.client().stream("GET", f"/v1/tasks/{task}/events") as answer:
                    lines = answer.iter_lines()
                    while not next(lines).startswith("id: 1"):
                        pass
                    redis.stop()
                    time.sleep(0.5)
                    redis.start()
                    restarted.set()
                    lease = api.claim()
                    api.finish(lease)
                    rest = [line for line in lines if line.startswith("id: ")]
                assert rest == ["id: 2", "id: 3"]
        finally:
            redis.stop()


def test_the_process_starts_before_redis_and_recovers(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="py-late-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        redis = EmbeddedRedis(Path(folder))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PATCHYARD_")},
            "PATCHYARD_REDIS_URL": f"unix://{folder}/redis.sock?db=0",
            "PATCHYARD_DATA_DIR": str(tmp_path / "data"),
            "PATCHYARD_PORT": str(port),
        }
        running = subprocess.Popen(
            [sys.executable, "-m", "service.api"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            assert running.stdout is not None
            shown = running.stdout.readline().strip()
            secret = shown.rsplit(" ", 1)[-1]
            file = tmp_path / "data" / "admin.key"
            assert file.read_text().strip() == secret
            assert file.stat().st_mode & 0o777 == 0o600
            wait_until(lambda: _alive(url), 20)
            headers = {"Authorization": f"Bearer {secret}"}
            problem(httpx.get(f"{url}/v1/tasks", headers=headers), 503, "store_unavailable")
            problem(httpx.get(f"{url}/readyz"), 503, "not_ready")
            redis.start()
            wait_until(lambda: httpx.get(f"{url}/v1/tasks", headers=headers).status_code == 200, 10)
        finally:
            running.terminate()
            running.wait(15)
            if running.stdout:
                running.stdout.close()
            redis.stop()


def _alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def test_an_archive_part_has_the_same_cap(redis_url: str, tmp_path: Path) -> None:
    with serving(redis_url, tmp_path, max_upload_bytes=MIB) as api:
        files = {"task": (None, '{"prompt": "a", "model": "demo"}'), "workspace": ("x", bytes(MIB + 1))}
        body = problem(api.client().post("/v1/tasks", files=files), 413, "too_large")
        assert body["limit_bytes"] == MIB
        files["task"] = (None, json.dumps({"prompt": "x" * 2 * MIB}))
        problem(api.client().post("/v1/tasks", files=files), 413, "too_large")
        assert leftovers(api) == []


def test_more_requests_than_can_be_answered_get_503(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_IN_FLIGHT", 1)
    task = api.submit()["id"]
    with api.client().stream("GET", f"/v1/tasks/{task}/events") as viewer:
        lines = viewer.iter_lines()
        next(lines)
        problem(api.client().get("/v1/tasks"), 503, "busy")
        assert api.client().get("/healthz").status_code == 200
    wait_until(lambda: api.client().get("/v1/tasks").status_code == 200)


def test_a_defect_of_ours_is_a_problem_without_its_cause(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("secret detail")

    monkeypatch.setattr(api.store, "tasks", broken)
    answer = api.client().get("/v1/tasks")
    assert problem(answer, 500, "internal_error")["request_id"] == answer.headers["x-request-id"]
    assert "secret detail" not in answer.text


def test_a_stream_whose_archive_is_lost_ends_and_the_others_go_on(api: Api) -> None:
    api.submit()
    broken = api.claim()
    api.store.append_many(broken, [TextDelta(str(number)) for number in range(1_500)])
    for blob in api.settings.blob_dir.glob("??/*"):
        blob.unlink()
    api.submit()
    sound = api.claim()
    with api.client().stream("GET", f"/v1/tasks/{broken.task_id}/events") as answer:
        assert [line for line in answer.iter_lines() if line.startswith("id:")] == []
    threading.Timer(0.3, api.finish, (sound,)).start()
    with api.client().stream("GET", f"/v1/tasks/{sound.task_id}/events") as answer:
        assert [line for line in answer.iter_lines() if line.startswith("id:")] == ["id: 1", "id: 2", "id: 3"]
