"""The embedded Valkey: it keeps its data, keeps others out, and never outlives who started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from service.embedded import EmbeddedRedis
from service.errors import Unavailable

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: pytest's own is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="py-emb-") as name:
        yield Path(name) / "data"


def answers(url: str) -> bool:
    with redis.Redis.from_url(url, socket_timeout=2) as client:
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False


def gone_within(url: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not answers(url):
            return True
        time.sleep(0.05)
    return False


def test_data_survive_a_stop_and_a_start(folder: Path) -> None:
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
        client.xadd("stream", {"a": 1}, id="7-0")
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"
        assert client.xinfo_stream("stream")["last-generated-id"] == b"7-0"


def test_it_is_private_and_evicts_nothing(folder: Path) -> None:
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        assert server.url.startswith("unix://")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        settings = client.config_get("appendonly", "appendfsync", "maxmemory-policy", "save", "port")
        assert settings == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
            "port": "0",
        }


def test_a_path_too_long_for_a_socket_gets_a_loopback_port_behind_a_password(folder: Path) -> None:
    with EmbeddedRedis(folder / ("long" * 30)) as server:
        assert server.url.startswith("redis://:")
        assert "@127.0.0.1:" in server.url
        address, password = server.url.split("@")[1], server.url.split(":")[2].split("@")[0]
        with redis.Redis.from_url(f"redis://{address}") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        listing = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert password not in listing
        assert answers(server.url)


def test_a_folder_name_is_never_read_as_configuration(folder: Path) -> None:
    with EmbeddedRedis(folder / "odd \"name' ä\nport 1") as server:
        assert answers(server.url)


def test_two_servers_never_share_a_folder(folder: Path) -> None:
    with EmbeddedRedis(folder) as first:
        with pytest.raises(Unavailable, match="another Patchyard uses") as refused:
            EmbeddedRedis(folder, timeout_s=0.3).start()
        assert refused.value.code == "redis_start"
        assert answers(first.url)


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    folder.mkdir()
    (folder / "appendonlydir").write_text("in the way")
    with pytest.raises(Unavailable, match="did not start"):
        EmbeddedRedis(folder, timeout_s=5).start()


def start_alone(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "service.embedded", "--data-dir", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_server_ends_with_the_process_that_started_it(folder: Path, sign: signal.Signals, code: int) -> None:
    process, url = start_alone(folder)
    try:
        assert answers(url)
        with redis.Redis.from_url(url) as client:
            client.set("kept", "yes")
        process.send_signal(sign)
        assert process.wait(10) == code
        assert gone_within(url, 10)
    finally:
        process.kill()
        process.communicate()
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"


def test_the_command_ends_when_its_server_does(folder: Path) -> None:
    process, url = start_alone(folder)
    try:
        with redis.Redis.from_url(url) as client:
            os.kill(client.info("server")["process_id"], signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
