"""Keys of a team: made, listed, revoked by its admins; by an admin of `default` for every team."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from service.api import body
from service.api.auth import Admin, is_operator
from service.api.parts import Parts, Use
from service.api.schema import Closed, parse
from service.contracts import Frozen, Key, Role, ShortText, TeamName
from service.errors import Forbidden, NotFound

router = APIRouter()

TeamQuery = Annotated[str | None, Query(max_length=40, description="Another team; for an admin of `default`")]


class NewKey(Frozen):
    """`POST /v1/keys`."""

    team: TeamName | None = None
    """None = the team of the key that asks."""
    roles: tuple[Role, ...] = Field(default=(Role.SUBMIT,), min_length=1, max_length=len(Role))
    name: ShortText


def _team(use: Parts, key: Key, asked: str | None) -> str:
    """The team an admin means; 403 for another's unless the operator asks, 404 for one that is not there."""
    if asked is None or asked == key.team:
        return key.team
    if not is_operator(key):
        raise Forbidden("Only an admin of the team `default` may manage another team's keys.")
    if not use.store.team_exists(asked):
        raise NotFound("There is no such team.", code="team_not_found")
    return asked


def shown(key: Key) -> dict[str, Any]:
    return key.model_dump(mode="json")


def _make(use: Parts, key: Key, wanted: NewKey) -> tuple[Key, str]:
    team = wanted.team or key.team
    if is_operator(key):
        if not use.store.team_exists(team):
            use.store.create_team(team)
    else:
        team = _team(use, key, team)
    return use.store.create_key(team, tuple(dict.fromkeys(wanted.roles)), wanted.name)


@router.post("/v1/keys", status_code=201, summary="Make a key")
async def create_key(request: Request, use: Use, key: Admin, _: Annotated[None, Depends(Closed())]) -> JSONResponse:
    """The answer holds `secret`, once and never again. An admin of `default` makes the team if it is new."""
    wanted = parse(NewKey, await body.read(request, use.settings.max_body_bytes))
    made, secret = await run_in_threadpool(_make, use, key, wanted)
    return JSONResponse({**shown(made), "secret": secret}, status_code=201)


@router.get("/v1/keys", summary="List a team's keys")
def list_keys(
    use: Use, key: Admin, _: Annotated[None, Depends(Closed("team"))], team: TeamQuery = None
) -> JSONResponse:
    """Without their secrets: only a hash is stored."""
    return JSONResponse({"items": [shown(found) for found in use.store.keys(_team(use, key, team))]})


@router.delete("/v1/keys/{key_id}", status_code=204, summary="Revoke a key")
def revoke_key(
    use: Use, key: Admin, key_id: str, _: Annotated[None, Depends(Closed("team"))], team: TeamQuery = None
) -> Response:
    """From now on it gets 401."""
    if not use.store.revoke_key(_team(use, key, team), key_id):
        raise NotFound("There is no such key.", code="key_not_found")
    return Response(status_code=204)
