"""The fenced protocol: calls as Markdown code blocks in the reply's text, for models that write nothing else well.

    ```bash-action      ```read-file      ```write-file      ```exit         ```tool-call
    make test           src/a.py          src/a.py           what was done   {"name": "search", "arguments": {…}}
    ```                 ```               ---                ```             ```
                                          its content
                                          ```

`exit` is the tool `done`, and may stay unclosed at the end of the reply. A block is closed by a line of at least as
many backticks as opened it, so a longer fence holds anything. Inside, a line of backticks with a word behind them
opens a block of its own; of the closing lines that are left over in `write-file` and `exit`, the last one before the
next call ends it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from worker.llm.messages import Message, ToolCall, ToolSchema
from worker.llm.protocols import written
from worker.llm.protocols.grammar import Found, Spoken, Token, closing, json_call, packed

ACTIONS = {"bash-action": "bash", "read-file": "read_file", "write-file": "write_file", "exit": "done"}
_RUNS = re.compile(r"^ {0,3}(`+)", re.MULTILINE)
_HEADER = re.compile(r"(path|start|end)[ \t]*[:=][ \t]*(.*)")
_SEPARATOR = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
_MAYBE = re.compile(r"^ {0,3}`{1,64}[a-z-]{0,16}[ \t]{0,16}\r?\Z", re.MULTILINE)

RULES = """
# How to call tools
You call tools by writing code blocks into your reply, in the forms below. They are carried out in the order you write them; the results come in the next message, each below a line `[result of NAME]`. Write no results yourself.
- Everything else you write, other code blocks too, is text for the person. A block that is not closed is text as well.
- The opening line holds nothing but the fence and the block's name. What is inside is taken as it is.
- A block ends at a line of as many backticks as opened it. If the content holds such lines, open and close the block with more backticks than any of them has.
- `exit` is the tool `done`. Every tool can also be called by a block `tool-call` that holds {"name": "NAME", "arguments": {"PARAMETER": VALUE}} in JSON; optional parameters need this form.
"""  # noqa: E501 - a paragraph for the model is one line


def request(messages: Sequence[Message], tools: Sequence[ToolSchema], *, echo_reasoning: bool) -> dict[str, Any]:
    """The conversation as a request's fields. Thoughts have no place in it, whatever `echo_reasoning` says."""
    return {"messages": written.messages(messages, written.describe(RULES, tools, _form), write)}


def grammar(tools: Sequence[ToolSchema]) -> FencedGrammar:
    return FencedGrammar({tool.name for tool in tools})


class FencedGrammar:
    def __init__(self, tools: Collection[str]) -> None:
        names = "|".join([*(action for action, tool in ACTIONS.items() if tool in tools), "tool-call"])
        self._open = re.compile(rf"^ {{0,3}}(`{{3,64}})({names})[ \t]{{0,16}}(?:\r?\n|\Z)", re.MULTILINE)

    def opener(self, text: str, start: int) -> re.Match[str] | None:
        return self._open.search(text, start)

    def undecided(self, text: str, start: int) -> int:
        maybe = _MAYBE.search(text, max(start, text.rfind("\n")))
        return maybe.start() if maybe else len(text)

    def read(self, text: str, opener: re.Match[str], *, cut: bool) -> Found | None:
        action = opener[2]
        end = closing(_tokens(len(opener[1]), text, opener.end()), extend=action in ("write-file", "exit"))
        if end is None and not cut and action != "exit":
            return None
        call = _call(action, text[opener.end() : end.start if end else len(text)])
        return Found((call,), end.end if end else len(text)) if call else None


def _tokens(fence: int, text: str, start: int) -> Iterator[Token]:
    for line in re.finditer(rf"^ {{0,3}}`{{{fence},}}([^`\n]*)$", text[start:], re.MULTILINE):
        yield Token(start + line.start(), start + line.end(), opens=bool(line[1].strip()), counts=True)


def _call(action: str, body: str) -> Spoken | None:
    if action == "tool-call":
        return json_call(body)
    arguments: dict[str, Any]
    if action == "bash-action":
        arguments = {"command": _less_one_break(body)}
    elif action == "exit":
        arguments = {"summary": _less_one_break(body)}
    elif action == "read-file":
        arguments = _header(body)
    else:
        separator = _SEPARATOR.search(body)
        arguments = _header(body[: separator.start()] if separator else body)
        if separator:
            arguments["content"] = body[separator.end() :].removeprefix("\n")
    return Spoken(ACTIONS[action], packed(arguments))


def _header(text: str) -> dict[str, Any]:
    """Lines `path: a.py` and `start: 1`; a line without a word in front is the path."""
    arguments: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        named = _HEADER.fullmatch(line)
        arguments.setdefault(named[1] if named else "path", named[2] if named else line)
    return arguments


def _less_one_break(text: str) -> str:
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def write(call: ToolCall) -> str:
    """The call as a model of this protocol writes it; what has no form of its own goes as JSON."""
    arguments = written.arguments_of(call)
    if arguments is None:
        return _general(call.name, call.arguments[: written.UNREADABLE_SHOWN])
    own = _own(call.name, arguments)
    return own if own is not None else _general(call.name, arguments)


def _general(name: str, arguments: Any) -> str:
    return f"```tool-call\n{packed({'name': name, 'arguments': arguments})}\n```"


def _own(name: str, arguments: dict[str, Any]) -> str | None:
    match name:
        case "bash" if values := written.strings(arguments, "command"):
            return _block("bash-action", f"{values[0]}\n")
        case "done" if values := written.strings(arguments, "summary"):
            return _block("exit", f"{values[0]}\n")
        case "read_file" if (values := written.strings(arguments, "path")) and _is_plain(values[0]):
            return _block("read-file", f"{values[0]}\n")
        case "write_file" if (values := written.strings(arguments, "path", "content")) and _is_plain(values[0]):
            # The last line of a block always has an end; a file whose last line has none goes as JSON.
            whole = values[1].endswith("\n") or not values[1]
            return _block("write-file", f"{values[0]}\n---\n{values[1]}") if whole else None
        case _:
            return None


def _block(action: str, body: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in _RUNS.findall(body)), default=0))
    return f"{fence}{action}\n{body}{fence}"


def _is_plain(path: str) -> bool:
    one_line = len(path.splitlines()) == 1 and path == path.strip()
    return one_line and path != "---" and not _HEADER.fullmatch(path)


def _form(tool: ToolSchema) -> str:
    arguments = written.example(tool)
    if tool.name == "write_file":
        arguments["content"] = "…\n"
    own = _own(tool.name, arguments)
    return own if own is not None else _general(tool.name, arguments)
