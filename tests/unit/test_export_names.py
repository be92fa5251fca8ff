"""What a lying box may make us write down before any of it is checked against the upload: not more than names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from export_kit import Bench

from sandbox_image.toolserver.records import ABSENT, CHANGE, EXEC, FILE, LINK, LISTED, MAGIC, MAX_AUX, record
from service.errors import ExportFailed
from worker.export import changeset


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.upload("echo one > a")
    return bench


def refused(bench: Bench, parts: Iterator[bytes]) -> str:
    bench.box.changes = lambda: parts  # type: ignore[method-assign]
    with pytest.raises(ExportFailed) as caught:
        bench.export()
    return caught.value.detail


@pytest.mark.parametrize(
    ("kind", "size"), [(FILE, 1), (EXEC, MAX_AUX), (ABSENT, 1), (LINK, changeset.MAX_TARGET + 1), (LINK, MAX_AUX)]
)
def test_a_change_carries_no_ballast(kind: int, size: int, bench: Bench) -> None:
    parts = [MAGIC, record(CHANGE, b"n", kind=kind, aux=bytes(size)), record(LISTED, size=1)]
    assert "more than its path and target" in refused(bench, iter(parts))


def test_names_without_end_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changeset, "MAX_NAMES", 10_000)
    told = 0

    def names() -> Iterator[bytes]:
        nonlocal told
        yield MAGIC
        for number in range(100_000):
            told += 1
            yield record(CHANGE, b"%06d" % number + bytes(994).replace(b"\0", b"n"), kind=FILE)

    assert "the list of changes is not one" in refused(bench, names())
    assert told < 20
