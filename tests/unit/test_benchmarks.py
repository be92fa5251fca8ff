"""What the benchmarks say must follow from what they measured."""

from __future__ import annotations

import io
import tarfile

import pytest

from benchmarks.kit.measure import Figure, Sample, at_most, faster, growth, table
from benchmarks.memory import archive

OURS = Sample("ours", (0.003, 0.001, 0.002, 0.100))
PEER = Sample("peer", (0.050, 0.050, 0.001, 0.050))


def test_a_verdict_is_a_ratio_of_medians() -> None:
    slower = at_most("P1", OURS, PEER, 0.05)
    quicker = faster("P1", OURS, PEER, 20)
    assert (slower.what, slower.value, slower.met) == ("ours / peer", pytest.approx(0.05), True)
    assert (quicker.what, quicker.value, quicker.met) == ("ours vs peer", pytest.approx(20), True)


def test_a_missed_goal_is_said() -> None:
    assert not at_most("P1", OURS, PEER, 0.049).met
    assert not faster("P1", OURS, PEER, 21).met
    assert not growth("P12", "memory", (32 << 20) + 1, 32).met
    assert growth("P12", "memory", 32 << 20, 32).met


def test_a_table_shows_medians_and_the_middle_half_in_milliseconds() -> None:
    figure = Figure("P1", {"ours": OURS, "peer": PEER}, "quiet")
    assert list(table(figure)) == [
        "P1  (ms: median, middle half; 4 times; quiet)",
        "  ours       2.50   1.75–27.25",
        "  peer      50.00   37.75–50.00",
    ]


def test_the_archive_that_is_streamed_is_a_tar_of_the_files_asked_for() -> None:
    data = b"".join(archive(3, 70_000))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(member.name, member.size) for member in tar] == [
            ("project/part000/source000000.py", 70_000),
            ("project/part001/source000001.py", 70_000),
            ("project/part002/source000002.py", 70_000),
        ]
