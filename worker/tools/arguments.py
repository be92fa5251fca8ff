"""From the text a model sent as arguments to values a tool can trust, or one sentence that says what is wrong.

Rule: what is valid JSON is taken byte for byte; what is not is repaired only where the repair can neither
lose nor invent anything; nothing is ever guessed from a text that was cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import json_repair
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from worker.llm.nesting import nesting

MAX_REPAIR_CHARS = 200_000
"""Longer broken JSON is sent back unrepaired: the repair's own search is not linear."""


class BadArguments(Exception):
    """Says in one sentence, for the model, what to change."""


def parse(raw: str) -> dict[str, Any]:
    """The JSON object in `raw`; an empty text or `null` means no arguments. Raises BadArguments."""
    text = _unfenced(raw.strip())
    if not text:
        return {}
    value = _decode(text)
    if isinstance(value, str):  # encoded twice, as some models do
        value = _decode(value.strip()) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments must be one JSON object, not {_kind(value)}")
    _refuse_surrogates(value)
    return value


def _unfenced(text: str) -> str:
    match = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", text, re.DOTALL)
    return match[1].strip() if match else text


def _decode(text: str) -> Any:
    try:
        # strict=False: a raw newline or tab inside a string is what the model meant.
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except RecursionError:
        raise BadArguments("the arguments are nested too deeply") from None
    except json.JSONDecodeError as broken:
        return _repair(text, broken)
    except ValueError as refused:  # an integer of thousands of digits
        raise BadArguments(f"the arguments cannot be read: {refused}") from None
    if text[end:].strip():
        raise BadArguments("the arguments hold more than one JSON value; make one call for each")
    return value


def _repair(text: str, broken: json.JSONDecodeError) -> Any:
    refusal = BadArguments(
        f"the arguments are not valid JSON: {broken.msg} at character {broken.pos}. Send them again, complete"
    )
    if len(text) > MAX_REPAIR_CHARS or not _complete(text):
        raise refusal
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        raise refusal from None
    if not isinstance(value, dict) or _essence(text) != _essence(json.dumps(value, ensure_ascii=False)):
        raise refusal
    return value


def _complete(text: str) -> bool:
    """Whether one object opens at the start and closes at the very end: a cut-off text does not."""
    for position, (char, (depth, in_string)) in enumerate(zip(text, nesting(text), strict=True)):
        if char in "}]" and depth == 0 and not in_string:
            return text[0] == "{" and position == len(text) - 1
    return False


def _essence(text: str) -> str:
    """Its ASCII letters and digits, escapes left out: what punctuation repairs may not change."""
    plain = re.sub(r"\\(?:u[0-9a-fA-F]{4}|.)", "", text, flags=re.DOTALL)
    return re.sub(r"[^0-9a-z]", "", plain.lower())


def _refuse_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadArguments("a string holds half of a surrogate pair, which is not valid Unicode") from None


def check(tool: str, schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments` as the JSON Schema wants them, leniently converted. Raises BadArguments."""
    validator = Draft202012Validator(schema)
    coerced: dict[str, Any] = _coerce(arguments, schema)
    error = best_match(validator.iter_errors(coerced))
    if error is not None:
        raise BadArguments(f"{tool}: {_sentence(error, schema)}")
    return coerced


def _coerce(value: Any, schema: Mapping[str, Any]) -> Any:
    wanted = schema.get("type")
    if wanted == "object":
        value = _embedded(value, dict)
        if isinstance(value, dict):
            return _coerce_members(value, schema)
    elif wanted == "array":
        value = _embedded(value, list)
        items = value if isinstance(value, list) else [value]
        return [_coerce(item, schema.get("items", {})) for item in items]
    elif wanted == "integer":
        return _integer(value)
    elif wanted == "boolean" and isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    elif wanted == "string" and isinstance(value, int | float):
        return json.dumps(value)
    return value


def _coerce_members(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    known, required = schema.get("properties", {}), schema.get("required", ())
    return {
        name: _coerce(member, known.get(name, {}))
        for name, member in value.items()
        # null for a parameter that may be left out is how some models leave it out
        if not (member is None and name in known and name not in required)
    }


def _embedded(value: Any, kind: type) -> Any:
    """A list or object that was sent as JSON text."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return inner if isinstance(inner, kind) else value


def _integer(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}(\.0+)?\s*", value):
        return int(value.strip().split(".")[0])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _sentence(error: ValidationError, schema: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    named = f"'{where}'" if where else "the arguments"
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            inside = f" in '{where}'" if where else ""
            return f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing{inside}"
        case "additionalProperties":
            takes = error.schema.get("properties", schema["properties"])
            extra = [name for name in error.instance if name not in takes]
            return f"there is no parameter {_listed(extra)}; it takes {', '.join(takes)}"
        case "type":
            return f"{named} must be {_article(error.validator_value)}, not {_kind(error.instance)}"
        case "enum":
            return f"{named} must be one of {', '.join(map(str, error.validator_value))}"
        case "minimum":
            return f"{named} must be at least {error.validator_value}"
        case _:
            return f"{named} is not valid ({error.validator} {error.validator_value})"


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name[:60]}'" for name in names[:10])


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
