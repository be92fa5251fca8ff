"""Replies in which calls are written as text, each with the text and the calls it stands for."""

from __future__ import annotations

import json
from typing import Any

from worker.llm.protocols.grammar import Spoken
from worker.llm.protocols.reader import CallReader
from worker.llm.protocols.table import PROTOCOLS
from worker.tools.registry import TOOLS

SCHEMAS = tuple(tool.schema for tool in TOOLS)
Calls = list[tuple[str, Any]]


def read(protocol: str, *pieces: str, cut: bool = False) -> tuple[str, tuple[Spoken, ...]]:
    reader = CallReader(PROTOCOLS[protocol].grammar(SCHEMAS))
    shown = "".join(reader.feed(piece) for piece in pieces)
    rest, calls = reader.end(cut=cut)
    return shown + rest, calls


def values(calls: tuple[Spoken, ...]) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in calls]


XML: dict[str, tuple[str, str, Calls]] = {
    "every form, in the order of the document, and the text between them": (
        'I look.\n<view path="a.py"/>\nThen:\n<create path="b.py">\nx = 1\n</create>\n'
        '<str_replace path="c"><old>a</old><new>b</new></str_replace><bash>\nmake\n</bash>\n<done>All well.</done>',
        "I look.\n\nThen:",
        [
            ("read_file", {"path": "a.py"}),
            ("write_file", {"path": "b.py", "content": "x = 1\n"}),
            ("edit_file", {"path": "c", "old": "a", "new": "b"}),
            ("bash", {"command": "make"}),
            ("done", {"summary": "All well."}),
        ],
    ),
    "attributes": (
        '<view path=\'a b.py\' start="2" end = "9" /><bash timeout_s="5">ls</bash>',
        "",
        [
            ("read_file", {"path": "a b.py", "start": "2", "end": "9"}),
            ("bash", {"timeout_s": "5", "command": "ls"}),
        ],
    ),
    "any other tool": (
        '<tool name="search">{"pattern": "a<b"}</tool>',
        "",
        [("search", {"pattern": "a<b"})],
    ),
    "an unclosed done": ("Good.\n<done>\nIt works.\n", "Good.", [("done", {"summary": "It works."})]),
    "no decoding": ("<bash>echo '&amp;' && ls</bash>", "", [("bash", {"command": "echo '&amp;' && ls"})]),
    "content with a whole call in it": (
        '<create path="doc.md">\nWrite <create path="x">y</create> so.\n</create>\n<bash>ls</bash>',
        "",
        [
            ("write_file", {"path": "doc.md", "content": 'Write <create path="x">y</create> so.\n'}),
            ("bash", {"command": "ls"}),
        ],
    ),
    "content with a closing tag too many": (
        '<create path="doc.md">\n</create>\nends it.\n</create>\n<create path="e">\ne\n</create>',
        "",
        [
            ("write_file", {"path": "doc.md", "content": "</create>\nends it.\n"}),
            ("write_file", {"path": "e", "content": "e\n"}),
        ],
    ),
    "content with an opening tag too many": (
        '<create path="doc.md">\n<create path="x">\n</create>\n<create path="e">\ne\n</create>',
        "",
        [
            ("write_file", {"path": "doc.md", "content": '<create path="x">\n'}),
            ("write_file", {"path": "e", "content": "e\n"}),
        ],
    ),
    "a closing tag in quotes": ("<bash>echo '</bash>'</bash>", "", [("bash", {"command": "echo '</bash>'"})]),
    "another call's tags inside": (
        '<create path="s.sh">\n<bash>rm x</bash>\n</create>',
        "",
        [("write_file", {"path": "s.sh", "content": "<bash>rm x</bash>\n"})],
    ),
    "line breaks of the content's own": (
        '<str_replace path="c">\n<old>\na\n\n</old>\n<new>\n</new>\n</str_replace>',
        "",
        [("edit_file", {"path": "c", "old": "a\n", "new": ""})],
    ),
    "a replacement without its new text is for the tool to refuse": (
        '<str_replace path="c"><old>a</old></str_replace>',
        "",
        [("edit_file", {"path": "c"})],
    ),
    "malformed and unclosed tags are text": (
        'Use <bash> or <view path=a.py/> or <view "x"/> or <create path="x">, if 1 < 2 <b>',
        'Use <bash> or <view path=a.py/> or <view "x"/> or <create path="x">, if 1 < 2 <b>',
        [],
    ),
    "a mention behind a backtick is text": ("Say `<bash>ls</bash>` to me.", "Say `<bash>ls</bash>` to me.", []),
    "a call behind an unclosed tag": ('<bash>\n<view path="a"/>', "<bash>", [("read_file", {"path": "a"})]),
}

