"""Calls written as text: what is a call, what stays text, what is shown on the way, and what is sent back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.llm.messages import Assistant, Message, System, ToolCall, ToolResult, User
from worker.llm.protocols import fenced, native, xml
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

CASES = [
    *(pytest.param("xml", *case, id=f"xml: {name}") for name, case in XML.items()),
    *(pytest.param("fenced", *case, id=f"fenced: {name}") for name, case in FENCED.items()),
    *(pytest.param("native", *case, id=f"native: {name}") for name, case in DIALECTS.items()),
]


@pytest.mark.parametrize(("protocol", "said", "text", "calls"), CASES)
def test_text_becomes_text_and_calls(protocol: str, said: str, text: str, calls: Calls) -> None:
    shown, found = read(protocol, said)
    assert (shown, values(found)) == (text, calls)
    assert all(call.complete for call in found)


@pytest.mark.parametrize(("protocol", "said", "text", "calls"), CASES)
def test_letter_by_letter_it_is_the_same(protocol: str, said: str, text: str, calls: Calls) -> None:
    shown, found = read(protocol, *said)
    assert (shown, values(found)) == (text, calls)


def test_text_goes_on_at_once_and_markup_never() -> None:
    reader = CallReader(xml.grammar(SCHEMAS))
    assert [reader.feed(piece) for piece in ("Hi", " there <", "b> 1 ", "< 2\n<ba", "sh>", "ls</bash>", "x")] == [
        "Hi", " there", " <b> 1", " < 2", "", "", "",
    ]  # fmt: skip
    assert reader.end(cut=False) == ("\n\nx", (Spoken("bash", '{"command": "ls"}'),))


@pytest.mark.parametrize(
    ("protocol", "said", "text", "call"),
    [
        ("xml", 'So:\n<create path="a.py">\nx = ', "So:", Spoken("write_file", '{"path": "a.py", "content": "x = "}')),
        ("xml", "<bash>ls</bash>", "", Spoken("bash", '{"command": "ls"}')),
        ("fenced", "```bash-action\nrm -r x", "", Spoken("bash", '{"command": "rm -r x"}')),
        ("native", QWEN[:60], "", Spoken("bash", "")),
        ("native", QWEN, "", Spoken("bash", '{"command": "echo qwen"}')),
    ],
)
def test_the_last_call_of_a_cut_off_reply_is_not_whole(protocol: str, said: str, text: str, call: Spoken) -> None:
    assert read(protocol, said, cut=True) == (text, (Spoken(call.name, call.arguments, complete=False),))


def test_a_call_in_front_of_the_last_one_is_whole() -> None:
    _, calls = read("xml", "<bash>ls</bash><bash>rm", cut=True)
    assert [call.complete for call in calls] == [True, False]


def test_json_that_is_not_quite_json_is_passed_on_for_repair() -> None:
    _, calls = read("fenced", '```tool-call\n{"name": "search", "arguments": {"pattern": "x",}}\n```')
    assert calls == (Spoken("search", '{"pattern": "x",}'),)


MARKS = [
    "<", ">", "/", "`", "```", "````", "\n", "\r\n", " ", "---\n", '"', "'", "{", "}", "a.py", "é", "\0",
    "<bash>", "</bash>", '<view path="a"/>', '<create path="a">', "</create>", "<done>", "<old>", "</old>", "<new>",
    "</new>", '<str_replace path="a">', "</str_replace>", '<tool name="x">', "</tool>",
    "```bash-action\n", "```write-file\n", "```read-file\n", "```exit\n", "```tool-call\n", '{"name": "x"}',
    "<tool_call>", "</tool_call>", "<function=bash>", "</function>", "<parameter=command>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "bash", "<minimax:tool_call>", "</minimax:tool_call>",
    '<invoke name="bash">', "</invoke>", '<parameter name="command">',
]  # fmt: skip
SAID = st.lists(st.sampled_from(MARKS) | st.text(max_size=5) | st.just(" " * 70), max_size=30).map("".join)


@given(st.sampled_from(sorted(PROTOCOLS)), SAID, st.booleans(), st.randoms(use_true_random=False))
@example("fenced", "```exit" + " " * 70 + "```exit\n", False, None)
def test_any_text_gives_text_and_calls_however_it_is_cut(protocol: str, said: str, cut: bool, random: Any) -> None:
    whole = read(protocol, said, cut=cut)
    assert read(protocol, *said, cut=cut) == whole
    if random is not None and said:
        places = sorted(random.randrange(len(said)) for _ in range(4))
        pieces = [said[a:b] for a, b in zip([0, *places], [*places, len(said)], strict=True)]
        assert read(protocol, *pieces, cut=cut) == whole
    if not whole[1]:
        assert whole[0] == said


HOSTILE = {
    "xml": ["<bash>", '<view path="', "<str_replace path='a'><old></old><new>", "<tool ", "</done>"],
    "fenced": ["```write-file\n", "```\n", "`" * 80, "```exit\n---\n"],
    "native": [
        "<tool_call>{",
        "<tool_call><function=a><parameter=b>",
        "</tool_call>",
        "<tool_call>a",
        "<arg_key>a</arg_key><arg_value>",
    ],
}


@pytest.mark.parametrize(("protocol", "unit"), [(name, unit) for name, units in HOSTILE.items() for unit in units])
@pytest.mark.parametrize("before", ["", "<str_replace path='a'>", "<tool_call>bash"])
def test_a_hostile_text_is_read_quickly(protocol: str, unit: str, before: str) -> None:
    text = before + unit * (150_000 // len(unit))
    began = time.process_time()
    read(protocol, *(text[at : at + 500] for at in range(0, len(text), 500)), cut=True)
    assert time.process_time() - began < 8


# ------------------------------------------------------------------------------------------------ what is sent

WRITTEN = {
    "xml": [
        ("read_file", {"path": "a.py"}, '<view path="a.py"/>'),
        ("read_file", {"path": "a.py", "start": 1}, '<view path="a.py" start="1"/>'),
        ("write_file", {"path": "a.py", "content": "x\n"}, '<create path="a.py">\nx\n</create>'),
        ("bash", {"command": "ls"}, "<bash>\nls\n</bash>"),
        ("done", {"summary": "ok"}, "<done>\nok\n</done>"),
        ("search", {"pattern": "a<b"}, '<tool name="search">{"pattern": "a\\u003cb"}</tool>'),
        ("bash", {"command": "echo '</bash>'"}, '<tool name="bash">{"command": "echo \'\\u003c/bash>\'"}</tool>'),
        (
            "edit_file",
            {"path": "c", "old": "a", "new": "b"},
            '<str_replace path="c">\n<old>\na\n</old>\n<new>\nb\n</new>\n</str_replace>',
        ),
    ],
    "fenced": [
        ("read_file", {"path": "a.py"}, "```read-file\na.py\n```"),
        ("write_file", {"path": "a.py", "content": "```\n"}, "````write-file\na.py\n---\n```\n````"),
        ("bash", {"command": "ls"}, "```bash-action\nls\n```"),
        ("done", {"summary": "ok"}, "```exit\nok\n```"),
        (
            "bash",
            {"command": "ls", "timeout_s": 5},
            '```tool-call\n{"name": "bash", "arguments": {"command": "ls", "timeout_s": 5}}\n```',
        ),
    ],
}


@pytest.mark.parametrize(
    ("protocol", "name", "arguments", "form"),
    [(protocol, *case) for protocol, cases in WRITTEN.items() for case in cases],
)
def test_a_call_is_sent_back_in_the_protocol_s_own_form(protocol: str, name: str, arguments: Any, form: str) -> None:
    write = {"xml": xml.write, "fenced": fenced.write}[protocol]
    assert write(ToolCall("a", name, json.dumps(arguments))) == form


VALUES = st.lists(st.sampled_from(MARKS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=8)
VALUE = VALUES.map("".join)
MADE = st.one_of(
    st.tuples(st.just("bash"), st.fixed_dictionaries({"command": VALUE}, optional={"timeout_s": st.integers()})),
    st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": VALUE, "content": VALUE})),
    st.tuples(st.just("edit_file"), st.fixed_dictionaries({"path": VALUE, "old": VALUE, "new": VALUE})),
    st.tuples(st.just("done"), st.fixed_dictionaries({"summary": VALUE})),
    st.tuples(st.just("todo"), st.dictionaries(VALUE, VALUE)),
    st.tuples(st.just("read_file"), st.fixed_dictionaries({"path": VALUE})),
)


@given(st.sampled_from(["xml", "fenced"]), st.lists(MADE, min_size=1, max_size=3))
def test_what_is_sent_back_reads_as_the_same_calls(protocol: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    calls = tuple(ToolCall(f"c{at}", name, json.dumps(arguments)) for at, (name, arguments) in enumerate(made))
    body = PROTOCOLS[protocol].request([Assistant("", calls)], [], echo_reasoning=False)
    _, found = read(protocol, body["messages"][0]["content"])
    assert values(found) == made


def conversation() -> list[Message]:
    return [
        System("You work.\n"),
        User("Fix it."),
        Assistant("I look.", (ToolCall("a", "bash", '{"command": "ls"}'), ToolCall("b", "todo", '{"items": [')), "hm"),
        ToolResult("a", "bash", "x.py"),
        ToolResult("b", "todo", "Error: broken", ok=False),
        User("[Patchyard] Finish now."),
        Assistant(" "),
        Assistant("Done."),
    ]


def test_a_conversation_as_plain_messages() -> None:
    body = PROTOCOLS["xml"].request(conversation(), SCHEMAS, echo_reasoning=True)
    assert list(body) == ["messages"]
    system, *others = body["messages"]
    assert system["role"] == "system"
    assert system["content"].startswith("You work.\n\n# How to call tools\n")
    assert others == [
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": 'I look.\n\n<bash>\nls\n</bash>\n\n<tool name="todo">{"items": [</tool>',
        },
        {
            "role": "user",
            "content": "[result of bash]\nx.py\n\n[result of todo]\nError: broken\n\n[Patchyard] Finish now.",
        },
        {"role": "assistant", "content": "Done."},
    ]


def test_without_a_system_text_the_description_is_one() -> None:
    body = PROTOCOLS["fenced"].request([User("go")], SCHEMAS, echo_reasoning=False)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert PROTOCOLS["fenced"].request([User("go")], [], echo_reasoning=False) == {
        "messages": [{"role": "user", "content": "go"}]
    }


@pytest.mark.parametrize("protocol", ["xml", "fenced"])
def test_every_tool_is_described_with_a_form_that_calls_it(protocol: str) -> None:
    text = PROTOCOLS[protocol].request([], SCHEMAS, echo_reasoning=False)["messages"][0]["content"]
    for schema in SCHEMAS:
        section = text.partition(f"## {schema.name}\n")[2].partition("\n## ")[0]
        assert section.startswith(schema.description)
        _, calls = read(protocol, section)
        assert [call.name for call in calls] == [schema.name]
        assert json.loads(calls[0].arguments).keys() == set(schema.parameters["required"])
        assert all(f"- `{name}` (" in section for name in schema.parameters["properties"])


def test_native_sends_tools_as_a_field() -> None:
    body = native.request([User("go")], SCHEMAS[:1], echo_reasoning=False)
    assert (body["messages"], [tool["function"]["name"] for tool in body["tools"]]) == (
        [{"role": "user", "content": "go"}],
        ["bash"],
    )
    assert list(native.request([User("go")], [], echo_reasoning=False)) == ["messages"]
