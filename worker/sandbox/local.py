"""Boxes without an engine: the same tool server as a subprocess on folders of its own, for tests.

Same frames, same operations, same errors; no isolation at all. Commands run as this user, see the whole machine and
reach its network, so nothing untrusted belongs here. Differences a caller can see: the folders have other names for
commands (`pwd`), there is no memory or disk limit, and only the command's own descendants are killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from service.errors import SandboxError
from worker.sandbox.base import BoxSpec, Sandbox
from worker.sandbox.box import connect

_BOOT = Path(__file__).resolve().parents[2] / "sandbox_image" / "boot.py"
_HELLO_S = 30.0
_END_S = 15.0
"""Longer than the server takes to give up on a process that cannot be killed."""
_READ = 64 << 10
"""Small enough that the allocator does not map and unmap memory for every read."""


class LocalProvider:
    """A `SandboxProvider` over folders below `base` (a temporary folder of the system by default)."""

    def __init__(self, base: Path | None = None) -> None:
        self._base = base

    def open(self, spec: BoxSpec) -> Sandbox:
        """Starts a server; of `spec` only the image's name is used."""
        folder = Path(tempfile.mkdtemp(prefix="box-", dir=self._base)).resolve()
        roots = [folder / name for name in ("workspace", "home", "tmp", "skills")]
        for root in roots:
            root.mkdir()
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_BOOT), *map(str, roots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            cwd="/",
        )

        pipes = _Pipes(server)

        def remove() -> None:
            try:
                server.wait(_END_S)  # its input has ended: it kills what it started, then itself
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            pipes.end()
            shutil.rmtree(folder, ignore_errors=True)

        return connect(pipes, image=spec.image, runtime="subprocess", remove=remove, hello_timeout_s=_HELLO_S)


class _Pipes:
    """stdin and stdout of the server as a `Transport`."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        if server.stdin is None or server.stdout is None:
            raise SandboxError("the sandbox process has no pipes")
        self._stdin, self._stdout = server.stdin, server.stdout

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin.fileno(), view) :]
        except (OSError, ValueError) as error:
            raise SandboxError(f"the sandbox takes no more input ({error})") from error

    def receive(self) -> bytes:
        try:
            return os.read(self._stdout.fileno(), _READ)
        except (OSError, ValueError):
            return b""

    def close(self) -> None:
        """The server ends when its input does, and with it its output, which wakes `receive`."""
        self._stdin.close()

    def end(self) -> None:
        """Once the server is gone."""
        self._stdout.close()
