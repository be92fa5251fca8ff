"""Calls that models write into their text although native calls were asked for: their server did not parse them.

    Qwen      <tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>
    GLM       <tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>
    Hermes    <tool_call>{"name": "NAME", "arguments": {…}}</tool_call>
    MiniMax   <minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke>…

Values are taken as they are, without decoding. What does not fit one of these forms as a whole is text, and so is a
tag behind a backtick: prose may speak of them. The last closing tag may be missing (some servers stop at it).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from worker.llm.protocols.grammar import Found, Spoken, Token, closing, json_call, packed, unwrapped

_OPEN = re.compile(r"(?<!`)<((?:minimax:)?tool_call)>(?=\s{0,20}(?:[{<]|[\w.-]{1,64}\s{0,20}<))")
_MAYBE = re.compile(r"(?<!`)<(?:[a-z_:]{0,17}|(?:minimax:)?tool_call>\s{0,20}(?:[\w.-]{1,64}\s{0,20})?)\Z")
_LONE = re.compile(r"[ \t]*(?:\r?\n|<|\Z)")
_SPACE = re.compile(r"\s*")
_FUNCTION = re.compile(r"<function=([^>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>")
_INVOKE = re.compile(r"""<invoke name=["']?([^>"'\n]+)["']?>""")
_NAMED_PARAMETER = re.compile(r"""<parameter name=["']?([^>"'\n]+)["']?>""")
_GLM_NAME = re.compile(r"\s*([\w.-]{1,64})\s*(?=<|\Z)")
_GLM_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_ANY_NAME = re.compile(r"\s*(?:<function=|<invoke name=[\"']?|\{\s*\"name\"\s*:\s*\")?([\w.-]{1,64})")
_LONGEST_MAYBE = 128


class DialectGrammar:
    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools

    def opener(self, text: str, start: int) -> re.Match[str] | None:
        return _OPEN.search(text, start)

    def undecided(self, text: str, start: int) -> int:
        maybe = _MAYBE.search(text, max(start, len(text) - _LONGEST_MAYBE))
        return maybe.start() if maybe else len(text)

    def read(self, text: str, opener: re.Match[str], *, cut: bool) -> Found | None:
        end = closing(_tokens(opener[1], text, opener.end()))
        body = text[opener.end() : end.start if end else len(text)]
        calls = _invokes(body) if opener[1].startswith("minimax:") else self._tool_call(body)
        if not calls and cut and end is None and (name := _ANY_NAME.match(body)) and name[1] in self._tools:
            calls = [Spoken(name[1], "")]
        return Found(tuple(calls), end.end if end else len(text)) if calls else None

    def _tool_call(self, body: str) -> list[Spoken]:
        text = body.lstrip()
        if text.startswith("{"):
            call = json_call(text)
            return [call] if call else []
        if text.startswith("<"):
            return _calls(_members(body, _FUNCTION, "</function>"), _PARAMETER, "</parameter>")
        name = _GLM_NAME.match(body)
        pairs = _members(body[name.end() :], _GLM_PAIR, "</arg_value>") if name else None
        if name is None or pairs is None or (not pairs and name[1] not in self._tools):
            return []
        return [_packed(name[1], pairs)]


def _invokes(body: str) -> list[Spoken]:
    return _calls(_members(body, _INVOKE, "</invoke>"), _NAMED_PARAMETER, "</parameter>")


def _calls(functions: list[tuple[str, str]] | None, opening: re.Pattern[str], close: str) -> list[Spoken]:
    calls = []
    for name, body in functions or ():
        parameters = _members(body, opening, close)
        if parameters is None:
            return []
        calls.append(_packed(name, parameters))
    return calls


def _packed(name: str, parameters: list[tuple[str, str]]) -> Spoken:
    return Spoken(name.strip(), packed({key.strip(): unwrapped(value) for key, value in parameters}))


def _members(text: str, opening: re.Pattern[str], close: str) -> list[tuple[str, str]] | None:
    """What stands between the tags, which fill `text` one after the other; None when they do not.

    A closing tag counts where another member, or the end, follows: any other belongs to the value.
    """
    members = []
    at = _skipped(text, 0)
    while at < len(text):
        head = opening.match(text, at)
        if head is None:
            return None
        end = text.find(close, head.end())
        while end >= 0 and not _goes_on(text, opening, end + len(close)):
            end = text.find(close, end + 1)
        if end < 0:
            return None
        members.append((head[1], text[head.end() : end]))
        at = _skipped(text, end + len(close))
    return members


def _goes_on(text: str, opening: re.Pattern[str], at: int) -> bool:
    at = _skipped(text, at)
    return at == len(text) or opening.match(text, at) is not None


def _skipped(text: str, at: int) -> int:
    blank = _SPACE.match(text, at)
    return blank.end() if blank else at


def _tokens(tag: str, text: str, start: int) -> Iterator[Token]:
    for mark in re.finditer(r"<(/?)(?:minimax:)?tool_call>", text[start:]):
        opens, own = not mark[1], mark[0].strip("</>") == tag
        if opens:
            yield Token(start + mark.start(), start + mark.end(), opens=True, counts=own)
        elif own:
            lone = _LONE.match(text, start + mark.end()) is not None
            yield Token(start + mark.start(), start + mark.end(), opens=False, counts=lone)
