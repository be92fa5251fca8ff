from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.contracts import ModelCard
from worker.llm.messages import TokenUsage
from worker.llm.pricing import Price, cost_usd
from worker.llm.profiles import Profile, ProfileError, load_profiles, openai_table, with_fallbacks

KEYS = {"A_KEY": SecretStr("sk-secret-value"), "OPENAI_API_KEY": SecretStr("sk-open")}


GOOD: dict[str, Any] = {"base_url": "https://h/v1", "model": "m"}


def load(tables: dict[str, Any], folder: Path = Path()) -> dict[str, Profile]:
    return load_profiles(tables, api_key=KEYS.get, folder=folder)


def test_demo_is_always_there_and_costs_nothing() -> None:
    profiles = load({})
    assert list(profiles) == ["demo"]
    assert profiles["demo"].card() == ModelCard(
        name="demo", model="demo", context_window=128_000, price={"input": 0.0, "cached": 0.0, "output": 0.0}
    )
    assert profiles["demo"].replay is not None
    assert profiles["demo"].replay.is_file()


def test_a_whole_profile() -> None:
    profile = load(
        {
            "deep": {
                "base_url": "https://models.example/v1",
                "api_key_env": "A_KEY",
                "model": "deep-1",
                "protocol": "xml",
                "context_window": 64_000,
                "max_output_tokens": 9_000,
                "max_output_tokens_limit": 32_000,
                "price": {"input": 0.27, "cached": 0.07, "output": 1.1},
                "fallback": ["demo"],
                "streaming": False,
                "usage_in_stream": False,
                "token_field": "max_completion_tokens",
                "echo_reasoning": True,
                "idle_timeout_s": 30.0,
            }
        }
    )["deep"]
    assert profile == Profile(
        name="deep",
        base_url="https://models.example/v1",
        api_key=SecretStr("sk-secret-value"),
        model="deep-1",
        protocol="xml",
        fallback=("demo",),
        context_window=64_000,
        max_output_tokens=9_000,
        max_output_tokens_limit=32_000,
        price=Price(input=0.27, cached=0.07, output=1.1),
        streaming=False,
        usage_in_stream=False,
        token_field="max_completion_tokens",
        echo_reasoning=True,
        idle_timeout_s=30.0,
    )
    assert "sk-secret" not in repr(profile)


def test_defaults() -> None:
    profile = load({"local": {"base_url": "http://127.0.0.1:8080/v1", "model": "m"}})["local"]
    assert (profile.api_key, profile.price, profile.token_field) == (None, None, "max_tokens")
    assert (profile.max_output_tokens, profile.max_output_tokens_limit) == (8_192, 64_000)
    assert (profile.streaming, profile.usage_in_stream, profile.echo_reasoning) == (True, True, False)
    assert profile.idle_timeout_s == 90.0
    assert (profile.protocol, profile.fallback) == ("native", ())


def test_fallbacks_of_fallbacks_stand_right_behind_them_and_each_once() -> None:
    chains = {"a": ["b", "c"], "b": ["d"], "c": ["d", "demo"], "d": []}
    profiles = load({name: {**GOOD, "fallback": others} for name, others in chains.items()})
    assert [profile.name for profile in with_fallbacks("a", profiles)] == ["a", "b", "d", "c", "demo"]
    assert [profile.name for profile in with_fallbacks("d", profiles)] == ["d"]


def test_every_profile_of_the_documentation_loads() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page.partition("## Ready-made profiles")[2].partition("\n## ")[0]
    tables = tomllib.loads("\n".join(re.findall(r"```toml\n(.*?)```", section, re.DOTALL)))
    profiles = load_profiles(tables, api_key=SecretStr, folder=Path())
    assert list(profiles) == [
        "demo", "openai", "deepseek", "glm", "minimax", "qwen", "siliconflow", "anthropic", "openrouter", "ollama",
        "vllm", "weak",
    ]  # fmt: skip


