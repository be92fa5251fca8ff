"""The xml protocol: calls as tags in the reply's text, for models without native tool calls.

    <view path="a.py" start="1" end="20"/>          read_file
    <create path="a.py">…</create>                  write_file
    <str_replace path="a.py"><old>…</old><new>…</new></str_replace>
    <bash>…</bash>      <done>…</done>              `done` may stay unclosed at the end of the reply
    <tool name="search">{"pattern": "…"}</tool>     every tool

Attributes are quoted; nothing is decoded, `&amp;` stays `&amp;`. A tag right behind a backtick is text, and so is one
that is malformed or not closed. Where content holds closing tags, the last one before the next call ends it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from worker.llm.messages import Message, ToolCall, ToolSchema
from worker.llm.protocols import written
from worker.llm.protocols.grammar import Found, Spoken, Token, closing, packed, unwrapped

MAX_TAG_CHARS = 4_096
TAGS = {"view": "read_file", "create": "write_file", "str_replace": "edit_file", "bash": "bash", "done": "done"}
_BODY = {"create": "content", "bash": "command", "done": "summary"}
"""The parameter that a tag's content is."""

_ATTRIBUTE = r"""\s+([A-Za-z_][\w-]*)\s*=\s*("[^"<>]*"|'[^'<>]*')"""
_PARTS = re.compile(r"\s*<old>(.*?)</old>\s*<new>(.*)</new>\s*", re.DOTALL)
_LONE = re.compile(r"[ \t]*(?:\r?\n|<|\Z)")
_MARKUP = re.compile(r"</?(?:view|create|str_replace|bash|done|tool|old|new)\b")

RULES = """
# How to call tools
You call tools by writing tags into your reply, in the forms below, each on a line of its own. They are carried out in the order you write them; the results come in the next message, each below a line `[result of NAME]`. Write no results yourself.
- Everything else you write is text for the person. A tag that is malformed or not closed is text as well.
- What is between two tags is taken as it is: write < and &, never &lt; or &amp;. A line break right behind an opening tag is not part of it.
- Content may hold tags; the last closing tag before your next call ends it. To mention a tag without calling it, write a backtick in front of it.
- Optional parameters are attributes. Every tool can also be called as <tool name="NAME">{"PARAMETER": VALUE}</tool>, with JSON inside.
"""  # noqa: E501 - a paragraph for the model is one line


def request(messages: Sequence[Message], tools: Sequence[ToolSchema], *, echo_reasoning: bool) -> dict[str, Any]:
    """The conversation as a request's fields. Thoughts have no place in it, whatever `echo_reasoning` says."""
    return {"messages": written.messages(messages, written.describe(RULES, tools, _form), write)}


def grammar(tools: Sequence[ToolSchema]) -> XmlGrammar:
    return XmlGrammar({tool.name for tool in tools})


class XmlGrammar:
    def __init__(self, tools: Collection[str]) -> None:
        names = "|".join([*(tag for tag, tool in TAGS.items() if tool in tools), "tool"])
        self._open = re.compile(rf"(?<!`)<({names})((?:{_ATTRIBUTE})*)\s*(/?)>")
        self._maybe = re.compile(rf"<(?:[a-z_]*|(?:{names})[\s/][^<>]*)\Z")

    def opener(self, text: str, start: int) -> re.Match[str] | None:
        while (opener := self._open.search(text, start)) and opener.end() - opener.start() > MAX_TAG_CHARS:
            start = opener.end()
        return opener

    def undecided(self, text: str, start: int) -> int:
        maybe = self._maybe.search(text, max(start, text.rfind("<")))
        return maybe.start() if maybe and len(text) - maybe.start() <= MAX_TAG_CHARS else len(text)

    def read(self, text: str, opener: re.Match[str], *, cut: bool) -> Found | None:
        tag, attributes = opener[1], _attributes(opener[2])
        if opener[5]:
            return Found((_call(tag, attributes, None),), opener.end())
        end = closing(self._tokens(tag, text, opener.end()))
        if end is not None:
            body = text[opener.end() : end.start]
            return None if tag == "view" and body.strip() else Found((_call(tag, attributes, body),), end.end)
        if tag == "done" or cut:
            return Found((_call(tag, attributes, text[opener.end() :]),), len(text))
        return None

    def _tokens(self, tag: str, text: str, start: int) -> Iterator[Token]:
        close = re.compile(rf"</{tag}\s*>")
        marks = re.compile(rf"{self._open.pattern}|{close.pattern}")
        for mark in marks.finditer(text, start):
            if mark[1] is None:
                yield Token(*mark.span(), opens=False, counts=_LONE.match(text, mark.end()) is not None)
            else:
                yield Token(*mark.span(), opens=True, counts=mark[1] == tag and not mark[5])


