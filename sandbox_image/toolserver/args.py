"""The arguments of a request, taken out by name and shape."""

from __future__ import annotations

from typing import Any

from sandbox_image.toolserver.failures import Failure


class Args:
    """Failure `bad_request` for one that is missing or of the wrong shape."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise Failure("bad_request", f"{name} must be text")
        return value

    def number(self, name: str, low: int, high: int) -> int:
        """Brought into the range: what the box can do at most is its own affair."""
        value = self._values.get(name)
        if not isinstance(value, int):
            raise Failure("bad_request", f"{name} must be a whole number")
        return max(low, min(value, high))

    def seconds(self, name: str, high: float) -> float:
        value = self._values.get(name)
        if not isinstance(value, (int, float)) or not value > 0:
            raise Failure("bad_request", f"{name} must be a number above 0")
        return min(float(value), high)

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def texts(self, name: str) -> dict[str, str]:
        value = self._values.get(name)
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise Failure("bad_request", f"{name} must map names to texts")
        return value
