"""One entry of an archive, whatever the archive's format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "link", "folder", "hard_link"]

EMPTY: Iterator[bytes] = iter(())


@dataclass(frozen=True, slots=True)
class Member:
    """What a reader found; nothing of it is checked but that it could be read."""

    name: bytes
    kind: Kind
    mode: int = 0o644
    """Permission bits, set-id bits included."""
    size: int = 0
    target: bytes = b""
    """Of a symbolic link; of a hard link the path of the other member."""
    body: Iterator[bytes] = EMPTY
    """Exactly `size` bytes, or an error; to be used up before the next member is asked for."""
