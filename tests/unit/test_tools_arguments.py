"""Arguments: valid JSON byte for byte, harmless faults mended, everything else refused in one sentence."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.tools.arguments import BadArguments, check, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("raw", ["", " \n", "{}", "null", '""', "```json\n{}\n```"])
def test_nothing_means_no_arguments(raw: str) -> None:
    assert parse(raw) == {}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (json.dumps('{"command":"pwd"}'), {"command": "pwd"}),
        ('{"command":"echo a\necho b"}', {"command": "echo a\necho b"}),
        ('{"command":"echo a\necho b",}', {"command": "echo a\necho b"}),
        ("{'command': 'ls'}", {"command": "ls"}),
        ('{command: "ls", "replace_all": True}', {"command": "ls", "replace_all": True}),
        ('```json\n{"path": "a"}\n```', {"path": "a"}),
        (r"""{"command":"echo '}{' ',}' // \\n"}""", {"command": r"echo '}{' ',}' // \n"}),
    ],
)
def test_what_a_model_meant_is_taken(raw: str, value: dict[str, Any]) -> None:
    assert parse(raw) == value


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"command":"echo 1"}{"command":"echo 2"}', "more than one JSON value"),
        ('{"command":"rm -rf /tmp/x', "Unterminated string"),
        ('{"path":"a","content":"x"', "Expecting ',' delimiter"),
        ('{"path" "a"}x', "Expecting ':' delimiter"),
        (r'{"pattern":"\d+"}', "Invalid \\escape"),
        ("ls -la", "Expecting value"),
        ("[1]", "must be one JSON object, not a list"),
        ("3", "must be one JSON object, not a number"),
        ('{"a":"\\ud800"}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"n":' + "9" * 5_000 + "}", "cannot be read"),
    ],
)
def test_what_cannot_be_known_is_refused(raw: str, reason: str) -> None:
    with pytest.raises(BadArguments) as refused:
        parse(raw)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_repair_that_would_lose_a_value_is_refused() -> None:
    with pytest.raises(BadArguments):
        parse('{"a" 1}')


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON))
def test_valid_json_is_never_changed(value: dict[str, Any]) -> None:
    assert parse(json.dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False)) == value


@given(st.dictionaries(st.text(), JSON, min_size=1), st.data())
def test_a_cut_off_text_is_never_executed(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    with pytest.raises(BadArguments):
        parse(cut)


@given(st.text())
def test_any_text_gives_an_object_or_a_refusal(text: str) -> None:
    with contextlib.suppress(BadArguments):
        assert isinstance(parse(text), dict)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "start": {"type": "integer", "minimum": 1},
        "all": {"type": "boolean"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "status": {"type": "string", "enum": ["open", "shut"]}},
                "required": ["text"],
            },
        },
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("given_value", "taken"),
    [
        ({"path": "a", "start": "3"}, {"path": "a", "start": 3}),
        ({"path": "a", "start": 3.0}, {"path": "a", "start": 3}),
        ({"path": "a", "all": "True"}, {"path": "a", "all": True}),
        ({"path": 42}, {"path": "42"}),
        ({"path": "a", "start": None}, {"path": "a"}),
        ({"path": "a", "names": "x"}, {"path": "a", "names": ["x"]}),
        ({"path": "a", "names": '["x", "y"]'}, {"path": "a", "names": ["x", "y"]}),
        ({"path": "a", "items": '[{"text": "t"}]'}, {"path": "a", "items": [{"text": "t"}]}),
        ({"path": '["x"]'}, {"path": '["x"]'}),
    ],
)
def test_lenient_conversion(given_value: dict[str, Any], taken: dict[str, Any]) -> None:
    assert check("t", SCHEMA, given_value) == taken


@pytest.mark.parametrize(
    ("given_value", "sentence"),
    [
        ({}, "t: 'path' is missing"),
        ({"path": "a", "file": "b"}, "t: there is no parameter 'file'; it takes path, start, all, items, names"),
        ({"path": ["a"]}, "t: 'path' must be a string, not a list"),
        ({"path": None}, "t: 'path' must be a string, not null"),
        ({"path": "a", "start": "three"}, "t: 'start' must be an integer, not a string"),
        ({"path": "a", "start": True}, "t: 'start' must be an integer, not a boolean"),
        ({"path": "a", "start": 0}, "t: 'start' must be at least 1"),
        ({"path": "a", "items": [{"text": "x", "status": "gone"}]}, "t: 'items.0.status' must be one of open, shut"),
        ({"path": "a", "items": [{}]}, "t: 'text' is missing in 'items.0'"),
    ],
)
def test_what_does_not_fit_is_one_readable_sentence(given_value: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadArguments) as refused:
        check("t", SCHEMA, given_value)
    assert str(refused.value) == sentence
