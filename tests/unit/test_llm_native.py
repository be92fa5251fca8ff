from __future__ import annotations

import json

import pytest

from worker.llm.messages import Assistant, System, ToolCall, ToolResult, ToolSchema, User
from worker.llm.protocols import native


def test_a_conversation_as_a_request() -> None:
    conversation = [
        System("You work."),
        User("Fix it."),
        Assistant("I look.", (ToolCall("a", "bash", '{"command": "ls"}'),), reasoning="hm", finish="tool_calls"),
        ToolResult("a", "bash", "x.py"),
        Assistant("Done."),
    ]
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    assert native.messages(conversation, echo_reasoning=False) == [
        {"role": "system", "content": "You work."},
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "x.py"},
        {"role": "assistant", "content": "Done."},
    ]
    echoed = native.messages(conversation, echo_reasoning=True)
    assert echoed[2] == {"role": "assistant", "content": "I look.", "tool_calls": [call], "reasoning_content": "hm"}
    assert "reasoning_content" not in echoed[4]


def test_text_that_is_not_there_is_null_and_an_empty_message_is_left_out() -> None:
    calls = (ToolCall("a", "todo", "{}"),)
    sent = native.messages([Assistant("", calls), Assistant(" \n"), User("go on")], echo_reasoning=False)
    assert [message["role"] for message in sent] == ["assistant", "user"]
    assert sent[0]["content"] is None


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("{\"command\":\"echo '}{' ',}'\"}", "{\"command\":\"echo '}{' ',}'\"}"),
        ("", "{}"),
        (" \n", "{}"),
        ("null", "{}"),
        ('{"path":"x","content":"li', '{"unreadable": "{\\"path\\":\\"x\\",\\"content\\":\\"li"}'),
        ("[1]", '{"unreadable": "[1]"}'),
        ("[" * 100_000, json.dumps({"unreadable": "[" * 2_000})),
    ],
)
def test_arguments_are_sent_back_as_an_object_always_and_unchanged_where_they_are_one(
    arguments: str, sent: str
) -> None:
    body = native.messages([Assistant("", (ToolCall("a", "bash", arguments),))], echo_reasoning=False)
    assert body[0]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize(
    ("name", "sent"), [("functions.bash", "functions_bash"), ("", "unnamed"), ("a" * 90, "a" * 64), ("né e", "n__e")]
)
def test_names_are_sent_back_in_a_form_every_provider_takes(name: str, sent: str) -> None:
    body = native.messages([Assistant("", (ToolCall("a", name, "{}"),))], echo_reasoning=False)
    assert body[0]["tool_calls"][0]["function"]["name"] == sent


def test_lone_surrogates_never_reach_the_wire() -> None:
    sent = native.messages([ToolResult("a", "bash", "caf\udce9 é")], echo_reasoning=False)
    assert sent == [{"role": "tool", "tool_call_id": "a", "content": "caf? é"}]


def test_tools() -> None:
    schema = ToolSchema("bash", "Runs a command.", {"type": "object"})
    function = {"name": "bash", "description": "Runs a command.", "parameters": {"type": "object"}}
    assert native.tools([schema]) == [{"type": "function", "function": function}]
