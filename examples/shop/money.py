"""Amounts of money as whole cents."""

import re

_AMOUNT = re.compile(r"(\d+)(?:\.(\d{2}))?")


def parse_cents(text: str) -> int:
    """Reads `12` or `12.34` as cents; anything else is a ValueError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an amount: {text!r}")
    return int(match[1]) * 100 + int(match[2] or 0)


def format_cents(cents: int) -> str:
    """Writes cents as `12.34`."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole}.{rest:02d}"
