"""Secrets that a first start makes and every later one finds: a file of mode 600 that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def load_or_make(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """The secret kept in this file, and whether this call made it; the same one for twins that start together."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = not path.exists() and _appear(path, make() + "\n")
    return path.read_text(encoding="ascii", errors="replace").strip(), made


def _appear(path: Path, content: str) -> bool:
    """False if a twin was first."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            return True
        return False
    finally:
        draft.unlink(missing_ok=True)
