"""What the suites about boxes share: opening one of either kind, running a command, packing a tar, making an image."""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from worker.sandbox.base import BoxSpec, ExecResult, Sandbox

if TYPE_CHECKING:
    import docker

KINDS = ("local", "docker")


def spec(image: str = "none", **changes: Any) -> BoxSpec:
    values: dict[str, Any] = {
        "task": f"task_{uuid.uuid4().hex}",
        "run": 1,
        "image": image,
        "cpus": 2,
        "memory_mb": 256,
        "disk_mb": 256,
        "pids": 128,
    }
    return BoxSpec(**{**values, **changes})


def run(box: Sandbox, command: str, **options: Any) -> tuple[bytes, ExecResult]:
    """All of the streamed output, and the result."""
    steps = box.exec(command, **options)
    output = bytearray()
    while True:
        try:
            output += next(steps)
        except StopIteration as stop:
            return bytes(output), stop.value


def text(box: Sandbox, command: str, **options: Any) -> str:
    """The output of a command that must succeed."""
    output, result = run(box, command, **options)
    assert (result.ended, result.exit_code) == ("exited", 0), output
    return output.decode()


def pack(files: Mapping[str, bytes | str]) -> bytes:
    """A canonical tar: bytes are files (executable if the name ends in .sh), a str is a link's target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return canonical(out.getvalue())


def canonical(tar: bytes) -> bytes:
    """GNU headers as intake writes them: magic `ustar`, version 00, and the two blocks at the end only."""
    blocks = bytearray(tar)
    at = 0
    while blocks[at : at + 512].strip(b"\0"):
        size = int(blocks[at + 124 : at + 136].rstrip(b"\0 "), 8)
        blocks[at + 257 : at + 265] = b"ustar\x0000"
        blocks[at + 148 : at + 156] = b" " * 8
        blocks[at + 148 : at + 156] = b"%06o\0 " % sum(blocks[at : at + 512])
        at += 512 + -(-size // 512) * 512
    return bytes(blocks[: at + 1024])


def pieces(data: bytes, size: int = 10_000) -> Iterable[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@contextmanager
def image_of(engine: docker.APIClient, name: str, *lines: str) -> Iterator[str]:
    """An image built from these Dockerfile lines, gone afterwards."""
    source = io.BytesIO("\n".join(lines).encode())
    steps = list(engine.build(fileobj=source, tag=name, rm=True, forcerm=True, decode=True))
    assert "error" not in steps[-1], steps[-1]
    try:
        yield name
    finally:
        engine.remove_image(name, force=True)
