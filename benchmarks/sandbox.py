"""What a sandbox costs: P1, P2, P4 and P5 of the goals in docs/benchmarks.md.

Against the host's own limit (a spawn, a pipe into tar) and against what others do (`docker exec`, `docker cp`,
`docker run`), in one run, in turns: `python benchmarks/sandbox.py [--rounds N] [--json]`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

import docker

from benchmarks.kit.boxes import Host, end_on_sigterm, host, toolbox, use
from benchmarks.kit.measure import (
    Contender,
    Figure,
    Stopwatch,
    Verdict,
    at_most,
    document,
    faster,
    interleave,
    machine,
    say,
    table,
    verdicts,
)
from sandbox_image.toolserver.paths import Paths
from sandbox_image.toolserver.spawn import base_env
from service.intake import canonicalise

ROUNDS = 20
CALLS = 5
"""In a row, of what takes milliseconds; the first is not counted."""
SLOW_SHARE = 2
"""`docker cp` of 2,000 files and cold starts take seconds, so they get half of the rounds."""
TEXT = b"".join(b"line %04d of a file of four kilobytes, as source code is\n" % n for n in range(72))[:4096]
TREE_FILES, TREE_BYTES = 2_000, 20_000_000
READ = 256 << 10
"""Pieces in which a worker reads the workspace from its blob store."""
SHM = Path("/dev/shm")
SPAWN_ENV = base_env(Paths([(b"/workspace", b"/"), (b"/home/agent", b"/"), (b"/tmp", b"/")]))

Measured = tuple[Figure, list[Verdict]]


def spawn_host(watch: Stopwatch) -> None:
    """The least that running `bash -c true` can cost here: as a box does it, but without box, limits and pipe.

    The same environment, a session of its own, its output read to the end.
    """
    with watch.running():
        output, write = os.pipe2(os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)]
        pid = os.posix_spawn("/bin/bash", ["bash", "-c", "true"], SPAWN_ENV, file_actions=actions, setsid=True)
        os.close(write)
        while os.read(output, 65_536):
            pass
        os.close(output)
        _, status = os.waitpid(pid, 0)
    assert status == 0


SPAWN = Contender("host posix_spawn of bash", spawn_host)


def bash_true(here: Host, rounds: int) -> Measured:
    """P1: the shortest command, from the model's JSON to the answer it gets."""
    with ExitStack() as stack:
        tools = toolbox(stack.enter_context(here.box()))
        peer = stack.enter_context(here.peer())
        client = stack.enter_context(closing(docker.DockerClient(base_url=here.url)))
        container = client.containers.get(peer)

        def tool(watch: Stopwatch) -> None:
            with watch.running():
                answer = use(tools, "bash", '{"command": "true"}')
            assert answer.text == "(no output)\n[exit 0]", answer.text

        def cli(watch: Stopwatch) -> None:
            with watch.running():
                here.docker("exec", peer, "bash", "-c", "true")

        def exec_run(watch: Stopwatch) -> None:
            with watch.running():
                code, _ = container.exec_run(["bash", "-c", "true"])
            assert code == 0

        contenders = [
            Contender("bash tool", tool),
            SPAWN,
            Contender("docker exec", cli),
            Contender("exec_run", exec_run),
        ]
        figure = interleave("P1 `bash true`", contenders, rounds=rounds, calls=CALLS)
    found = figure.samples
    ours = found["bash tool"]
    return figure, [
        at_most("P1", ours, found[SPAWN.name], 1.5),
        faster("P1", ours, found["docker exec"], 15),
        faster("P1", ours, found["exec_run"], 12),
    ]


def small_file(here: Host, rounds: int) -> Measured:
    """P2: 4 KB in and out by the file tools."""
    arguments = json.dumps({"path": "src/file.py", "content": TEXT.decode()})
    with ExitStack() as stack:
        box = stack.enter_context(here.box())
        tools = toolbox(box)
        peer = stack.enter_context(here.peer())

        def write(watch: Stopwatch) -> None:
            with watch.running():
                answer = use(tools, "write_file", arguments)
            assert f"{len(TEXT):,} bytes" in answer.text, answer.text

        def read(watch: Stopwatch) -> None:
            forgetful = toolbox(box)  # one that has read the file before need not ask the box again
            with watch.running():
                answer = use(forgetful, "read_file", '{"path": "src/file.py"}')
            assert "line 0041" in answer.text, answer.text

        def exec_write(watch: Stopwatch) -> None:
            with watch.running():
                here.docker("exec", "-i", peer, "sh", "-c", "cat > /tmp/file.py", stdin=TEXT)

        def exec_read(watch: Stopwatch) -> None:
            with watch.running():
                data = here.docker("exec", peer, "cat", "/tmp/file.py")
            assert data == TEXT

        write(Stopwatch())
        exec_write(Stopwatch())
        contenders = [
            Contender("write_file", write),
            Contender("read_file", read),
            SPAWN,
            Contender("docker exec, write", exec_write),
            Contender("docker exec, read", exec_read),
        ]
        figure = interleave("P2 a 4 KB file", contenders, rounds=rounds, calls=CALLS)
    found = figure.samples
    goals = [at_most("P2", found[name], found[SPAWN.name], 0.5) for name in ("write_file", "read_file")]
    goals.append(faster("P2", found["write_file"], found["docker exec, write"], 50))
    goals.append(faster("P2", found["read_file"], found["docker exec, read"], 50))
    return figure, goals


