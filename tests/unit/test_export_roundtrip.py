"""Applying the patch to a fresh copy of the upload gives exactly the agent's tree: bytes, executable bit, target."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_cases import CASES
from export_kit import Bench, shell, snapshot


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    case, canary = CASES[name], tmp_path / "canary"
    bench = Bench(tmp_path / "bench")

    box = bench.upload(lambda folder: shell(case.before, folder, CANARY=str(canary)))
    shell(case.agent, box.root, CANARY=str(tmp_path / "by the agent itself"))
    wanted = snapshot(box.root)
    info = bench.export()
    patch = bench.patch(info)

    for path in case.absent:
        del wanted[path]
    assert bench.applied(patch) == wanted
    assert (info.status, info.applies_cleanly, info.reproduces_tree) == ("complete", True, True)
    assert info.bytes == len(patch)
    assert [text for text in case.leak if text in patch] == []
    assert not canary.exists()


def test_binary_parts_are_compressed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    box = bench.upload("echo a > a")
    (box.root / "zeros").write_bytes(bytes(1 << 20))
    assert bench.export().bytes < 10_000
