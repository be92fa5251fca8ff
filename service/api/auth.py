"""Who asks, and what that key may do: the matrix of docs/api.md.

A missing, a wrong and a revoked key get the same answer, and a key anywhere but in the `Authorization` header is no
key. An object of another team is handled by the routes as one that does not exist.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request

from service.api.parts import Use
from service.contracts import Key, Role, Task
from service.errors import Forbidden, Unauthorized

ADMIN_TEAM = "default"
"""An admin of this team is the operator."""

SECRET = re.compile(r"[\x21-\x7e]{1,512}")
"""What can be sent as a key."""
_BEARER = re.compile(rf"^Bearer +({SECRET.pattern})\Z", re.IGNORECASE)


def signed_in(request: Request, use: Use) -> Key:
    """The key of the request, or 401."""
    given = request.headers.getlist("authorization")
    match = _BEARER.match(given[0]) if len(given) == 1 else None
    key = use.store.authenticate(match[1]) if match else None
    if key is None:
        raise Unauthorized("Send a valid key as `Authorization: Bearer pyd_…`.")
    request.scope["state"].update(team=key.team, key=key.id)
    return key


SignedIn = Annotated[Key, Depends(signed_in)]


def is_admin(key: Key) -> bool:
    return Role.ADMIN in key.roles


def is_operator(key: Key) -> bool:
    return is_admin(key) and key.team == ADMIN_TEAM


async def submitter(key: SignedIn) -> Key:
    """A key that may upload and submit, or 403."""
    if not is_admin(key) and Role.SUBMIT not in key.roles:
        raise Forbidden("This key may not submit: it needs the role submit or admin.")
    return key


async def admin(key: SignedIn) -> Key:
    """A key that may manage its team's keys, or 403."""
    if not is_admin(key):
        raise Forbidden("This needs the role admin.")
    return key


Submitter = Annotated[Key, Depends(submitter)]
Admin = Annotated[Key, Depends(admin)]


def check_controls(key: Key, task: Task) -> None:
    """403 unless the key may cancel this task of its team: its own submission, or as an admin."""
    if not is_admin(key) and not (Role.SUBMIT in key.roles and task.submitter == key.id):
        raise Forbidden("Only the key that submitted the task, or an admin of the team, may do this.")