def cold_start(here: Host, rounds: int) -> Measured:
    """P4: from nothing to the answer of the first command."""

    def ours(watch: Stopwatch) -> None:
        with ExitStack() as stack, watch.running():
            use(toolbox(stack.enter_context(here.box())), "bash", '{"command": "true"}')

    def docker_run(watch: Stopwatch) -> None:
        with ExitStack() as stack, watch.running():
            peer = stack.enter_context(here.peer())
            here.docker("exec", peer, "bash", "-c", "true")

    contenders = [Contender("hardened start", ours), Contender("docker run + exec", docker_run)]
    figure = interleave("P4 cold start", contenders, rounds=rounds)
    found = figure.samples
    return figure, [at_most("P4", found["hardened start"], found["docker run + exec"], 0.9)]


def workspace_in(here: Host, rounds: int) -> Measured:
    """P5: 20 MB in 2,000 files, from a file on disk into an empty tmpfs of the box."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patchyard-bench-")))
        target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patchyard-bench-", dir=SHM)))
        tar = folder / "workspace.tar"
        write_tree(tar)
        peer = stack.enter_context(here.peer())

        def load(watch: Stopwatch) -> None:
            with here.box() as box, tar.open("rb") as stream:
                with watch.running():
                    report = box.load(pieces(stream))
                assert (report.files, report.bytes) == (TREE_FILES, TREE_BYTES), report

        def pipe(watch: Stopwatch) -> None:
            command = ["tar", "x", "-C", str(target)]
            with tar.open("rb") as stream, watch.running(), subprocess.Popen(command, stdin=subprocess.PIPE) as process:
                assert process.stdin is not None
                for piece in pieces(stream):
                    process.stdin.write(piece)
                process.stdin.close()
                process.wait()
            assert process.returncode == 0
            for child in target.iterdir():
                shutil.rmtree(child)

        def docker_cp(watch: Stopwatch) -> None:
            here.docker("exec", peer, "mkdir", "/tmp/copy")
            with tar.open("rb") as stream, watch.running():
                here.docker("cp", "-", f"{peer}:/tmp/copy", stdin=stream.fileno())
            here.docker("exec", "-u", "0", peer, "rm", "-r", "/tmp/copy")  # what it copied is root's

        contenders = [
            Contender("load", load),
            Contender("host pipe into tar x", pipe),
            Contender("docker cp", docker_cp),
        ]
        figure = interleave("P5 20 MB in 2,000 files into the box", contenders, rounds=rounds)
    found = figure.samples
    ours = found["load"]
    return figure, [at_most("P5", ours, found["host pipe into tar x"], 2), faster("P5", ours, found["docker cp"], 15)]


def write_tree(path: Path) -> None:
    """A source tree as intake keeps it: the canonical tar."""
    numbers = random.Random(1)
    upload = io.BytesIO()
    with tarfile.open(fileobj=upload, mode="w") as tar:
        for number in range(TREE_FILES):
            member = tarfile.TarInfo(f"src/part{number % 40:02d}/module{number:04d}.py")
            member.size = TREE_BYTES // TREE_FILES
            tar.addfile(member, io.BytesIO(numbers.randbytes(member.size)))
    with path.open("w+b") as out:
        canonicalise(upload, out)


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(READ):
        yield piece


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures P1, P2, P4 and P5 against docker exec, cp and run.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="every number, as JSON, instead of tables")
    options = parser.parse_args()
    end_on_sigterm()
    many, few = max(2, options.rounds), max(2, options.rounds // SLOW_SHARE)
    plan: list[tuple[Callable[[Host, int], Measured], int]] = [
        (bash_true, many),
        (small_file, many),
        (cold_start, few),
        (workspace_in, few),
    ]
    figures: list[Figure] = []
    goals: list[Verdict] = []
    with host() as here:
        about = {**machine(), "engine": here.engine()}
        if not options.json:
            say(iter([", ".join(f"{name} {value}" for name, value in about.items())]))
        for measure, rounds in plan:
            figure, said = measure(here, rounds)
            figures.append(figure)
            goals += said
            if not options.json:
                say(table(figure))
                say(verdicts(said))
    if options.json:
        print(json.dumps(document(about, figures, goals), indent=1))


if __name__ == "__main__":
    main()