FENCED: dict[str, tuple[str, str, Calls]] = {
    "every form": (
        "Look:\n```read-file\na.py\n```\nand\n```write-file\nb.py\n---\nx = 1\n```\n```bash-action\nmake\ntest\n```\n"
        '```tool-call\n{"name": "search", "arguments": {"pattern": "x"}}\n```\n```exit\nAll well.\n```\n',
        "Look:\n\nand",
        [
            ("read_file", {"path": "a.py"}),
            ("write_file", {"path": "b.py", "content": "x = 1\n"}),
            ("bash", {"command": "make\ntest"}),
            ("search", {"pattern": "x"}),
            ("done", {"summary": "All well."}),
        ],
    ),
    "named header lines": (
        "```read-file\npath: a.py\nstart: 3\nend: 4\n```\n```write-file\npath: b\n---\n---\n```",
        "",
        [
            ("read_file", {"path": "a.py", "start": "3", "end": "4"}),
            ("write_file", {"path": "b", "content": "---\n"}),
        ],
    ),
    "an unclosed exit": ("```exit\nIt works.", "", [("done", {"summary": "It works."})]),
    "an empty exit": ("```exit", "", [("done", {"summary": ""})]),
    "content with a named block": (
        "```write-file\nR.md\n---\n# R\n```sh\nls\n```\nend\n```\n```bash-action\nls\n```",
        "",
        [
            ("write_file", {"path": "R.md", "content": "# R\n```sh\nls\n```\nend\n"}),
            ("bash", {"command": "ls"}),
        ],
    ),
    "content with a nameless block": (
        "```write-file\nR.md\n---\n```\nls\n```\n```\nDone.",
        "Done.",
        [("write_file", {"path": "R.md", "content": "```\nls\n```\n"})],
    ),
    "a longer fence holds anything": (
        "````write-file\nR.md\n---\n```bash-action\nrm x\n```\n```\n````\nThen\n```\nprose\n```",
        "Then\n```\nprose\n```",
        [("write_file", {"path": "R.md", "content": "```bash-action\nrm x\n```\n```\n"})],
    ),
    "an example behind a command is text": (
        "```bash-action\nls\n```\nIt shows\n```\na.py\n```",
        "It shows\n```\na.py\n```",
        [("bash", {"command": "ls"})],
    ),
    "other blocks, and names in a line, are text": (
        "```python\nx = 1\n```\nand ```bash-action is\n ```exit-code\n```bash-action now\nls\n```",
        "```python\nx = 1\n```\nand ```bash-action is\n ```exit-code\n```bash-action now\nls\n```",
        [],
    ),
    "an unclosed block is text": ("```bash-action\nls", "```bash-action\nls", []),
    "CRLF": ("```bash-action\r\nls\r\n```\r\n", "", [("bash", {"command": "ls"})]),
    "JSON that is none is text": ("```tool-call\nsearch x\n```", "```tool-call\nsearch x\n```", []),
}

QWEN = "<tool_call>\n<function=bash>\n<parameter=command>\necho qwen\n</parameter>\n</function>\n</tool_call>"
DIALECTS: dict[str, tuple[str, str, Calls]] = {
    "C13a Qwen": (f"I will run it.\n{QWEN}", "I will run it.", [("bash", {"command": "echo qwen"})]),
    "C13b GLM": (
        "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>echo glm</arg_value>\n</tool_call>",
        "",
        [("bash", {"command": "echo glm"})],
    ),
    "C13c Hermes": (
        '<tool_call>\n{"name": "bash", "arguments": {"command": "echo hermes"}}\n</tool_call>',
        "",
        [("bash", {"command": "echo hermes"})],
    ),
    "C13d MiniMax, two calls": (
        '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">echo one</parameter>\n</invoke>\n'
        '<invoke name="bash">\n<parameter name="command">echo two</parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        [("bash", {"command": "echo one"}), ("bash", {"command": "echo two"})],
    ),
    "C13e prose": (
        "Use <tool_call> tags to call tools, like `<tool_call>{...}</tool_call>`. Nothing to do.",
        "Use <tool_call> tags to call tools, like `<tool_call>{...}</tool_call>`. Nothing to do.",
        [],
    ),
    "C13f no decoding": (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.html\n</parameter>\n<parameter=content>\n"
        "<b>1 &amp; 2</b>\n</parameter>\n</function>\n</tool_call>",
        "",
        [("write_file", {"path": "a.html", "content": "<b>1 &amp; 2</b>"})],
    ),
    "a value that holds the closing tags": (
        "<tool_call><function=bash><parameter=command>cat <<E\n</parameter>\n</function>x\n</tool_call>\nE\n"
        "</parameter></function></tool_call>",
        "",
        [("bash", {"command": "cat <<E\n</parameter>\n</function>x\n</tool_call>\nE\n"})],
    ),
    "several blocks": (
        f"{QWEN}\n{QWEN.replace('qwen', 'two')}\nBoth.",
        "Both.",
        [("bash", {"command": "echo qwen"}), ("bash", {"command": "echo two"})],
    ),
    "without arguments": (
        "<tool_call>list_files\n</tool_call><tool_call>nothing</tool_call>",
        "<tool_call>nothing</tool_call>",
        [("list_files", {})],
    ),
    "a server that stops at the closing tag": (
        QWEN.removesuffix("</tool_call>"),
        "",
        [("bash", {"command": "echo qwen"})],
    ),
    "half a call": (QWEN[:60], QWEN[:60], []),
}

MARKS = [
    "<", ">", "/", "`", "```", "````", "\n", "\r\n", " ", "---\n", '"', "'", "{", "}", "a.py", "é", "\0",
    "<bash>", "</bash>", '<view path="a"/>', '<create path="a">', "</create>", "<done>", "<old>", "</old>", "<new>",
    "</new>", '<str_replace path="a">', "</str_replace>", '<tool name="x">', "</tool>",
    "```bash-action\n", "```write-file\n", "```read-file\n", "```exit\n", "```tool-call\n", '{"name": "x"}',
    "<tool_call>", "</tool_call>", "<function=bash>", "</function>", "<parameter=command>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "bash", "<minimax:tool_call>", "</minimax:tool_call>",
    '<invoke name="bash">', "</invoke>", '<parameter name="command">',
]  # fmt: skip
"""What texts are made of that are hard to read."""
