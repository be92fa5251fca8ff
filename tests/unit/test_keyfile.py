"""A secret of the first start: whole or not there, private, and never one that nobody can use."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from service import keyfile
from service.api.__main__ import Unusable, admin_secret
from service.keyfile import load_or_make
from service.settings import ServiceSettings


def settings(folder: Path, **given: Any) -> ServiceSettings:
    return ServiceSettings(_env_file=None, data_dir=folder, **given)


def test_it_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.key"
    assert load_or_make(path, lambda: "one") == ("one", True)
    assert load_or_make(path, lambda: "two") == ("one", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_leaves_no_empty_key_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would take it for the key, and nobody could ever sign in."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(keyfile.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            admin_secret(settings(tmp_path))
    assert list(tmp_path.iterdir()) == []
    secret = admin_secret(settings(tmp_path))
    assert (secret[:4], len(secret)) == ("pyd_", 47)


@pytest.mark.parametrize("kept", ["", "two words", "caf\u00e9", "x" * 513], ids=["empty", "blank", "accent", "long"])
def test_a_key_that_cannot_be_sent_is_refused_at_the_start(tmp_path: Path, kept: str) -> None:
    (tmp_path / "admin.key").write_text(kept + "\n", encoding="utf-8")
    with pytest.raises(Unusable, match=r"admin\.key holds no key"):
        admin_secret(settings(tmp_path))
    if kept:
        with pytest.raises(Unusable, match="PATCHYARD_ADMIN_KEY holds no key"):
            admin_secret(settings(tmp_path, admin_key=kept))


def test_the_key_is_shown_by_the_start_that_made_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = admin_secret(settings(tmp_path))
    assert secret in capsys.readouterr().out
    assert admin_secret(settings(tmp_path)) == secret
    assert capsys.readouterr().out == ""
