"""Hides secrets in everything a person may see: task env values, our keys, and well-known token shapes.

A value counts from 8 characters on (shorter ones would blank ordinary words), in its raw, base64, hex,
URL-encoded and JSON-escaped forms (docs/security.md). Text that arrives in pieces is masked as a stream:
what may be the beginning of a secret is held back until the next piece decides.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "•••"
MIN_LENGTH = 8

_STARTS = (
    "sk-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "pyd_",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "AIza",
)
_SHAPE = (
    r"(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|pyd_[A-Za-z0-9_-]{20,}|xox[bp]-[A-Za-z0-9-]{20,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,})"
)
_KEY_BLOCK = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_SHAPES = re.compile(f"{_KEY_BLOCK}|{_SHAPE}", re.DOTALL)
_OPEN_SHAPE = re.compile(
    r"(?:-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*|-----BEGIN [A-Z ]*|"
    r"(?:" + "|".join(map(re.escape, _STARTS)) + r")[A-Za-z0-9_-]*)\Z",
    re.DOTALL,
)
_HOLD_AT_MOST = 16_384
"""Characters held back at most, so that a hostile stream cannot make us buffer without end."""


def _base64_forms(raw: bytes) -> set[str]:
    """The characters that stand for `raw` wherever it lies in a longer base64 text (three alignments)."""
    forms = {base64.b64encode(raw).decode().rstrip("=")}
    for shift in (1, 2):
        text = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        forms.add(text[shift + 1 :])
    # The last character may carry bits of what follows: without it the form still is unmistakable.
    forms |= {form[:-1] for form in forms}
    return forms | {form.translate(str.maketrans("+/", "-_")) for form in forms}


def _forms(secret: str) -> set[str]:
    raw = secret.encode()
    forms = {secret, raw.hex(), raw.hex().upper(), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    return {form for form in forms | _base64_forms(raw) if len(form) >= MIN_LENGTH}


class Masker:
    """Replaces every form of the given secrets, and token-shaped text, by `MASK`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = sorted({form for s in secrets if len(s) >= MIN_LENGTH for form in _forms(s)}, key=len, reverse=True)
        self._forms = forms
        self._prefixes = (*forms, *_STARTS, "-----BEGIN ")
        self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    def text(self, text: str) -> str:
        """A whole text, masked."""
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return _SHAPES.sub(MASK, text)

    def data(self, value: Any) -> Any:
        """JSON-like data with every string in it masked, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value

    def bytes(self, data: bytes) -> bytes:
        """Raw bytes, masked; what is not UTF-8 passes unchanged."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def held(self, text: str) -> int:
        """How many characters at the end of `text` a longer text might mask differently than this one."""
        longest = 0
        if match := _OPEN_SHAPE.search(text[-_HOLD_AT_MOST:]):
            longest = len(match[0])
        for form in self._prefixes:
            for size in range(min(len(form) - 1, len(text)), longest, -1):
                if text.endswith(form[:size]):
                    longest = size
                    break
        start = len(text) - longest
        if longest and self._pattern is not None:
            for match in self._pattern.finditer(text):
                if match.start() < start < match.end():  # never cut through a form that is already whole
                    return len(text) - match.start()
        return longest


class MaskedStream:
    """Masks text that comes in pieces; `feed` gives what is safe to show now, `end` the rest."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._pending = ""

    def feed(self, piece: str) -> str:
        self._pending += piece
        held = self._masker.held(self._pending)
        ready = self._pending[: len(self._pending) - held]
        self._pending = self._pending[len(self._pending) - held :]
        return self._masker.text(ready)

    def end(self) -> str:
        rest, self._pending = self._pending, ""
        return self._masker.text(rest)
