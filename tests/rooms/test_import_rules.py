"""The rooms of docs/architecture.md: arrows point down only, and the loop stays one page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_point_down_only() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert linted.returncode == 0, linted.stdout[-4000:] + linted.stderr[-2000:]
    assert "0 broken" in linted.stdout


def test_the_loop_is_one_page() -> None:
    lines = (ROOT / "worker" / "agent" / "loop.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200


def test_no_run_leaves_a_named_temporary_file_behind_when_it_is_killed() -> None:
    """A file without a name goes with its process; blobs have their own folder, which every start tidies."""
    named = ("TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp")
    makers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "worker").rglob("*.py")
        if any(name in path.read_text(encoding="utf-8") for name in named)
    ]
    assert makers == ["worker/sandbox/local.py"]  # the subprocess sandbox of the tests


def test_only_the_settings_read_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for room in ("service", "worker")
        for path in (ROOT / room).rglob("*.py")
        if "os.environ" in (text := path.read_text(encoding="utf-8")) or "os.getenv" in text
    ]
    assert sorted(readers) == ["service/settings.py", "worker/settings.py"]