def test_profiles_that_stand_in_for_each_other_are_refused() -> None:
    chains = {"a": ["b"], "b": ["c"], "c": ["b"]}
    with pytest.raises(ProfileError, match="fallback goes in a circle \\(b → c → b\\)"):
        load({name: {**GOOD, "fallback": others} for name, others in chains.items()})


def test_without_streaming_the_silence_may_be_longer() -> None:
    profile = load({"a": {"base_url": "http://h/v1", "model": "m", "streaming": False}})["a"]
    assert profile.idle_timeout_s == 600.0


def test_openai_key_alone_makes_the_default_profile() -> None:
    profile = load({"default": openai_table(None, "some-model")})["default"]
    assert (profile.base_url, profile.model) == ("https://api.openai.com/v1", "some-model")
    assert profile.api_key == SecretStr("sk-open")


def test_a_replay_path_starts_at_the_file_s_folder(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("")
    profile = load({"again": {"replay": "run.jsonl"}}, tmp_path)["again"]
    assert (profile.replay, profile.model, profile.base_url) == (tmp_path / "run.jsonl", "replay", "")


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("a", {**GOOD, "temprature": 1, "x": 2}, r"profile 'a': unknown key 'temprature', 'x' \(known: base_url, "),
        ("a", {**GOOD, "protocol": "telepathy"}, "protocol: Input should be"),
        (
            "a",
            {**GOOD, "fallback": ["b"]},
            r"profile 'a': fallback names 'b', which is no profile \(there are demo, a\)",
        ),
        ("a", {**GOOD, "fallback": ["a"]}, r"profile 'a': fallback goes in a circle \(a → a\)"),
        ("a", {**GOOD, "context_window": "128k"}, "context_window: Input should be a valid integer"),
        ("a", {**GOOD, "price": {"input": 1.0}}, "price.output: Field required"),
        ("a", {**GOOD, "price": {"input": 1.0, "output": 1.0, "reasoning": 1.0}}, "price.reasoning: Extra inputs"),
        ("a", {**GOOD, "price": {"input": -1.0, "output": 1.0}}, "price.input: Input should be greater"),
        ("a", {**GOOD, "max_output_tokens": 100, "max_output_tokens_limit": 99}, "limit is less than"),
        ("a", {**GOOD, "api_key_env": "NO_KEY"}, "api_key_env names NO_KEY, which is not set"),
        ("a", {"model": "m"}, "base_url must be an http or https address"),
        ("a", {**GOOD, "base_url": "ftp://h"}, "base_url must be an http or https address"),
        ("a", {"base_url": "https://h/v1"}, "model is missing"),
        ("a", {"replay": "none.jsonl"}, r"replay names .*none\.jsonl, which is not a file"),
        ("a", {**GOOD, "replay": "none.jsonl"}, "takes neither base_url nor api_key_env"),
        ("a b", GOOD, "profile 'a b': a name has 1 to 64 characters"),
        ("a", "text", "'a' is not a profile"),
    ],
)
def test_a_mistake_is_named(name: str, table: Any, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load({name: table})


def test_cached_input_is_priced_apart() -> None:
    price = Price(input=1.0, cached=0.1, output=4.0)
    assert cost_usd(price, TokenUsage(input=1_000_000, cached=400_000, output=500_000)) == pytest.approx(2.64)


def test_an_unknown_price_or_usage_is_never_zero() -> None:
    assert cost_usd(None, TokenUsage(input=1)) is None
    assert cost_usd(Price(1.0, 1.0, 1.0), TokenUsage(known=False)) is None
    assert cost_usd(Price(0.0, 0.0, 0.0), TokenUsage(input=5, output=5)) == 0.0


def test_cached_input_without_a_price_of_its_own_costs_what_input_costs() -> None:
    profile = load({"a": {**GOOD, "price": {"input": 2.0, "output": 3.0}}})["a"]
    assert profile.price == Price(input=2.0, output=3.0, cached=2.0)
