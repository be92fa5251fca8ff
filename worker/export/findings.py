"""What is to be said about a change set beside the patch: flags, and what a patch cannot carry."""

from __future__ import annotations

from service.contracts import Flag
from service.names import escape_path

MAX_SHOWN = 1_000
"""Of each list (service/contracts.py)."""
_MAX_DETAIL = 200
NOT_IN_PATCH = frozenset({"empty_dir", "mode", "hard_link", "ignored", "special", "too_deep", "unreadable"})


class Findings:
    """Collects at most `MAX_SHOWN` of either list; the rest is dropped."""

    def __init__(self) -> None:
        self.flags: list[Flag] = []
        self.not_in_patch: list[Flag] = []

    def flag(self, kind: str, path: bytes, detail: str) -> None:
        _add(self.flags, kind, path, detail)

    def left_out(self, kind: str, path: bytes, detail: str = "") -> None:
        _add(self.not_in_patch, kind, path, detail)


def _add(shown: list[Flag], kind: str, path: bytes, detail: str) -> None:
    if len(shown) < MAX_SHOWN:
        text = escape_path(detail.encode("utf-8", "surrogateescape"))[:_MAX_DETAIL]
        shown.append(Flag(kind=kind, path=escape_path(path), detail=text))
