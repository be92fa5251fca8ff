"""Teams and their keys: a secret is shown once and only its SHA-256 rests here (docs/api.md, Auth)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

from service.contracts import Key, Role, new_id
from service.errors import Conflict
from service.store.connection import Connection

DEFAULT_TEAM = "default"


class Accounts(Connection):
    """Teams and keys. Nothing is cached: a revoked key fails at its next request."""

    def create_team(self, team: str) -> bool:
        """Makes the team; False when it already exists."""
        return bool(self._call("SADD", self._key("teams"), team))

    def team_exists(self, team: str) -> bool:
        return bool(self._call("SISMEMBER", self._key("teams"), team))

    def teams(self) -> list[str]:
        """All team names, sorted."""
        return sorted(name.decode() for name in self._call("SMEMBERS", self._key("teams")))

    def create_key(self, team: str, roles: Iterable[Role], name: str) -> tuple[Key, str]:
        """A new key and its secret of 256 random bits; the team is made if it is new."""
        secret = "pyd_" + secrets.token_urlsafe(32)
        key, hashed = _new_key(team, roles, name), _hash(secret)
        self._batch([
            ("SADD", self._key("teams"), team),
            ("SET", self._key("key", hashed), key.model_dump_json()),
            ("HSET", self._key("keys", team), key.id, hashed),
        ])  # fmt: skip
        return key, secret

    def ensure_admin_key(self, secret: str) -> Key:
        """Makes `secret` the configured admin key of team `default`; an earlier configured one ends."""
        key = _new_key(DEFAULT_TEAM, [Role.ADMIN], "configured admin key")
        record = self._script("admin", _hash(secret), key.id, key.team, key.model_dump_json())
        return Key.model_validate_json(record)

    def authenticate(self, secret: str) -> Key | None:
        """The key this secret belongs to; None for an unknown or revoked one.

        Found by its hash: what the time of that look-up may tell of a SHA-256 tells nothing of the secret.
        """
        record = self._call("GET", self._key("key", _hash(secret)))
        return Key.model_validate_json(record) if record is not None else None

    def keys(self, team: str) -> list[Key]:
        """The team's keys, oldest first."""
        hashes = self._call("HVALS", self._key("keys", team))
        if not hashes:
            return []
        records = self._call("MGET", *(self._key("key", hashed.decode()) for hashed in hashes))
        found = [Key.model_validate_json(record) for record in records if record is not None]
        return sorted(found, key=lambda key: key.id)

    def revoke_key(self, team: str, key_id: str) -> bool:
        """Ends the key at once; False when the team has none of this id.

        Conflict(code=configured_key) for the configured admin key: it always exists, or nobody could sign in.
        """
        hashed, configured = self._batch([("HGET", self._key("keys", team), key_id), ("GET", self._key("admin"))])
        if hashed is None:
            return False
        if hashed == configured:
            raise Conflict("the configured admin key always exists; configure another one", code="configured_key")
        removed = self._batch([
            ("HDEL", self._key("keys", team), key_id),
            ("DEL", self._key("key", hashed.decode())),
        ])  # fmt: skip
        return bool(removed[0])


def _new_key(team: str, roles: Iterable[Role], name: str) -> Key:
    return Key(id=new_id("key"), team=team, roles=tuple(roles), name=name, created_at=datetime.now(UTC))


def _hash(secret: str) -> str:
    # A header may carry any bytes; they only have to match nothing.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
