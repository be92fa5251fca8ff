"""Keys and teams: a secret is shown once, only its hash rests, a revoked one is dead at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from service.contracts import Role
from service.errors import Conflict
from service.store import Store


def everything(raw: redis.Redis, prefix: str) -> bytes:
    """All that rests under the prefix, keys and values, as one text."""
    found = []
    for key in raw.scan_iter(f"{prefix}*"):
        found += [key, raw.dump(key) or b""]
        match raw.type(key):
            case b"string":
                found.append(raw.get(key))
            case b"hash":
                found += [part for pair in raw.hgetall(key).items() for part in pair]
            case b"set":
                found += list(raw.smembers(key))
    return b"\n".join(found)


def test_a_key_opens_its_team_with_its_roles(store: Store) -> None:
    key, secret = store.create_key("red", [Role.SUBMIT, Role.REVIEW], "laptop")
    assert store.authenticate(secret) == key
    assert (key.team, key.roles, key.name) == ("red", (Role.SUBMIT, Role.REVIEW), "laptop")
    assert store.team_exists("red")


def test_a_secret_holds_256_random_bits(store: Store) -> None:
    secrets = [store.create_key("red", [Role.SUBMIT], "k")[1] for _ in range(20)]
    assert len(set(secrets)) == 20
    assert all(secret.startswith("pyd_") and len(secret) == 4 + 43 for secret in secrets)


def test_no_secret_rests_anywhere(store: Store, raw: redis.Redis, prefix: str) -> None:
    _, secret = store.create_key("red", [Role.ADMIN], "k")
    store.ensure_admin_key("an-admin-secret-of-the-operator")
    at_rest = everything(raw, prefix)
    assert b"laptop" not in at_rest
    assert b'"name":"k"' in at_rest
    assert secret.encode() not in at_rest
    assert secret[4:].encode() not in at_rest
    assert b"an-admin-secret" not in at_rest


@pytest.mark.parametrize("secret", ["", "pyd_", "nothing", "\udcff", "ä" * 1_000, "*", "key:*", "a\0b"])
def test_what_is_no_secret_opens_nothing(store: Store, secret: str) -> None:
    store.create_key("red", [Role.ADMIN], "k")
    assert store.authenticate(secret) is None


def test_a_hash_is_not_a_secret(store: Store, raw: redis.Redis, prefix: str) -> None:
    store.create_key("red", [Role.ADMIN], "k")
    (hashed,) = [key.decode().rsplit(":", 1)[1] for key in raw.scan_iter(f"{prefix}key:*")]
    assert store.authenticate(hashed) is None


def test_a_revoked_key_is_dead_at_once_and_only_its_team_can_revoke_it(store: Store) -> None:
    key, secret = store.create_key("red", [Role.SUBMIT], "k")
    other, other_secret = store.create_key("red", [Role.SUBMIT], "other")
    assert store.revoke_key("blue", key.id) is False
    assert store.authenticate(secret) == key
    assert store.revoke_key("red", key.id) is True
    assert store.authenticate(secret) is None
    assert store.revoke_key("red", key.id) is False
    assert store.keys("red") == [other]
    assert store.authenticate(other_secret) == other


def test_keys_are_listed_by_team_oldest_first(store: Store) -> None:
    made = [store.create_key("red", [Role.SUBMIT], f"k{n}")[0] for n in range(3)]
    store.create_key("blue", [Role.SUBMIT], "elsewhere")
    assert {key.id for key in store.keys("red")} == {key.id for key in made}
    assert store.keys("red") == sorted(made, key=lambda key: key.id)
    assert store.keys("green") == []


def test_teams(store: Store) -> None:
    assert store.teams() == []
    assert not store.team_exists("red")
    assert store.create_team("red") is True
    assert store.create_team("red") is False
    store.create_team("blue")
    assert store.teams() == ["blue", "red"]


def test_the_configured_admin_key_is_one_and_follows_the_configuration(store: Store) -> None:
    first = store.ensure_admin_key("first secret")
    assert (first.team, first.roles) == ("default", (Role.ADMIN,))
    assert store.ensure_admin_key("first secret") == first
    assert store.authenticate("first secret") == first
    second = store.ensure_admin_key("second secret")
    assert second.id != first.id
    assert store.authenticate("first secret") is None
    assert store.authenticate("second secret") == second
    assert store.keys("default") == [second]
    assert store.teams() == ["default"]


def test_an_ordinary_key_s_secret_can_become_the_admin_key(store: Store) -> None:
    _, secret = store.create_key("red", [Role.SUBMIT], "k")
    admin = store.ensure_admin_key(secret)
    assert store.authenticate(secret) == admin
    assert (admin.team, admin.roles) == ("default", (Role.ADMIN,))
    assert store.keys("red") == []
    assert store.ensure_admin_key("another").team == "default"
    assert store.authenticate(secret) is None


def test_the_configured_admin_key_cannot_be_revoked_until_another_is_configured(store: Store) -> None:
    key = store.ensure_admin_key("secret")
    with pytest.raises(Conflict) as refused:
        store.revoke_key("default", key.id)
    assert (refused.value.code, refused.value.status) == ("configured_key", 409)
    assert store.authenticate("secret") == key
    assert store.revoke_key("default", "key_x") is False


def test_processes_that_start_together_make_one_admin_key(store: Store, together: Callable[..., list[Any]]) -> None:
    made = together(*[lambda: store.ensure_admin_key("secret")] * 8)
    assert len({key.id for key in made}) == 1
    assert store.keys("default") == [made[0]]
