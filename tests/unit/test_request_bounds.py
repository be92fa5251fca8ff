"""A request's document is bounded in depth, in values and in time, before anything is made of it."""

from __future__ import annotations

import time

import pytest

from service.api.schema import MAX_DEPTH, MAX_VALUES, parse_task
from service.contracts import Resources
from service.errors import InvalidRequest


def refusal(body: str) -> tuple[str, str]:
    """Code and detail; it must come at once: a document is read on the event loop, where it holds up everybody."""
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        parse_task(body.encode())
    assert time.process_time() - began < 1
    return caught.value.code, caught.value.detail


def test_a_million_bytes_of_names_with_one_twice_are_refused_at_once() -> None:
    members = ",".join(f'"{number}":0' for number in range(90_000))
    assert refusal(f'{{{members},"89999":1}}') == (
        "invalid_json",
        "The body is not valid JSON: the member '89999' stands twice in one object.",
    )


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt":"x","setup":[' + "0," * 400_000 + "0]}",
        '{"prompt":"x","setup":[' + r'"\u0000",' * 100_000 + "0]}",
        "{" + ",".join(f'"{number}":0' for number in range(90_000)) + "}",
        "[" * MAX_DEPTH + "0," * MAX_VALUES + "0" + "]" * MAX_DEPTH,
    ],
    ids=["wrong items", "unclean items", "unknown fields", "deep and wide"],
)
def test_more_values_than_any_task_has_are_refused_at_once(body: str) -> None:
    assert refusal(body) == ("invalid_json", f"The JSON holds more than {MAX_VALUES:,} values.")


@pytest.mark.parametrize("depth", [*range(MAX_DEPTH + 1, 1_020, 7), 990, 991, 992, 993, 994, 995])
def test_no_depth_is_a_defect(depth: int) -> None:
    code, detail = refusal('{"prompt":"x","labels":' + "[" * depth + r'"\u0000"' + "]" * depth + "}")
    assert code == "invalid_json"
    assert detail in (f"The JSON is nested deeper than {MAX_DEPTH} levels.", "The JSON is nested too deep.")


def test_a_task_as_large_as_the_schema_allows_is_within_the_bounds() -> None:
    spec = parse_task(
        b'{"prompt":"x","labels":{%s},"env":{%s}}'
        % (
            b",".join(b'"l%d":"v"' % number for number in range(50)),
            b",".join(b'"E%d":{"value":"v","phases":["setup","agent","verify"]}' % number for number in range(100)),
        )
    )
    assert (len(spec.labels), len(spec.env)) == (50, 100)


@pytest.mark.parametrize("cpus", ["1e-300", "1e-9", "0.009"])
def test_less_cpu_than_an_engine_can_limit_to_is_refused(cpus: str) -> None:
    """Docker takes a limit that rounds to nothing for no limit at all."""
    with pytest.raises(InvalidRequest) as caught:
        parse_task(b'{"prompt":"x","resources":{"cpus":%s}}' % cpus.encode())
    assert caught.value.errors == [
        {"pointer": "/resources/cpus", "detail": "Input should be greater than or equal to 0.01"}
    ]
    assert Resources(cpus=0.01).cpus == 0.01
