"""Keeps a leading `<think>` block out of the visible text, while the text is still arriving."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


def well_formed(text: str) -> str:
    """The text with surrogate pairs joined and lone ones replaced, so that it always encodes."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ThinkingFilter:
    """Text in, visible text out. Only blocks in front of everything else count: prose may mention the tag.

    Half a tag, and half a surrogate pair, are held back until the next piece decides.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"  # start | inside | text
        self._open: list[str] = []
        self.thoughts: list[str] = []
        """The closed blocks' content."""

    def feed(self, text: str) -> str:
        self._held += text
        if self._state != "text":
            self._scan()
        if self._state != "text":
            return ""
        text, self._held = self._held, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return well_formed(text)

    def end(self) -> tuple[str, str]:
        """The rest of the visible text, and the content of a block that was never closed."""
        rest, self._held = self._held, ""
        if self._state == "inside":
            return "", "".join(self._open) + rest
        return well_formed(rest), ""

    def _scan(self) -> None:
        while self._state != "text":
            if self._state == "inside":
                content, closed, rest = self._held.partition(_CLOSE)
                if not closed:
                    keep = len(_CLOSE) - 1
                    self._open.append(self._held[:-keep])
                    self._held = self._held[-keep:]
                    return
                self.thoughts.append("".join(self._open) + content)
                self._open, self._held, self._state = [], rest, "start"
                continue
            start = self._held.lstrip()
            if start.startswith(_OPEN):
                self._held, self._state = start[len(_OPEN) :], "inside"
            elif _OPEN.startswith(start):  # also the empty start: white space in front of a block is not text
                return
            else:
                self._state = "text"
                if self.thoughts:
                    self._held = start
