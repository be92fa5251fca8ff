"""Sealing: only the same key and the same task open what was sealed."""

from __future__ import annotations

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.seal import Sealer, SealError, decode_key, load_or_create_key

KEY = bytes(range(32))
SECRET = b'{"TOKEN": "hunter2hunter2"}'


@pytest.mark.parametrize("value", [b"", b"\0", SECRET, b"x" * 1_000_000])
def test_what_was_sealed_opens_again(value: bytes) -> None:
    assert Sealer(KEY).open("task_1", Sealer(KEY).seal("task_1", value)) == value


def test_a_sealed_value_shows_nothing_and_is_never_the_same_twice() -> None:
    first, second = Sealer(KEY).seal("task_1", SECRET), Sealer(KEY).seal("task_1", SECRET)
    assert first != second
    assert b"hunter2" not in first
    assert len(first) == 1 + 12 + len(SECRET) + 16


def test_every_altered_byte_is_noticed() -> None:
    sealed = Sealer(KEY).seal("task_1", SECRET)
    for at in range(len(sealed)):
        altered = bytearray(sealed)
        altered[at] ^= 1
        with pytest.raises(SealError, match="task_1 cannot be opened"):
            Sealer(KEY).open("task_1", bytes(altered))


@pytest.mark.parametrize("length", [0, 1, 12, 13, 28, 40])
def test_a_cut_value_is_noticed(length: int) -> None:
    with pytest.raises(SealError):
        Sealer(KEY).open("task_1", Sealer(KEY).seal("task_1", SECRET)[:length])


def test_another_task_or_another_key_does_not_open_it() -> None:
    sealed = Sealer(KEY).seal("task_1", SECRET)
    with pytest.raises(SealError):
        Sealer(KEY).open("task_2", sealed)
    with pytest.raises(SealError):
        Sealer(bytes(32)).open("task_1", sealed)


def test_the_error_does_not_carry_the_secret() -> None:
    with pytest.raises(SealError) as refused:
        Sealer(KEY).open("task_2", Sealer(KEY).seal("task_1", SECRET))
    assert refused.value.code == "seal_error"
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be 32 bytes in base64, not 0"),
        ("not base64!", "is not base64"),
        (base64.b64encode(bytes(16)).decode(), "must be 32 bytes in base64, not 16"),
    ],
)
def test_a_bad_key_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(SealError, match=message):
        decode_key(text)


def test_a_key_of_the_wrong_length_makes_no_sealer() -> None:
    with pytest.raises(SealError, match="must be 32 bytes, not 31"):
        Sealer(bytes(31))


def test_the_first_start_makes_a_private_key_and_later_ones_find_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "seal.key"
    key = load_or_create_key(path)
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_key(path) == key
    assert decode_key(path.read_text()) == key
    assert [entry.name for entry in path.parent.iterdir()] == ["seal.key"]


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    with ThreadPoolExecutor(16) as pool:
        keys = list(pool.map(lambda _: load_or_create_key(path), range(64)))
    assert len(set(keys)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["seal.key"]


def test_a_damaged_key_file_is_never_silently_replaced(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SealError):
        load_or_create_key(path)
    assert path.read_bytes() == b"\xff\xfe"
