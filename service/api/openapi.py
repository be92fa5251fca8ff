"""The OpenAPI document: what the routes say, plus what they all share.

The routes read their bodies themselves (strictly, and as a stream), so the request schemas are added here from the
contracts; so are the task answer, and the problem document for every refusal a route can make.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from service.api.keys import NewKey
from service.api.problems import MEDIA_TYPE
from service.contracts import Key, ModelCard, Resources, Task, TaskSpec, Workspace

Schema = dict[str, Any]

_REF = "#/components/schemas/{model}"


def _ref(name: str) -> Schema:
    return {"$ref": _REF.format(model=name)}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list_of(schema: Schema, **more: Schema) -> Schema:
    return _object(items={"type": "array", "items": schema}, **more)


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NULLABLE_STRING: Schema = {"type": ["string", "null"]}

PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457. `code` is the stable word to program against.",
    "properties": {
        "type": STRING,
        "title": STRING,
        "status": INTEGER,
        "detail": STRING,
        "code": STRING,
        "request_id": STRING,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": STRING, "detail": STRING, "in": {"enum": ["query", "header", "path"]}},
                "required": ["pointer", "detail"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "code", "request_id"],
}

EVENT: Schema = _object(seq=INTEGER, time=STRING, task=STRING, type=STRING, data={"type": "object"})

ARCHIVE: Schema = {"type": "string", "format": "binary"}

REQUESTS: dict[tuple[str, str], Schema] = {
    ("/v1/workspaces", "post"): {
        "required": True,
        "content": {"application/octet-stream": {"schema": ARCHIVE}},
    },
    ("/v1/tasks", "post"): {
        "required": True,
        "content": {
            **_json(_ref("TaskSpec")),
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"task": _ref("TaskSpec"), "workspace": ARCHIVE},
                    "required": ["task"],
                    "additionalProperties": False,
                },
                "encoding": {"task": {"contentType": "application/json"}},
            },
        },
    },
    ("/v1/keys", "post"): {"required": True, "content": _json(_ref("NewKey"))},
}

ANSWERS: dict[tuple[str, str, str], Schema] = {
    ("/v1/workspaces", "post", "201"): _ref("WorkspaceAnswer"),
    ("/v1/tasks", "post", "202"): _ref("TaskAnswer"),
    ("/v1/tasks", "get", "200"): _list_of(_ref("TaskAnswer"), next_cursor=NULLABLE_STRING),
    ("/v1/tasks/{task_id}", "get", "200"): _ref("TaskAnswer"),
    ("/v1/tasks/{task_id}/cancel", "post", "200"): _ref("TaskAnswer"),
    ("/v1/tasks/{task_id}/cancel", "post", "202"): _ref("TaskAnswer"),
    ("/v1/tasks/{task_id}/events", "get", "200"): _list_of(EVENT, next_after=INTEGER),
    ("/v1/tasks/{task_id}/artifacts", "get", "200"): _list_of(_object(name=STRING, size=INTEGER, sha256=STRING)),
    ("/v1/keys", "post", "201"): _ref("KeyMade"),
    ("/v1/keys", "get", "200"): _list_of(_ref("Key")),
    ("/v1/models", "get", "200"): _object(
        models={"type": "array", "items": _ref("ModelCard")},
        images={"type": "array", "items": STRING},
        maxima=_ref("Resources"),
    ),
    ("/healthz", "get", "200"): _object(status={"const": "ok"}),
    ("/readyz", "get", "200"): _object(status={"enum": ["ok", "degraded"]}, reasons={"type": "array", "items": STRING}),
}

_OPEN = {"/healthz", "/readyz", "/metrics"}
_BODY = {"408": "The body stopped coming", "413": "The body is too large"}
_ANY = {"422": "Invalid parameter, field or body; `errors` points at each", "503": "The store does not answer"}
_SIGNED = {"401": "No valid key"}
_REFUSALS: dict[str, dict[str, str]] = {
    "/v1/workspaces": {"403": "The key may not upload", **_BODY},
    "/v1/tasks": {"403": "The key may not submit", "404": "No such workspace", **_BODY},
    "/v1/keys": {"403": "Not an admin, or another team", "404": "No such team", **_BODY},
    "/v1/keys/{key_id}": {
        "403": "Not an admin, or another team",
        "404": "No such team or key",
        "409": "The configured admin key, which always exists",
    },
    "/v1/tasks/{task_id}": {"404": "No such task"},
    "/v1/tasks/{task_id}/events": {"404": "No such task"},
    "/v1/tasks/{task_id}/cancel": {
        "403": "Not the task's submitter nor an admin",
        "404": "No such task",
        "409": "The task is over",
    },
    "/v1/tasks/{task_id}/patch": {
        "404": "No such task, or `no_patch` with the reason",
        "409": "`not_finished` or `patch_too_large`",
        "416": "The range lies beyond its end",
    },
    "/v1/tasks/{task_id}/artifacts": {"404": "No such task"},
    "/v1/tasks/{task_id}/artifacts/{name}": {
        "404": "No such task or artifact",
        "416": "The range lies beyond its end",
    },
}


def _definitions() -> dict[str, Schema]:
    """Every contract model a client meets, requests as they are validated and answers as they are sent."""
    models: list[tuple[type[Any], Any]] = [
        (TaskSpec, "validation"),
        (NewKey, "validation"),
        (Task, "serialization"),
        (Workspace, "serialization"),
        (Key, "serialization"),
        (ModelCard, "serialization"),
        (Resources, "serialization"),
    ]
    named, shared = TypeAdapter.json_schemas(
        [(model.__name__, mode, TypeAdapter(model)) for model, mode in models], ref_template=_REF
    )
    found: dict[str, Schema] = dict(shared.get("$defs", {}))
    request = TypeAdapter(TaskSpec).json_schema(ref_template=_REF, mode="serialization")
    for (name, _), schema in named.items():
        if schema.get("$ref") != _REF.format(model=name):
            found[name] = schema
    found.update({name: schema for name, schema in request.pop("$defs", {}).items() if name not in found})
    found["TaskAnswer"] = _task_answer(found["Task"], request)
    del found["Task"]
    workspace = found.pop("Workspace")
    found["WorkspaceAnswer"] = {
        "type": "object",
        "properties": {
            name: schema for name, schema in workspace["properties"].items() if name not in ("blob", "manifest", "team")
        },
    }
    key = found["Key"]
    found["KeyMade"] = {
        **key,
        "properties": {**key["properties"], "secret": {**STRING, "description": "Shown this once"}},
        "required": [*key["required"], "secret"],
    }
    found["Problem"] = PROBLEM
    return found


def _task_answer(task: Schema, request: Schema) -> Schema:
    properties = {**request["properties"], **task["properties"]}
    del properties["spec"]
    properties["env"] = {"type": "array", "items": STRING, "description": "Names only"}
    properties["webhook"] = {"type": "null"}
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _problem(description: str, *, retry: bool) -> Schema:
    found: Schema = {"description": description, "content": {MEDIA_TYPE: {"schema": _ref("Problem")}}}
    if retry:
        found["headers"] = {"Retry-After": {"schema": INTEGER, "description": "Seconds"}}
    return found


def _describe(path: str, method: str, operation: Schema) -> None:
    """Completes one operation: its body, its answers, its refusals, its key."""
    responses = operation["responses"]
    responses.pop("422", None)
    for status, response in responses.items():
        answer = ANSWERS.get((path, method, status))
        json_content = response.get("content", {})
        json_content.pop("application/json", None)
        if answer is not None:
            json_content.update(_json(answer))
        if json_content:
            response["content"] = json_content
        else:
            response.pop("content", None)
    refusals = {**_ANY, **_REFUSALS.get(path, {}), **({} if path in _OPEN else _SIGNED)}
    if method == "get" and path in ("/v1/tasks", "/v1/keys"):
        for status in _BODY:
            refusals.pop(status)
    if path == "/healthz":
        refusals.pop("503")
    for status, description in sorted(refusals.items()):
        responses[status] = _problem(description, retry=status == "503")
    if (path, method) in REQUESTS:
        operation["requestBody"] = REQUESTS[path, method]
    if path not in _OPEN:
        operation["security"] = [{"key": []}]


def document(app: FastAPI) -> Schema:
    """The whole document; made once per app."""
    found = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, openapi_version="3.1.0"
    )
    for full_path in [path for path in found["paths"] if ":path}" in path]:
        found["paths"][full_path.replace(":path}", "}")] = found["paths"].pop(full_path)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _describe(path, method, operation)
    found["components"] = {
        "schemas": dict(sorted(_definitions().items())),
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "`pyd_…`"}},
    }
    return found
