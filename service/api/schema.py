"""A task's JSON, parsed whole and strictly; what this version cannot do is refused by name, never ignored.

Two keys of the same name, NaN, a NUL or a lone surrogate anywhere are refused, because two readers of such a document
may see different tasks. Types are exact: `"5"` is not 5.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.api.problems import from_validation, pointer, printable
from service.contracts import Limits, Network, Permissions, TaskSpec
from service.errors import InvalidRequest, NotAvailable

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_DEPTH = 64
MAX_VALUES = 10_000
"""Bounds of a document, far above what a task can hold: what lies beyond would only burn time, on the event loop."""


class _Repeated(ValueError):
    """An object has two members of one name."""


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        twice = next(name for name, count in Counter(name for name, _ in members).items() if count > 1)
        raise _Repeated(f"the member {printable(twice)!r} stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _values(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value and member name of a document with its path; stops at what no task is as deep as."""
    if len(path) > MAX_DEPTH:
        raise InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")
    yield path, value
    if isinstance(value, dict):
        for name, member in value.items():
            yield (*path, name), name
            yield from _values(member, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*path, index))


def _unclean(document: Any) -> Iterator[dict[str, str]]:
    """What is wrong with the text in a document; refuses one of more values than any request of ours has."""
    for count, (path, value) in enumerate(_values(document, ())):
        if count >= MAX_VALUES:
            raise InvalidRequest(f"The JSON holds more than {MAX_VALUES:,} values.", code="invalid_json")
        if not isinstance(value, str):
            continue
        if "\0" in value:
            yield {"pointer": pointer(path), "detail": "must not contain NUL characters"}
        elif not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            yield {"pointer": pointer(path), "detail": "must not contain lone surrogates"}


def parse(model: type[ModelT], body: bytes) -> ModelT:
    """The JSON document `body` as `model`; 422 `invalid_json` or `invalid_request` with a pointer to each fault."""
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not UTF-8.", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The JSON is nested too deep.", code="invalid_json") from error
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {printable(str(error))}.", code="invalid_json") from error
    unclean = list(_unclean(document))
    if unclean:
        raise InvalidRequest("The request holds text that is not valid Unicode, or NUL.", errors=unclean)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        failures = error.errors(include_url=False, include_context=False, include_input=False)
        if any(failure["type"] == "json_invalid" for failure in failures):
            # The stricter of the two parsers has the word: this one bounds nesting and numbers lower.
            raise InvalidRequest("The body is not valid JSON, or is nested too deep.", code="invalid_json") from None
        raise from_validation(failures) from None


_LATER: dict[tuple[str, ...], Callable[[TaskSpec], bool]] = {
    ("workspace", "git"): lambda spec: spec.workspace is not None and spec.workspace.git is not None,
    ("workspace", "task"): lambda spec: spec.workspace is not None and spec.workspace.task is not None,
    ("priority",): lambda spec: spec.priority != "normal",
    ("setup",): lambda spec: bool(spec.setup),
    ("verify",): lambda spec: bool(spec.verify),
    ("network", "setup"): lambda spec: spec.network.setup != Network().setup,
    ("network", "agent"): lambda spec: spec.network.agent != Network().agent,
    ("network", "verify"): lambda spec: spec.network.verify != Network().verify,
    ("limits", "verify_rounds"): lambda spec: spec.limits.verify_rounds != Limits().verify_rounds,
    ("limits", "wait_timeout_s"): lambda spec: spec.limits.wait_timeout_s != Limits().wait_timeout_s,
    ("permissions",): lambda spec: spec.permissions != Permissions(),
    ("attempts",): lambda spec: spec.attempts != 1,
    ("protected_paths",): lambda spec: bool(spec.protected_paths),
    ("allowed_paths",): lambda spec: bool(spec.allowed_paths),
    ("webhook",): lambda spec: spec.webhook is not None,
}
"""Fields of the contract whose mechanism this version does not have: is the field given with more than its default?
(`image` is decided with the catalogue, in service/api/submit.py.)"""

NOT_YET = "is not available in this version; leave it out"


def parse_task(body: bytes) -> TaskSpec:
    """The task a client asks for; 422 `not_available` names every field of a later version."""
    spec = parse(TaskSpec, body)
    later = [path for path, given in _LATER.items() if given(spec)]
    if later:
        names = ", ".join(".".join(path) for path in later)
        raise NotAvailable(
            f"Not available in this version: {names}.",
            errors=[{"pointer": pointer(path), "detail": NOT_YET} for path in later],
        )
    return spec


class Closed:
    """A route dependency: only these query parameters, each once; those of later versions are named as such.

    `later` maps a parameter of the contract without a mechanism to its default, or to None if it has none. Headers of
    later versions are refused on every route that names them.
    """

    def __init__(
        self, *allowed: str, later: dict[str, str | None] | None = None, later_headers: tuple[str, ...] = ()
    ) -> None:
        self._allowed = frozenset(allowed)
        self._later = later or {}
        self._later_headers = later_headers

    async def __call__(self, request: Request) -> None:
        unknown: list[dict[str, str]] = []
        later: list[dict[str, str]] = []
        times = Counter(name for name, _ in request.query_params.multi_items())
        for name, value in request.query_params.multi_items():
            place = {"pointer": pointer([name]), "in": "query"}
            if name in self._later:
                if value != self._later[name]:
                    later.append({**place, "detail": NOT_YET})
            elif name not in self._allowed:
                unknown.append({**place, "detail": "is not a parameter of this route"})
            elif times[name] > 1:
                unknown.append({**place, "detail": "is given twice"})
        later += [
            {"pointer": pointer([name]), "in": "header", "detail": NOT_YET}
            for name in self._later_headers
            if name in request.headers
        ]
        if unknown:
            raise InvalidRequest("A query parameter is unknown or given twice.", errors=unknown)
        if later:
            named = ", ".join(item["pointer"].lstrip("/") for item in later)
            raise NotAvailable(f"Not available in this version: {named}.", errors=later)
