"""The sum of a block's bytes, which guards every tar header."""

from zlib import adler32

_HALF = 256
"""So few bytes cannot reach 65,521, where the low half of Adler-32 wraps."""


def byte_sum(block: bytes) -> int:
    """The sum of at most 512 bytes.

    The low half of Adler-32 is 1 + that sum, and takes a tenth of the time of `sum`: an archive of 50,000 entries
    asks for it 100,000 times while the API waits.
    """
    return (adler32(block[:_HALF]) & 0xFFFF) + (adler32(block[_HALF:]) & 0xFFFF) - 2