def _attributes(text: str) -> dict[str, Any]:
    return {name: value[1:-1] for name, value in re.findall(_ATTRIBUTE, text)}


def _call(tag: str, attributes: dict[str, Any], body: str | None) -> Spoken:
    if tag == "tool":
        return Spoken(attributes.get("name", ""), (body or "").strip())
    arguments = dict(attributes)
    if tag in _BODY and body is not None:
        arguments[_BODY[tag]] = unwrapped(body, both=tag != "create")
    elif tag == "str_replace":
        arguments |= _parts(body or "")
    return Spoken(TAGS[tag], packed(arguments))


def _parts(body: str) -> dict[str, str]:
    """Old and new text; nothing where one is missing, which the tool then says."""
    # Looked at first: the expression alone would take quadratic time for what it cannot match.
    parts = _PARTS.fullmatch(body) if body.rstrip().endswith("</new>") else None
    return {"old": unwrapped(parts[1]), "new": unwrapped(parts[2])} if parts else {}


def write(call: ToolCall) -> str:
    """The call as a model of this protocol writes it; what would be misread in its own form goes as JSON."""
    arguments = written.arguments_of(call)
    if arguments is None:
        return _general(call.name, call.arguments[: written.UNREADABLE_SHOWN])
    own = _own(call.name, arguments)
    return own if own is not None else _general(call.name, packed(arguments))


def _general(name: str, arguments: str) -> str:
    # In JSON a < can be written so that no tag is left of it.
    return (
        f'<tool name="{re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64]}">{arguments.replace("<", chr(92) + "u003c")}</tool>'
    )


def _own(name: str, arguments: dict[str, Any]) -> str | None:
    path = arguments.get("path")
    rest = {key: value for key, value in arguments.items() if key != "path"}
    if name in ("read_file", "write_file", "edit_file") and not _is_plain(path):
        return None
    match name:
        case "read_file" if set(rest) <= {"start", "end"} and all(type(value) is int for value in rest.values()):
            return f'<view path="{path}"{"".join(f" {key}={chr(34)}{value}{chr(34)}" for key, value in rest.items())}/>'
        case "write_file" if (values := written.strings(rest, "content")) and not _has_markup(values):
            return f'<create path="{path}">\n{values[0]}</create>'
        case "edit_file" if (values := written.strings(rest, "old", "new")) and not _has_markup(values):
            old, new = values
            return f'<str_replace path="{path}">\n<old>\n{old}\n</old>\n<new>\n{new}\n</new>\n</str_replace>'
        case "bash" if (values := written.strings(arguments, "command")) and not _has_markup(values):
            return f"<bash>\n{values[0]}\n</bash>"
        case "done" if (values := written.strings(arguments, "summary")) and not _has_markup(values):
            return f"<done>\n{values[0]}\n</done>"
        case _:
            return None


def _is_plain(path: object) -> bool:
    return isinstance(path, str) and re.fullmatch(r'[^"<>\r\n]{1,3000}', path) is not None


def _has_markup(values: Sequence[str]) -> bool:
    # A lone CR before the line break of a closing tag would be taken for a part of it.
    return any(_MARKUP.search(value) or value.endswith("\r") for value in values)


def _form(tool: ToolSchema) -> str:
    arguments = written.example(tool)
    own = _own(tool.name, arguments)
    return own if own is not None else _general(tool.name, packed(arguments))
