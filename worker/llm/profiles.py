"""Model profiles: what a task's `model` name stands for (docs/models.md has the table of keys)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from service.contracts import ModelCard, Name
from worker.llm.pricing import Price

DEMO_RECORDING = Path(__file__).with_name("demo.jsonl")
"""What the built-in `demo` profile answers from; it fits the repository's examples/."""

Tokens = Annotated[int, Field(ge=1, le=100_000_000)]
Usd = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the profile and the key."""


class _PriceTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    input: Usd
    output: Usd
    cached: Usd | None = None
    """Without it, cached input costs what other input costs."""


class _Table(BaseModel):
    """One table of the TOML file, as an operator writes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    protocol: Literal["native", "xml", "fenced"] = "native"
    context_window: Tokens = 128_000
    max_output_tokens: Tokens = 8_192
    max_output_tokens_limit: Tokens | None = None
    price: _PriceTable | None = None
    fallback: list[str] = Field(default_factory=list)
    replay: str | None = None
    streaming: bool = True
    usage_in_stream: bool = True
    token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # noqa: S105
    echo_reasoning: bool = False
    idle_timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None


class Profile(BaseModel):
    """A model as the worker talks to it. Equal profiles behave alike; `api_key` never shows in a repr."""

    model_config = ConfigDict(frozen=True)

    name: str
    base_url: str
    """Empty for a replay profile: its endpoint exists only while a run lasts."""
    api_key: SecretStr | None = None
    model: str
    protocol: Literal["native", "xml", "fenced"] = "native"
    context_window: int = 128_000
    max_output_tokens: int = 8_192
    max_output_tokens_limit: int = 64_000
    """A truncated reply is asked again with twice the tokens, up to this."""
    price: Price | None = None
    fallback: tuple[str, ...] = ()
    """Names of the profiles that answer, in this order, when this one's provider fails for good."""
    replay: Path | None = None
    streaming: bool = True
    usage_in_stream: bool = True
    token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # noqa: S105
    echo_reasoning: bool = False
    idle_timeout_s: float = 90.0
    """Longest silence of the provider, also before its first byte."""

    def card(self) -> ModelCard:
        """How the catalogue shows it: no address, no key."""
        price = self.price and {"input": self.price.input, "cached": self.price.cached, "output": self.price.output}
        return ModelCard(name=self.name, model=self.model, context_window=self.context_window, price=price)


def load_profiles(
    tables: Mapping[str, object], *, api_key: Callable[[str], SecretStr | None], folder: Path
) -> dict[str, Profile]:
    """Profiles by name, the built-in `demo` always among them; ProfileError says what to correct.

    `tables` is the parsed TOML file ({} without one), `api_key` gives the value of an environment variable
    by its name, `folder` is what a relative `replay` path starts from.
    """
    profiles = {"demo": _demo()}
    for name, table in tables.items():
        try:
            TypeAdapter(Name).validate_python(name, strict=True)
        except ValidationError:
            raise ProfileError(f"profile {name!r}: a name has 1 to 64 characters of A-Z a-z 0-9 . _ -") from None
        if not isinstance(table, Mapping):
            raise ProfileError(f"{name!r} is not a profile: write its keys below a line [{name}]")
        profiles[name] = _profile(name, _read(name, table), api_key, folder)
    for name in profiles:
        with_fallbacks(name, profiles)
    return profiles


def with_fallbacks(name: str, profiles: Mapping[str, Profile]) -> tuple[Profile, ...]:
    """The profile and those that answer in its place, in their order: each one's own fallbacks right behind it.

    ProfileError names a fallback that is no profile, and profiles that stand in for each other in a circle.
    """
    return tuple(dict.fromkeys(_in_order(name, profiles, ())))


def _in_order(name: str, profiles: Mapping[str, Profile], above: tuple[str, ...]) -> Iterator[Profile]:
    if name in above:
        circle = " → ".join((*above[above.index(name) :], name))
        raise ProfileError(f"profile {name!r}: fallback goes in a circle ({circle})")
    if name not in profiles:
        known = ", ".join(profiles)
        raise ProfileError(f"profile {above[-1]!r}: fallback names {name!r}, which is no profile (there are {known})")
    yield profiles[name]
    for fallback in profiles[name].fallback:
        yield from _in_order(fallback, profiles, (*above, name))


def openai_table(base_url: str | None, model: str) -> dict[str, object]:
    """The table of the `default` profile that OPENAI_API_KEY makes where there is no file."""
    return {"base_url": base_url or "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY", "model": model}


def _demo() -> Profile:
    price = Price(input=0.0, output=0.0, cached=0.0)
    return Profile(name="demo", base_url="", model="demo", price=price, replay=DEMO_RECORDING)


def _read(name: str, table: Mapping[str, object]) -> _Table:
    known = ", ".join(_Table.model_fields)
    if unknown := [str(key) for key in table if key not in _Table.model_fields]:
        raise ProfileError(f"profile {name!r}: unknown key {', '.join(map(repr, unknown))} (known: {known})")
    try:
        return _Table.model_validate(dict(table))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ProfileError(f"profile {name!r}: {problems}") from None


def _profile(name: str, table: _Table, api_key: Callable[[str], SecretStr | None], folder: Path) -> Profile:
    limit = table.max_output_tokens_limit
    if limit is not None and limit < table.max_output_tokens:
        raise ProfileError(f"profile {name!r}: max_output_tokens_limit is less than max_output_tokens")
    fields: dict[str, Any] = {
        "name": name,
        "fallback": tuple(table.fallback),
        "price": table.price and _price(table.price),
        "max_output_tokens_limit": limit or max(64_000, table.max_output_tokens),
        # Without streaming the whole reply is one silence: it may take as long as a long reply takes.
        "idle_timeout_s": table.idle_timeout_s or (90.0 if table.streaming else 600.0),
        **table.model_dump(
            include={
                "protocol", "context_window", "max_output_tokens", "streaming", "usage_in_stream", "token_field",
                "echo_reasoning",
            }
        ),
    }  # fmt: skip
    if table.replay is not None:
        return Profile(**fields, base_url="", model=table.model or "replay", replay=_recording(name, table, folder))
    return Profile(
        **fields, base_url=_address(name, table), model=_model(name, table), api_key=_key(name, table, api_key)
    )


def _price(table: _PriceTable) -> Price:
    return Price(table.input, table.output, table.input if table.cached is None else table.cached)


def _recording(name: str, table: _Table, folder: Path) -> Path:
    if table.base_url or table.api_key_env:
        raise ProfileError(f"profile {name!r}: a replay profile takes neither base_url nor api_key_env")
    path = folder / (table.replay or "")
    if not path.is_file():
        raise ProfileError(f"profile {name!r}: replay names {path}, which is not a file")
    return path


def _address(name: str, table: _Table) -> str:
    parts = urlsplit(table.base_url or "")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ProfileError(f"profile {name!r}: base_url must be an http or https address, like https://host/v1")
    return table.base_url or ""


def _model(name: str, table: _Table) -> str:
    if not table.model:
        raise ProfileError(f"profile {name!r}: model is missing (the provider's name for it)")
    return table.model


def _key(name: str, table: _Table, api_key: Callable[[str], SecretStr | None]) -> SecretStr | None:
    if table.api_key_env is None:
        return None
    key = api_key(table.api_key_env)
    if key is None:
        raise ProfileError(f"profile {name!r}: api_key_env names {table.api_key_env}, which is not set")
    return key
