"""Bytes in, one reply out: what compatible servers really send, and arbitrary bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ContextOverflow, ModelError
from worker.llm.assembler import MAX_REPLY_BYTES, Assembled, Assembler
from worker.llm.failures import Transient
from worker.llm.messages import TokenUsage, ToolCall, ToolSchema
from worker.llm.protocols.table import PROTOCOLS

BASH = ToolSchema("bash", "Runs a command.", {"type": "object"})


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}], **more}


def call(index: Any = 0, id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return {"tool_calls": [{**fields, "type": "function", "function": function}]}


def sse(*chunks: Any, done: bool = True, end: str = "\n\n") -> bytes:
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return "".join(f"data: {line}{end}" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def assemble(*parts: bytes, taken: frozenset[str] = frozenset(), protocol: str | None = None) -> tuple[str, Assembled]:
    assembler = Assembler(taken, PROTOCOLS[protocol].grammar([BASH]) if protocol else None)
    shown = "".join(assembler.feed(part) for part in parts)
    rest, assembled = assembler.finish()
    return shown + rest, assembled


def calls_of(*chunks: Any, taken: frozenset[str] = frozenset()) -> list[tuple[str, str, str, bool]]:
    _, assembled = assemble(sse(*chunks), taken=taken)
    return [(c.id, c.name, c.arguments, c.complete) for c in assembled.message.calls]


END = chunk(finish="tool_calls")

CALLS = {
    "an ordinary call in pieces": (
        [chunk(call(0, "a", "bash", "")), chunk(call(0, arguments='{"command":')), chunk(call(0, arguments='"ls"}'))],
        [("a", "bash", '{"command":"ls"}', True)],
    ),
    "no index, two calls in pieces": (
        [
            chunk(call(None, "a", "read", "")),
            chunk(call(None, arguments='{"p":')),
            chunk(call(None, arguments="1}")),
            chunk(call(None, "b", "read", '{"p":2}')),
        ],
        [("a", "read", '{"p":1}', True), ("b", "read", '{"p":2}', True)],
    ),
    "id and name in every delta": (
        [
            chunk(call(0, "a", "bash", '{"c":')),
            chunk(call(0, "a", "bash", '"p"}')),
            chunk(call(0, "a", "bash", "")),
        ],
        [("a", "bash", '{"c":"p"}', True)],
    ),
    "id and name in every delta, no index": (
        [chunk(call(None, "a", "bash", '{"c":')), chunk(call(None, "a", "bash", '"p"}'))],
        [("a", "bash", '{"c":"p"}', True)],
    ),
    "a name in pieces": (
        [chunk(call(0, "a", "read", "")), chunk(call(0, name="_file")), chunk(call(0, arguments="{}"))],
        [("a", "read_file", "{}", True)],
    ),
    "a name that grows": (
        [chunk(call(0, "a", "read")), chunk(call(0, "a", "read_file")), chunk(call(0, arguments="{}"))],
        [("a", "read_file", "{}", True)],
    ),
    "arguments before the name": (
        [chunk(call(0, "a", arguments='{"c":')), chunk(call(0, name="bash", arguments="1}"))],
        [("a", "bash", '{"c":1}', True)],
    ),
    "interleaved": (
        [
            chunk(call(0, "a", "x", '{"p"')),
            chunk(call(1, "b", "y", '{"q"')),
            chunk(call(0, arguments=":1}")),
            chunk(call(1, arguments=":2}")),
        ],
        [("a", "x", '{"p":1}', True), ("b", "y", '{"q":2}', True)],
    ),
    "two calls, both index 0": (
        [chunk(call(0, "a", "x", "{}")), chunk(call(0, "b", "y", "{}"))],
        [("a", "x", "{}", True), ("b", "y", "{}", True)],
    ),
    "two calls, both index 0, no ids": (
        [chunk(call(0, None, "x", "{}")), chunk(call(0, None, "x", '{"q":2}'))],
        [("c00000001", "x", "{}", True), ("c00000002", "x", '{"q":2}', True)],
    ),
    "one id for two calls": (
        [chunk(call(0, "dup", "x", "{}")), chunk(call(1, "dup", "y", "{}"))],
        [("dup", "x", "{}", True), ("c00000002", "y", "{}", True)],
    ),
    "one id for two whole calls, no index": (
        [chunk(call(None, "dup", "x", "{}")), chunk(call(None, "dup", "y", "{}"))],
        [("dup", "x", "{}", True), ("c00000002", "y", "{}", True)],
    ),
    "missing and unusable ids": (
        [chunk(call(0, None, "x", "{}")), chunk(call(1, "", "y", "{}")), chunk(call(2, "a b\n", "z", "{}"))],
        [("c00000001", "x", "{}", True), ("c00000002", "y", "{}", True), ("c00000003", "z", "{}", True)],
    ),
    "arguments as an object": (
        [chunk(call(0, "a", "bash", {"command": "ls"}))],
        [("a", "bash", '{"command": "ls"}', True)],
    ),
    "function null, then the rest": (
        [
            chunk(call(0, "a", "x", "{")),
            chunk({"tool_calls": [{"index": 0, "function": None}]}),
            chunk(call(0, arguments="}")),
        ],
        [("a", "x", "{}", True)],
    ),
    "a fragment of nothing is no call": (
        [chunk({"tool_calls": [{"index": 0}, None, 7, {"index": True, "function": "x"}]}), chunk(call(1, "a", "x"))],
        [("a", "x", "", True)],
    ),
    "tool_calls as one object": (
        [chunk({"tool_calls": call(0, "a", "x", "{}")["tool_calls"][0]})],
        [("a", "x", "{}", True)],
    ),
    "the old function_call": (
        [chunk({"function_call": {"name": "x", "arguments": '{"p":'}}), chunk({"function_call": {"arguments": "1}"}})],
        [("c00000001", "x", '{"p":1}', True)],
    ),
    "a call without a name stays a call": ([chunk(call(0, "a", "", "{}"))], [("a", "", "{}", True)]),
    "arguments cut inside a string": (
        [chunk(call(0, "a", "write_file", '{"path":"x","content":"line\\n'))],
        [("a", "write_file", '{"path":"x","content":"line\\n', False)],
    ),
    "a raw newline and a trailing comma are whole": (
        [chunk(call(0, "a", "bash", '{"command":"a\nb",}'))],
        [("a", "bash", '{"command":"a\nb",}', True)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    chunks, expected = CALLS[name]
    assert calls_of(*chunks, END) == expected


def test_ids_the_conversation_has_are_not_used_again() -> None:
    taken = frozenset({"call_0", "c00000002"})
    assert calls_of(chunk(call(0, "call_0", "x", "{}")), END, taken=taken) == [("c00000003", "x", "{}", True)]


def test_an_empty_last_call_of_a_reply_cut_by_length_is_not_complete() -> None:
    chunks = [chunk(call(0, "a", "list_files", "")), chunk(call(1, "b", "list_files", "")), chunk(finish="length")]
    assert calls_of(*chunks) == [("a", "list_files", "", True), ("b", "list_files", "", False)]


@pytest.mark.parametrize(
    ("finish", "with_call", "expected", "truncated"),
    [
        ("stop", False, "stop", False),
        ("stop", True, "tool_calls", False),
        ("tool_calls", False, "stop", False),
        ("length", True, "length", True),
        ("max_tokens", False, "length", True),
        (None, False, "stop", False),
        ("something_new", False, "stop", False),
    ],
)
def test_how_a_reply_ends(finish: str | None, with_call: bool, expected: str, truncated: bool) -> None:
    chunks = [chunk({"content": "hi"}), *([chunk(call(0, "a", "x", "{}"))] if with_call else [])]
    _, assembled = assemble(sse(*chunks, chunk(finish=finish)))
    assert (assembled.message.finish, assembled.truncated) == (expected, truncated)


def test_chunks_without_choices_null_deltas_and_a_usage_chunk() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
    shown, assembled = assemble(
        sse(
            {"choices": []},
            {"choices": None},
            chunk({"role": "assistant", "content": None}),
            {"choices": [{"delta": {"content": "ok"}}]},
            {"choices": [{"index": 1, "delta": {"content": "the second choice"}}]},
            {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        )
    )
    assert shown == assembled.message.text == "ok"
    assert assembled.usage == TokenUsage(input=12, cached=5, output=7, known=True)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, TokenUsage(known=False)),
        ({}, TokenUsage(known=False)),
        ({"prompt_tokens": "12", "completion_tokens": 7}, TokenUsage(known=False)),
        ({"prompt_tokens": -1, "completion_tokens": 7}, TokenUsage(known=False)),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}, TokenUsage(9, 4, 1)),
        ({"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 400}, TokenUsage(9, 9, 1)),
    ],
)
def test_usage(usage: Any, expected: TokenUsage) -> None:
    _, assembled = assemble(sse(chunk({"content": "x"}, "stop", usage=usage)))
    assert assembled.usage == expected


def test_a_json_body_although_a_stream_was_asked_for() -> None:
    message = {"content": "Hi.", "tool_calls": call(None, "a", "bash", {"command": "pwd"})["tool_calls"]}
    body = {"choices": [{"finish_reason": "tool_calls", "message": message}], "usage": None}
    assembler = Assembler()
    assembler.feed(json.dumps(body, indent=2).encode())
    shown, assembled = assembler.finish()
    assert shown == assembled.message.text == "Hi."
    assert assembled.message.calls == (ToolCall("a", "bash", '{"command": "pwd"}'),)
    assert json.loads(assembler.lines[0]) == body
    assert "\n" not in assembler.lines[0]


def test_framing_comments_crlf_bom_no_space_events_and_no_blank_lines() -> None:
    head = b"\xef\xbb\xbf: ping\r\n\r\nevent: message\r\nretry: 5\r\nid\r\n"
    body = (
        'data:{"choices":[{"delta":{"content":"h\u00e9llo "}}]}\r\ndata:{"choices":[{"delta":{"content":"日本 🚀"}}]}'
    )
    tail = '\r\rdata: ping\n\ndata: {"choices":[{"delta":\ndata: {},"finish_reason":"stop"}]}'
    whole = head + (body + tail).encode()
    assert assemble(*(whole[i : i + 1] for i in range(len(whole))))[0] == "héllo 日本 🚀"


def test_a_surrogate_pair_split_over_two_chunks_is_one_character_and_a_lone_one_is_replaced() -> None:
    shown, assembled = assemble(
        sse(chunk({"content": "a\ud83d"}), chunk({"content": "\ude80b\ud83d"}), chunk(finish="stop"))
    )
    assert shown == assembled.message.text == "a🚀b\ufffd"


@pytest.mark.parametrize(
    ("pieces", "text", "reasoning"),
    [
        (["<think>hm</think>", "\n\nYes."], "Yes.", "hm"),
        (["  <th", "ink>h", "m</thi", "nk>", " ", "Yes."], "Yes.", "hm"),
        (["<think>a</think>\n<think>b</think>c"], "c", "ab"),
        (["<think>never", " closed"], "", "never closed"),
        (["<thin air"], "<thin air", ""),
        (["Use <think> and </think>."], "Use <think> and </think>.", ""),
        (["\n text"], "\n text", ""),
        (["<"], "<", ""),
    ],
)
def test_think_blocks_in_front_are_kept_out_of_the_text(pieces: list[str], text: str, reasoning: str) -> None:
    shown, assembled = assemble(sse(*(chunk({"content": piece}) for piece in pieces), chunk(finish="stop")))
    assert (shown, assembled.message.text, assembled.message.reasoning) == (text, text, reasoning)


def test_reasoning_fields_and_typed_parts_are_kept_apart_from_the_text() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "3"}]}, {"type": "text", "text": "y"}]
    _, assembled = assemble(
        sse(
            chunk({"reasoning_content": "1", "reasoning": "1"}),
            chunk({"reasoning": "2"}),
            chunk({"content": "x"}),
            chunk({"content": parts}),
            chunk(finish="stop"),
        )
    )
    assert (assembled.message.text, assembled.message.reasoning) == ("xy", "123")


BROKEN = {
    "nothing at all": b"",
    "only [DONE]": sse(),
    "text, then the end": sse(chunk({"content": "The answer is"}), done=False),
    "half a chunk": sse(chunk({"content": "a"}), done=False) + b'data: {"choices":[{"del',
    "a damaged chunk": sse('{"choices":', chunk(finish="stop")),
    "an error object": sse({"error": {"message": "upstream overloaded", "code": 502}}),
    "an error as text": sse({"error": "overloaded"}),
    "an error event": b'event: error\ndata: {"message": "overloaded"}\n\n',
    "an interrupted finish": sse(chunk({"content": "a"}, "network_error")),
    "half a JSON body": b'{"choices": [{"mess',
    "a JSON body without choices": b'{"message": "busy"}',
    "depth": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_broke_off_is_transient(name: str) -> None:
    with pytest.raises(Transient):
        assemble(BROKEN[name])


def test_a_web_page_with_200_fails_for_good() -> None:
    with pytest.raises(ModelError, match="web page") as caught:
        assemble(b"\n <!DOCTYPE html><html>")
    assert not isinstance(caught.value, Transient)


def test_an_overflow_inside_a_stream_is_an_overflow() -> None:
    with pytest.raises(ContextOverflow):
        assemble(sse({"error": {"code": "context_length_exceeded", "message": "too long"}}))


def test_the_content_filter_ends_it_for_good() -> None:
    with pytest.raises(ModelError, match="content filter") as caught:
        assemble(sse(chunk({"content": "I will"}), chunk(finish="content_filter")))
    assert not isinstance(caught.value, Transient)


def test_an_endless_answer_is_cut_off() -> None:
    assembler = Assembler()
    for _ in range(MAX_REPLY_BYTES >> 20):
        assembler.feed(b":" * (1 << 20))
    with pytest.raises(ModelError, match="larger than 32 MB"):
        assembler.feed(b":")


QWEN = "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"


def test_a_call_in_the_text_is_a_call_with_an_id_of_its_own() -> None:
    pieces = [chunk({"content": piece}) for piece in ("I look.\n<tool_", QWEN.removeprefix("<tool_"), "\n" + QWEN)]
    shown, assembled = assemble(sse(*pieces, chunk(finish="stop")), taken=frozenset(["c00000001"]), protocol="native")
    message = assembled.message
    assert (shown, message.text, message.finish) == ("I look.", "I look.", "tool_calls")
    assert message.calls == (
        ToolCall("c00000002", "bash", '{"command": "ls"}'),
        ToolCall("c00000003", "bash", '{"command": "ls"}'),
    )


@pytest.mark.parametrize(
    ("delta", "text", "reasoning"),
    [
        ({"reasoning_content": QWEN}, "", QWEN),
        ({"content": f"<think>{QWEN}</think>nothing to run"}, "nothing to run", QWEN),
        ({"content": f"<think>{QWEN}"}, "", QWEN),
    ],
)
def test_a_call_in_a_thought_is_none(delta: dict[str, Any], text: str, reasoning: str) -> None:
    shown, assembled = assemble(sse(chunk(delta), chunk(finish="stop")), protocol="native")
    message = assembled.message
    assert (shown, message.text, message.calls, message.reasoning) == (text, text, (), reasoning)


def test_beside_a_real_call_markup_in_the_text_is_text() -> None:
    shown, assembled = assemble(
        sse(chunk({"content": QWEN}), chunk(call(0, "a", "bash", '{"command": "ls"}')), END), protocol="native"
    )
    assert (shown, assembled.message.text) == (QWEN, QWEN)
    assert assembled.message.calls == (ToolCall("a", "bash", '{"command": "ls"}'),)


def test_a_spoken_call_that_the_token_limit_cut_off_is_not_complete() -> None:
    _, assembled = assemble(sse(chunk({"content": "<bash>rm -r a"}), chunk(finish="length")), protocol="xml")
    assert assembled.message.calls == (ToolCall("c00000001", "bash", '{"command": "rm -r a"}', complete=False),)
    assert assembled.truncated


def test_what_was_said_has_the_markup_too() -> None:
    assembler = Assembler(grammar=PROTOCOLS["xml"].grammar([BASH]))
    assembler.feed(sse(chunk({"content": "Hi <bash>echo secret"})))
    assert "echo secret" in assembler.said()


texts = st.text(max_size=12) | st.sampled_from(["<bash>", "</bash>", "<tool_call>", "</tool_call>", QWEN, "```exit\n"])
deltas = st.one_of(
    st.builds(lambda t: {"content": t}, texts),
    st.builds(lambda t: {"reasoning_content": t}, texts),
    st.builds(call, st.integers(0, 2), st.sampled_from([None, "a", "b"]), st.sampled_from([None, "bash"]), texts),
)


@given(
    st.lists(deltas, max_size=8),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.sampled_from([None, *PROTOCOLS]),
    st.data(),
)
def test_a_stream_cut_anywhere_assembles_the_same(
    pieces: list[dict[str, Any]], end: str, protocol: str | None, data: st.DataObject
) -> None:
    whole = sse(*map(chunk, pieces), chunk(finish="stop"), end=end * 2)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    shown, assembled = assemble(*parts, protocol=protocol)
    assert (shown, assembled) == assemble(whole, protocol=protocol)
    assert shown == assembled.message.text
    assembled.message.text.encode()


KEYS = ["choices", "delta", "message", "content", "tool_calls", "function", "index", "id", "name", "arguments"]
KEYS += ["usage", "prompt_tokens", "completion_tokens", "finish_reason", "error", "thinking", "text", "code"]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


streams = st.lists(junk, max_size=4).map(lambda items: sse(*items))
bodies = junk.map(lambda body: json.dumps(body).encode())


@given(st.binary(max_size=200) | streams | bodies, st.sampled_from([None, *PROTOCOLS]))
def test_arbitrary_bytes_are_a_reply_or_a_model_error(data: bytes, protocol: str | None) -> None:
    try:
        _, assembled = assemble(data, protocol=protocol)
    except ModelError:
        return
    message = assembled.message
    for text in (message.text, message.reasoning, *(c.id + c.name + c.arguments for c in message.calls)):
        text.encode()
