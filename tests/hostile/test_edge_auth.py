"""T17, T18: whose object it is, and whose key. Another team's object is nobody's; no wrong key learns anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_kit import ADMIN, TAR, Api, serving

from service.contracts import Key, State

UNKNOWN_TASK = "task_01ARZ3NDEKTSV4RRFFQ69G5FAV"
FIXED = {"X-Request-ID": "the-same"}
"""With the request id given, two refusals can be compared byte for byte."""

ROUTES = [
    ("GET", "/v1/tasks/{id}"),
    ("GET", "/v1/tasks/{id}?wait=1"),
    ("GET", "/v1/tasks/{id}/events"),
    ("GET", "/v1/tasks/{id}/patch"),
    ("GET", "/v1/tasks/{id}/artifacts"),
    ("GET", "/v1/tasks/{id}/artifacts/transcript.jsonl"),
    ("POST", "/v1/tasks/{id}/cancel"),
]


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Api]:
    with serving(redis_url, tmp_path) as running:
        yield running


def signature(answer: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    headers = [(name, value) for name, value in answer.headers.items() if name != "date"]
    return answer.status_code, answer.content, headers


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/event-stream"])
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_team_s_task_is_byte_for_byte_an_unknown_one(api: Api, method: str, path: str, accept: str) -> None:
    mine, done = api.submit()["id"], api.submit()["id"]
    lease = api.claim()
    blob = api.blobs.put([b"secret transcript"])
    api.store.add_artifact(lease, "transcript.jsonl", blob.sha256, blob.size)
    api.finish(lease, patch=b"secret patch")
    _, stranger = api.key("team-b", "admin", "submit", "review")
    headers = {**FIXED, "Accept": accept}
    unknown = signature(stranger.request(method, path.format(id=UNKNOWN_TASK), headers=headers))
    assert unknown[0] == 404
    assert json.loads(unknown[1])["code"] == "task_not_found"
    for task in (mine, done):
        assert signature(stranger.request(method, path.format(id=task), headers=headers)) == unknown
    for odd in ("x", "task_", "..%5C..%5Cx", "%00", "task_" + "0" * 500, "%ed%a0%80", lease.task_id.lower()):
        assert signature(stranger.request(method, path.format(id=odd), headers=headers))[1] == unknown[1]
    states = {task.id: task.state for task in api.store.tasks("default")[0]}
    assert set(states.values()) == {State.QUEUED, State.SUCCEEDED}


def test_another_team_s_workspace_is_an_unknown_one(api: Api) -> None:
    theirs = api.client().post("/v1/workspaces", content=TAR).json()["id"]
    _, stranger = api.key("team-b", "submit")

    def submitted(workspace: str) -> tuple[int, bytes, Any]:
        task = {"prompt": "a", "model": "demo", "workspace": {"id": workspace}}
        return signature(stranger.post("/v1/tasks", json=task, headers=FIXED))

    unknown = submitted("ws_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert (unknown[0], json.loads(unknown[1])["code"]) == (404, "workspace_not_found")
    for workspace in (theirs, "sha:" + "0" * 60, f"../default:{theirs}", "x"):
        assert submitted(workspace) == unknown
    assert submitted("x" * 65)[0] == 422


def test_the_store_s_own_index_is_no_workspace_id(api: Api) -> None:
    sha256 = api.client().post("/v1/workspaces", content=TAR).json()["sha256"]
    task = {"prompt": "a", "model": "demo", "workspace": {"id": f"sha:{sha256[:60]}"}}
    assert api.client().post("/v1/tasks", json=task).status_code == 404


def test_lists_hold_the_own_team_s_tasks_only(api: Api) -> None:
    api.submit()
    _, stranger = api.key("team-b", "submit")
    assert stranger.get("/v1/tasks").json()["items"] == []
    assert stranger.get("/v1/keys").status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path.format(id=UNKNOWN_TASK)) for method, path in ROUTES]
    + [
        ("POST", "/v1/tasks"),
        ("GET", "/v1/tasks"),
        ("POST", "/v1/workspaces"),
        ("GET", "/v1/models"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("DELETE", "/v1/keys/key_x"),
    ],
)
def test_no_key_a_wrong_one_and_a_revoked_one_get_the_same_401(api: Api, method: str, path: str) -> None:
    key, secret = api.store.create_key("team-b", [], "short-lived")
    api.store.revoke_key("team-b", key.id)
    client = api.client(None)
    attempts: list[dict[str, Any]] = [
        {},
        {"headers": {"Authorization": f"Bearer {secret}"}},
        {"headers": {"Authorization": "Bearer pyd_wrong"}},
        {"headers": {"Authorization": f"Bearer {ADMIN}x"}},
        {"headers": {"Authorization": f"Bearer  {ADMIN} x"}},
        {"headers": {"Authorization": f"Basic {ADMIN}"}},
        {"headers": {"Authorization": ADMIN}},
        {"headers": {"Authorization": "Bearer " + "x" * 5_000}},
        {"headers": {"Authorization": b"Bearer \xff\xfe"}},
        {"headers": [("Authorization", f"Bearer {ADMIN}"), ("Authorization", "Bearer x")]},
        {"headers": {"Cookie": f"key={ADMIN}"}},
        {"params": {"token": ADMIN}},
        {"params": {"api_key": ADMIN, "key": ADMIN}},
    ]
    seen = set()
    for attempt in attempts:
        headers = httpx.Headers(attempt.get("headers"))
        headers["X-Request-ID"] = "the-same"
        multi = attempt.get("headers") if isinstance(attempt.get("headers"), list) else None
        sent: Any = [*multi, ("X-Request-ID", "the-same")] if multi else headers
        answer = client.request(method, path, headers=sent, params=attempt.get("params"))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        seen.add(answer.content)
    assert seen == {
        json.dumps(
            {
                "title": "Unauthorized",
                "status": 401,
                "detail": "Send a valid key as `Authorization: Bearer pyd_…`.",
                "code": "unauthorized",
                "type": "about:blank",
                "request_id": "the-same",
            }
        ).encode()
    }


def test_a_key_in_the_query_beside_a_valid_one_is_refused_as_unknown(api: Api) -> None:
    answer = api.client().get("/v1/tasks", params={"token": ADMIN})
    assert answer.status_code == 422
    assert ADMIN not in answer.text


def test_a_key_works_until_it_is_revoked_and_is_shown_once(api: Api) -> None:
    made = api.client().post("/v1/keys", json={"team": "team-c", "roles": ["submit"], "name": "ci"})
    assert made.status_code == 201
    body = made.json()
    assert body["secret"].startswith("pyd_")
    assert (body["team"], body["roles"], body["name"]) == ("team-c", ["submit"], "ci")
    theirs = api.client(body["secret"])
    assert theirs.get("/v1/tasks").status_code == 200
    listed = api.client().get("/v1/keys", params={"team": "team-c"})
    assert body["secret"] not in listed.text
    assert [key["id"] for key in listed.json()["items"]] == [body["id"]]
    assert api.client().delete(f"/v1/keys/{body['id']}").status_code == 404, "it is another team's"
    assert api.client().delete(f"/v1/keys/{body['id']}", params={"team": "team-c"}).status_code == 204
    assert theirs.get("/v1/tasks").status_code == 401
    assert api.client().delete(f"/v1/keys/{body['id']}", params={"team": "team-c"}).status_code == 404


def test_the_configured_admin_key_cannot_be_revoked(api: Api) -> None:
    """It always exists (docs/api.md): without it nobody could sign in until the next start."""
    admin = api.client()
    (configured,) = admin.get("/v1/keys").json()["items"]
    answer = admin.delete(f"/v1/keys/{configured['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "configured_key")
    assert admin.get("/v1/keys").json()["items"] == [configured]
    made = admin.post("/v1/keys", json={"roles": ["admin"], "name": "another"}).json()
    assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204


def test_a_team_s_admin_manages_the_own_team_only(api: Api) -> None:
    _, boss = api.key("team-b", "admin")
    api.store.create_team("team-c")
    assert boss.post("/v1/keys", json={"roles": ["submit"], "name": "mine"}).json()["team"] == "team-b"
    assert len(boss.get("/v1/keys").json()["items"]) == 2
    for team in ("team-c", "default", "no-such-team"):
        assert boss.post("/v1/keys", json={"team": team, "roles": ["admin"], "name": "x"}).status_code == 403
        assert boss.get("/v1/keys", params={"team": team}).status_code == 403
        assert boss.delete("/v1/keys/key_x", params={"team": team}).status_code == 403
    assert api.client().get("/v1/keys", params={"team": "no-such-team"}).status_code == 404
    assert api.store.keys("team-c") == []


MATRIX = [
    # roles, may submit, may cancel its own, another's, may manage keys
    (("submit",), True, True, False, False),
    (("review",), False, False, False, False),
    (("submit", "review"), True, True, False, False),
    (("admin",), True, True, True, True),
]


@pytest.mark.parametrize(("roles", "submits", "own", "others", "manages"), MATRIX)
def test_the_roles_of_the_contract(
    api: Api, roles: tuple[str, ...], submits: bool, own: bool, others: bool, manages: bool
) -> None:
    _, client = api.key("team-b", *roles)
    _, colleague = api.key("team-b", "submit")
    foreign = api.submit(colleague)["id"]
    for path in ("/v1/tasks", f"/v1/tasks/{foreign}", f"/v1/tasks/{foreign}/artifacts", "/v1/models"):
        assert client.get(path).status_code == 200, "every role reads"
    assert client.post("/v1/workspaces", content=TAR).status_code == (201 if submits else 403)
    task = client.post("/v1/tasks", json={"prompt": "a", "model": "demo"})
    assert task.status_code == (202 if submits else 403)
    if submits:
        assert client.post(f"/v1/tasks/{task.json()['id']}/cancel").status_code == (200 if own else 403)
    assert client.post(f"/v1/tasks/{foreign}/cancel").status_code == (200 if others else 403)
    assert client.get("/v1/keys").status_code == (200 if manages else 403)
    new = {"roles": ["submit"], "name": "x"}
    assert client.post("/v1/keys", json=new).status_code == (201 if manages else 403)
    assert client.delete("/v1/keys/key_x").status_code == (404 if manages else 403)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x", "roles": []},
        {"name": "x", "roles": ["root"]},
        {"name": "x", "roles": ["submit"], "team": "UPPER"},
        {"name": "x", "roles": ["submit"], "team": "a:b"},
        {"name": "x", "roles": ["submit"], "id": "key_1"},
        {"name": "", "roles": ["submit"]},
        {"name": "x\0", "roles": ["submit"]},
        [],
    ],
)
def test_a_wrong_request_for_a_key_is_422(api: Api, body: Any) -> None:
    answer = api.client().post("/v1/keys", json=body)
    assert answer.status_code == 422
    keys: list[Key] = api.store.keys("default")
    assert len(keys) == 1
