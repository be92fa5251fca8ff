"""Calls written as text: what is a call, what stays text, what is shown on the way, and what is sent back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from protocol_cases import DIALECTS, FENCED, MARKS, QWEN, SCHEMAS, XML, Calls, read, values

from worker.llm.messages import Assistant, Message, System, ToolCall, ToolResult, User
from worker.llm.protocols import fenced, native, xml
from worker.llm.protocols.grammar import Spoken
from worker.llm.protocols.reader import CallReader
from worker.llm.protocols.table import PROTOCOLS

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
