"""`make setup` on machines that lack something: copies of the scripts, with a PATH of stand-ins for what they call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
REAL = (
    *("dirname", "flock", "mkdir", "seq", "timeout", "tail", "cat", "grep", "rm", "env", "xargs"),
    *("sort", "find", "sleep", "touch", "mv"),
)


class Machine:
    """A PATH that holds only what it was given, and a checkout of the scripts alone."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.bin.mkdir()
        shutil.copytree(SCRIPTS, self.root / "scripts")
        for name in REAL:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.has("uname", "echo Linux x86_64")
        self.has("id", "echo 0")
        self.has("git", "exit 0")
        self.has("python3", "exit 0")
        self.has("uv", "exit 0")
        self.environment = {"PATH": str(self.bin), "TMPDIR": str(folder), "DOCKER_HOST": "unix:///nowhere.sock"}

    def has(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def lacks(self, name: str) -> None:
        (self.bin / name).unlink()

    def start(self, name: str = "setup.sh") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / "scripts" / name)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str = "setup.sh") -> tuple[int, str]:
        """Exit code and what it said."""
        process = self.start(name)
        stdout, stderr = process.communicate(timeout=60)
        assert stdout == ""
        return process.returncode, stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


NO_ENGINE = "patchyard: no Docker engine answers at DOCKER_HOST=unix:///nowhere.sock\n"


def test_another_processor_is_refused_before_anything_is_done(machine: Machine) -> None:
    machine.has("uname", "echo Linux aarch64")
    machine.has("uv", 'touch "${0%/*}/../ran"')
    said = "patchyard: needs Linux on x86-64: the seccomp profile names its system calls\n"
    assert machine.run() == (1, said)
    assert not (machine.bin.parent / "ran").exists()


def test_an_old_python_is_named(machine: Machine) -> None:
    machine.has("python3", '[ "$1" = -V ] && echo Python 3.10.12 && exit; exit 1')
    assert machine.run() == (
        1,
        "patchyard: needs Python 3.11 or later (Debian 12, Ubuntu 24.04), and python3 here is Python 3.10.12\n",
    )


def test_who_may_not_use_docker_learns_it_before_any_download(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("uv", 'touch "${0%/*}/../ran"')
    machine.lacks("git")
    assert machine.run() == (1, NO_ENGINE)
    assert not (machine.bin.parent / "ran").exists()


@pytest.mark.parametrize(
    ("says", "updates"),
    [
        ("E: Could not get lock /var/lib/apt/lists/lock", 2),
        ("E: The repository of somebody else has no Release file", 1),
    ],
)
def test_what_lacks_is_installed_in_one_go(machine: Machine, says: str, updates: int) -> None:
    """The first apt-get knows no package yet, and the first update fails."""
    log = machine.bin.parent / "apt"
    machine.lacks("git")
    machine.lacks("uv")
    machine.has("python3", '[[ $2 == *ensurepip* && ! -e "${0%/*}/../venv" ]] && exit 1; exit 0')
    machine.has("sleep", f"echo sleep $1 >>{log}")
    machine.has(
        "apt-get",
        f'echo "$*" >>{log}; case $(grep -c . {log}) in 1) exit 100 ;; 2) echo "{says}" >&2; exit 100 ;; esac; '
        f"[[ $* != *install* ]] || touch {machine.bin.parent}/venv",
    )
    code, said = machine.run()
    assert code == 1
    assert said.splitlines()[0] == "patchyard: installing git python3-venv"
    assert NO_ENGINE in said
    install = "-q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends git python3-venv"
    update = "-q -o DPkg::Lock::Timeout=300 update"
    assert log.read_text().splitlines() == [install, update, *["sleep 5", update] * (updates - 1), install]


def test_without_the_right_to_install_the_command_is_said(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("docker", "echo 20.10")
    machine.lacks("git")
    assert machine.run() == (
        1,
        "patchyard: needs the package(s) git: run 'sudo apt-get install git' and try again\n",
    )


def _slow_uv(machine: Machine) -> Callable[[], bool]:
    """An uv that takes for ever; whether it runs."""
    pid = machine.bin.parent / "pid"
    machine.has("uv", f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 300")

    def runs() -> bool:
        if not pid.exists():
            return False
        stat = Path(f"/proc/{pid.read_text().strip()}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"

    return runs


def _await(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failing_engine_ends_the_other_half_at_once(machine: Machine) -> None:
    runs = _slow_uv(machine)
    machine.has("docker", f"while [ ! -e {machine.bin.parent}/pid ]; do sleep 0.05; done; exit 1")
    begin = time.monotonic()
    assert machine.run() == (1, "patchyard: installing Python packages into .venv\n" + NO_ENGINE)
    assert time.monotonic() - begin < 8
    assert not runs()


def test_ctrl_c_ends_both_halves_at_once(machine: Machine) -> None:
    runs = _slow_uv(machine)
    machine.has("docker", "case $1 in version) echo 20.10 ;; *) exec sleep 300 ;; esac")
    process = machine.start()
    _await(runs)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130
    assert not runs()


def test_containers_of_others_are_no_failure(machine: Machine) -> None:
    removed = machine.bin.parent / "removed"
    machine.has("docker", f"if [[ $1 == rm ]]; then echo $* >{removed}; else echo 1 test-7-a; echo 2 other; fi")
    process = subprocess.run(
        [str(machine.root / "scripts" / "remove-containers.sh"), "test-7"], env=machine.environment, check=False
    )
    assert process.returncode == 0
    assert removed.read_text() == "rm -f -v 1\n"


def test_cleaning_goes_on_where_an_image_is_in_use(machine: Machine) -> None:
    machine.has("docker", "[[ $1 == images ]] && echo 0123abcd; [[ $1 == rmi ]] && exit 1; exit 0")
    (machine.root / ".venv").mkdir()
    (machine.root / ".patchyard" / "data").mkdir(parents=True)
    (machine.root / ".patchyard" / "uv").mkdir()
    assert machine.run("clean.sh") == (0, "patchyard: what is still in use stays\n")
    assert not (machine.root / ".venv").exists()
    assert [path.name for path in (machine.root / ".patchyard").iterdir()] == ["data"]
