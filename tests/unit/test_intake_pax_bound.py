"""Pax records are bounded in number: some bytes each, they would keep a processor busy for minutes."""

from __future__ import annotations

import io
import tempfile

import pytest
from archive_kit import TAR_END, tar_entry

from service.errors import TooLarge
from service.intake import IntakeLimits, canonicalise

LIMITS = IntakeLimits(entries=5)
RECORDS = b"5 a=\n"


def upload(kind: bytes, *headers: int) -> io.BytesIO:
    """An archive with a pax header of so many records before each of its members."""
    members = (
        tar_entry(b"pax", kind, data=RECORDS * count) + tar_entry(b"f%d" % number)
        for number, count in enumerate(headers)
    )
    return io.BytesIO(b"".join(members) + TAR_END)


@pytest.mark.parametrize("kind", [b"x", b"g", b"X"])
def test_pax_records_are_counted_over_the_whole_archive(kind: bytes) -> None:
    with tempfile.TemporaryFile() as out, pytest.raises(TooLarge) as caught:
        canonicalise(upload(kind, 60, 41), out, LIMITS)
    assert (caught.value.code, caught.value.detail) == ("too_many_entries", "the archive has too many pax records")


@pytest.mark.parametrize("kind", [b"x", b"g", b"X"])
def test_twenty_records_for_each_permitted_entry_are_accepted(kind: bytes) -> None:
    with tempfile.TemporaryFile() as out:
        assert canonicalise(upload(kind, 60, 40), out, LIMITS).files == 2
