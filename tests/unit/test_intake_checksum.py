"""The byte sum of a tar header is exact for every block, the largest included."""

from __future__ import annotations

import random

import pytest

from service.intake.checksum import byte_sum


@pytest.mark.parametrize(
    ("block", "total"),
    [(b"", 0), (bytes(512), 0), (b"\xff" * 512, 130_560), (b"\xff" * 257, 65_535), (b"a\0b", 195)],
)
def test_known_sums(block: bytes, total: int) -> None:
    assert byte_sum(block) == total


def test_it_is_the_sum_of_the_bytes() -> None:
    dice = random.Random(1)
    for _ in range(200):
        block = dice.randbytes(512)
        assert byte_sum(block) == sum(block)
