"""The round trips through real boxes: the agent's commands, the scan, the patch and its proof all run inside."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from export_cases import CASES
from export_kit import GIT_ENV, Upload, apply_to_upload, shell, snapshot

from service.blobs import DiskBlobs
from worker.export import export
from worker.sandbox.base import BoxSpec, ExecResult, Sandbox, SandboxProvider
from worker.sandbox.local import LocalProvider

if TYPE_CHECKING:
    from worker.sandbox.docker import DockerProvider

_ENV = {name: value for name, value in GIT_ENV.items() if name.startswith("GIT_")}


def _run(box: Sandbox, script: str, canary: str) -> ExecResult:
    steps = box.exec(script, env={**_ENV, "CANARY": canary})
    output = b""
    while True:
        try:
            output += next(steps)
        except StopIteration as end:
            result: ExecResult = end.value
            assert result.exit_code == 0, output
            return result


def _round_trip(name: str, provider: SandboxProvider, image: str, folder: Path) -> None:
    case, canary = CASES[name], folder / "canary"
    before, after = folder / "before", folder / "after"
    before.mkdir()
    shell(case.before, before, CANARY=str(canary))
    upload = Upload.of(before)
    shutil.copytree(before, after, symlinks=True)
    shell(case.agent, after, CANARY=str(folder / "by the agent itself"))
    blobs = DiskBlobs(folder / "blobs")
    spec = BoxSpec(task=f"task_{name}", run=1, image=image, cpus=1, memory_mb=256, disk_mb=128, pids=128)

    box = provider.open(spec)
    try:
        box.claim(spec.task, deadline_s=60)
        box.load(upload.parts())
        _run(box, case.agent, str(canary))
        info = export(box, provider, spec, upload.manifest, upload.tar, blobs)
    finally:
        box.close()
    assert info.sha256 is not None
    with blobs.open(info.sha256) as blob:
        patch = blob.read()

    wanted = snapshot(after)
    for path in case.absent:
        del wanted[path]
    assert apply_to_upload(upload, patch, folder / "judge") == wanted
    assert (info.status, info.applies_cleanly, info.reproduces_tree) == ("complete", True, True)
    assert [text for text in case.leak if text in patch] == []
    assert not canary.exists()


@pytest.mark.docker
@pytest.mark.parametrize("name", CASES)
def test_round_trip_in_containers(
    name: str, docker_provider: DockerProvider, sandbox_image: str, tmp_path: Path
) -> None:
    _round_trip(name, docker_provider, sandbox_image, tmp_path)


@pytest.mark.parametrize("name", ["A01", "A08", "A20"])
def test_round_trip_in_local_boxes(name: str, tmp_path: Path) -> None:
    _round_trip(name, LocalProvider(tmp_path), "local", tmp_path)
