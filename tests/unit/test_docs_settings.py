"""docs/operations.md names every setting there is, and docs/cli.md every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.client.cli import app
from service.settings import ServiceSettings
from worker.settings import WorkerSettings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("settings", [ServiceSettings, WorkerSettings])
def test_every_setting_is_in_the_table(settings: type[ServiceSettings | WorkerSettings]) -> None:
    table = (DOCS / "operations.md").read_text(encoding="utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    named = set(re.findall(r"`([A-Z_]+)`", " ".join(rows)))
    assert {name.upper() for name in settings.model_fields} - named == set()


def test_every_command_is_in_the_table() -> None:
    rows = [line.split("|")[1] for line in (DOCS / "cli.md").read_text(encoding="utf-8").splitlines() if "|" in line]
    named = set(re.findall(r"`([a-z]+)", " ".join(rows)))
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    assert commands - named == set()
