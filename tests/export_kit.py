"""What the export tests share: boxes on plain folders, uploads from folders, and a judge that is not our own code.

The judge is git as a user runs it: the downloaded patch is applied to the extracted upload, outside any repository,
and the two trees are compared file by file.
"""
# Names are bytes here, which pathlib does not take.
# ruff: noqa: PTH114, PTH115, PTH118, PTH123, PTH208

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from archive_kit import extract_all

from sandbox_image.toolserver import changes, patch
from sandbox_image.toolserver.workspace import Loader
from service.blobs import DiskBlobs
from service.contracts import PatchInfo
from service.intake import Manifest, canonicalise
from worker.export import ExportLimits, export
from worker.sandbox.base import BoxSpec, ExportReport, LoadReport

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.org",
}
SPEC = BoxSpec(task="task_test", run=1, image="plain", cpus=1, memory_mb=512, disk_mb=256, pids=64)

Tree = dict[bytes, tuple[str, bytes]]


class _JobReader:
    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._held = b""

    def read(self, size: int, /) -> bytes:
        while not self._held:
            part = next(self._parts, None)
            if part is None:
                return b""
            self._held = part
        data, self._held = self._held[:size], self._held[size:]
        return data


class PlainBox:
    """The box's own code on a folder of the host: everything of a sandbox the export uses, but the walls."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "workspace"
        self._tmp = folder / "tmp"
        for made in (self.root, self._tmp):
            made.mkdir(parents=True)
        self.baseline: Any = {}
        self.closed = False
        self.spec = SPEC

    def claim(self, task: str, *, deadline_s: float) -> None:
        assert deadline_s > 0

    def load(self, tar: Iterable[bytes]) -> LoadReport:
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            loader = Loader(descriptor)
            for part in tar:
                loader.feed(part)
            loader.finish()
        finally:
            os.close(descriptor)
        self.baseline = loader.baseline
        return LoadReport(loader.files, loader.bytes)

    def changes(self) -> Iterator[bytes]:
        return changes.stream(str(self.root), self.baseline)

    def export(self, job: Iterable[bytes]) -> Generator[bytes, None, ExportReport]:
        report = yield from patch.run(_JobReader(job), str(self.root), str(self._tmp))
        return ExportReport(**report)

    def close(self) -> None:
        assert list(self._tmp.iterdir()) == []
        self.closed = True


class PlainProvider:
    """Opens `PlainBox`es below one folder and remembers them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.boxes: list[PlainBox] = []

    def open(self, spec: BoxSpec) -> Any:
        box = PlainBox(self._folder / f"box{len(self.boxes)}")
        box.spec = spec
        self.boxes.append(box)
        return box


@dataclass
class Upload:
    """An accepted upload: its canonical tar and index."""

    tar: BinaryIO
    manifest: Manifest
    chunk: int = field(default=1 << 16)

    @classmethod
    def of(cls, folder: Path) -> Upload:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted(os.listdir(folder)):
                archive.add(folder / name, arcname=name)
        return cls.from_archive(packed)

    @classmethod
    def from_archive(cls, archive: BinaryIO) -> Upload:
        out = io.BytesIO()
        archive.seek(0)
        intake = canonicalise(archive, out)
        return cls(out, Manifest.load(io.BytesIO(b"".join(intake.manifest.chunks()))))

    def parts(self) -> Iterator[bytes]:
        self.tar.seek(0)
        while data := self.tar.read(self.chunk):
            yield data


class Bench:
    """One place for a round trip: `upload`, let an agent work in `box`, `export`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provider = PlainProvider(folder / "boxes")
        self.blobs = DiskBlobs(folder / "blobs")
        self.before = folder / "before"
        self.before.mkdir()

    def upload(self, before: str | Callable[[Path], None] = "") -> PlainBox:
        """Makes the workspace by a script or function, and loads it into the task's box."""
        if callable(before):
            before(self.before)
        else:
            shell(before, self.before)
        self.uploaded = Upload.of(self.before)
        self.box: PlainBox = self.provider.open(SPEC)
        self.box.load(self.uploaded.parts())
        return self.box

    def export(self, limits: ExportLimits | None = None) -> PatchInfo:
        uploaded = self.uploaded
        return export(self.box, self.provider, SPEC, uploaded.manifest, uploaded.tar, self.blobs, limits)  # type: ignore[arg-type]

    def patch(self, info: PatchInfo) -> bytes:
        assert info.sha256 is not None
        with self.blobs.open(info.sha256) as blob:
            return blob.read()

    def applied(self, patch_bytes: bytes) -> Tree:
        """The upload with the patch applied by git, as a user would."""
        return apply_to_upload(self.uploaded, patch_bytes, self.folder / "judge")


def shell(script: str, folder: Path, **more: str) -> None:
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**GIT_ENV, **more}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def extract(upload: Upload, folder: Path) -> None:
    upload.tar.seek(0)
    extract_all(upload.tar, folder)


def apply_to_upload(upload: Upload, patch_bytes: bytes, folder: Path) -> Tree:
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / "tree"
    tree.mkdir(parents=True)
    extract(upload, tree)
    for git in [path for path in tree.rglob(".git")]:
        shutil.rmtree(git) if git.is_dir() and not git.is_symlink() else git.unlink()
    if patch_bytes:
        environment = {**GIT_ENV, "GIT_CEILING_DIRECTORIES": str(folder.resolve())}
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, input=patch_bytes, cwd=tree, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    return snapshot(tree)


def snapshot(root: Path) -> Tree:
    """Every file and link but repository data: executable or not with its bytes, or its target."""
    found: Tree = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        folders[:] = [name for name in folders if name != b".git"]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*files, *links]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            relative = os.path.relpath(path, base)
            if name == b".git":
                continue
            if stat.S_ISLNK(status.st_mode):
                found[relative] = ("link", os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[relative] = ("exec" if status.st_mode & 0o100 else "file", file.read())
    return found
