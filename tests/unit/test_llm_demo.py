"""The bundled recording fits examples/: its edits mend the shop, and it is what its script writes."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from worker.llm.assembler import Assembler
from worker.llm.profiles import DEMO_RECORDING
from worker.llm.transcript import responses

REPO = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_demo", REPO / "scripts" / "record_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def turns() -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    found = []
    for lines in responses(DEMO_RECORDING.read_text(encoding="utf-8").splitlines()):
        assembler = Assembler()
        assembler.feed("".join(f"data: {line}\n\n" for line in lines).encode())
        message = assembler.finish()[1].message
        found.append((message.text, [(call.name, json.loads(call.arguments)) for call in message.calls]))
    return found


def run_tests(folder: Path) -> int:
    command = [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=60).returncode


def test_the_recording_is_what_its_script_writes() -> None:
    assert turns() == script().TURNS


def test_its_calls_are_the_ones_the_demo_shows() -> None:
    assert [[name for name, _ in calls] for _, calls in turns()] == [
        ["todo", "bash"],
        ["todo", "read_file", "search"],
        ["edit_file"],
        ["todo", "bash"],
        ["todo", "done"],
    ]


def test_its_edit_mends_the_shop(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(REPO / "examples", shop)
    assert run_tests(shop) == 1
    for _, calls in turns():
        for name, arguments in calls:
            if name == "edit_file":
                file = shop / arguments["path"]
                text = file.read_text(encoding="utf-8")
                assert text.count(arguments["old"]) == 1
                file.write_text(text.replace(arguments["old"], arguments["new"]), encoding="utf-8")
    assert run_tests(shop) == 0


def test_each_todo_has_at_most_one_item_in_progress() -> None:
    lists = [arguments["items"] for _, calls in turns() for name, arguments in calls if name == "todo"]
    states = [[item["status"] for item in items] for items in lists]
    assert states == [
        ["in_progress", "pending", "pending"],
        ["completed", "in_progress", "pending"],
        ["completed", "completed", "in_progress"],
        ["completed", "completed", "completed"],
    ]
