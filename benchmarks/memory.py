"""What a flood costs in memory: P12 of the goals in docs/benchmarks.md.

The API while an archive of 1 GB streams in, a worker while a command in its box prints 1 GB:
`python benchmarks/memory.py [--json]`. Needs 3 GB of free disk.

Growth is the process's highest resident size during the flood (VmHWM, set back before it) over its size just before:
an API that has answered one question, a worker that has opened its box.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.kit.boxes import end_on_sigterm, host, toolbox, use
from benchmarks.kit.measure import Verdict, document, growth, machine, say, verdicts
from service.embedded import EmbeddedRedis
from service.settings import child_environment
from worker.sandbox.base import ExecResult, Sandbox

GOAL_MB = 32
KEY = "pyd_" + "benchmark" * 4
START_S = 30
UPLOAD_S = 120
GB = 1_000_000_000
FILES, SIZE = 49_000, GB // 49_000
"""Of the archive, close to the 50,000 entries that are allowed: bytes pass by, entries are remembered."""
PIECE = 64 << 10
"""What curl sends at a time."""
PRINT_1_GB = "yes 'a line of output, as a build that runs wild prints it' | head -c 1G"


class Memory:
    """The resident size of a process, from /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._before = 0

    def start(self) -> None:
        """From here on the peak counts."""
        (self._folder / "clear_refs").write_text("5")  # sets VmHWM back, proc(5)
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        """Bytes between the size at `start` and the highest since."""
        return self._read("VmHWM") - self._before

    def _read(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise RuntimeError(f"/proc does not tell {name}")


class Sink:
    """Where tarfile writes; what it wrote is taken out piece by piece."""

    def __init__(self) -> None:
        self.held: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.held.append(bytes(data))
        return len(data)

    def taken(self) -> Iterator[bytes]:
        yield from self.held
        self.held.clear()


class Noise:
    """A file of `size` random bytes that is never whole in memory."""

    def __init__(self, size: int, block: bytes) -> None:
        self._left = size
        self._block = block

    def read(self, size: int) -> bytes:
        size = min(size, self._left, len(self._block))
        self._left -= size
        return self._block[:size]


def archive(files: int, size: int) -> Iterator[bytes]:
    """A plain tar as a client streams it."""
    block = random.Random(1).randbytes(PIECE)
    sink = Sink()
    with tarfile.open(fileobj=sink, mode="w|", bufsize=PIECE) as tar:  # type: ignore[call-overload]
        for number in range(files):
            member = tarfile.TarInfo(f"project/part{number % 500:03d}/source{number:06d}.py")
            member.size = size
            tar.addfile(member, Noise(size, block))
            yield from sink.taken()
    yield from sink.taken()


@contextmanager
def api() -> Iterator[tuple[int, str]]:
    """The process id and address of a real API process with a Redis of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="patchyard-bench-") as folder,
        EmbeddedRedis(Path(folder, "redis")) as redis,
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        changes = {
            "PATCHYARD_REDIS_URL": redis.url,
            "PATCHYARD_DATA_DIR": folder,
            "PATCHYARD_PORT": str(port),
            "PATCHYARD_ADMIN_KEY": KEY,
            "PATCHYARD_LOG_LEVEL": "WARNING",
        }
        environment = child_environment(changes, model_keys=False)
        process = subprocess.Popen([sys.executable, "-m", "service.api"], env=environment, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            await_answer(process, url)
            yield process.pid, url
        finally:
            process.terminate()
            process.wait(START_S)


def await_answer(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/tasks", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError("the API did not start")


def upload(client: httpx.Client, files: int, size: int) -> None:
    answer = client.post("/v1/workspaces", content=archive(files, size))
    assert answer.status_code == 201, answer.text
    assert answer.json()["unpacked_size"] == files * size, answer.text


def uploads() -> Iterator[tuple[Verdict, float]]:
    """The API's growth while it takes in an archive, and the seconds that took."""
    headers = {"Authorization": f"Bearer {KEY}"}
    with api() as (pid, url), httpx.Client(base_url=url, headers=headers, timeout=UPLOAD_S) as client:
        memory = Memory(pid)
        memory.start()
        start = time.monotonic()
        upload(client, FILES, SIZE)
        taken = time.monotonic() - start
        yield growth("P12", f"API, 1 GB archive of {FILES:,} files", memory.grown(), GOAL_MB), taken


def floods() -> Iterator[tuple[Verdict, float]]:
    """The same for a worker, which this process then is, through the tool and with the flood limit out of the way."""
    memory = Memory(os.getpid())
    with host() as here, here.box() as box:
        tools = toolbox(box)
        memory.start()
        start = time.monotonic()
        answer = use(tools, "bash", json.dumps({"command": PRINT_1_GB}))
        taken = time.monotonic() - start
        assert "killed: too much output" in answer.text, answer.text[-200:]
        yield growth("P12", "worker, 1 GB through the bash tool (killed at 64 MB)", memory.grown(), GOAL_MB), taken
        memory.start()
        start = time.monotonic()
        result = run(box, PRINT_1_GB)
        taken = time.monotonic() - start
        assert (result.exit_code, result.total_bytes) == (0, 1 << 30), result
        yield growth("P12", "worker, 1 GB to its end", memory.grown(), GOAL_MB), taken


def run(box: Sandbox, command: str) -> ExecResult:
    steps = box.exec(command, flood_bytes=4 << 30)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: ExecResult = stop.value
            return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures P12: memory of the API and of a worker under 1 GB.")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    options = parser.parse_args()
    end_on_sigterm()
    about = machine()
    found: list[Verdict] = []
    for measure in (floods, uploads):
        for verdict, taken in measure():
            found.append(verdict)
            if not options.json:
                say(iter([f"{verdict.what}: {taken:.1f} s"]))
    if options.json:
        print(json.dumps(document(about, [], found), indent=1))
    else:
        say(verdicts(found))


if __name__ == "__main__":
    main()
