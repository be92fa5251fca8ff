"""Says whether this host can run tasks safely: `python -m worker.doctor [--json]`.

Each check is made, not assumed: the engine is asked, a real box is started with the options of every task, and what
must not work in it is tried from inside, as the user that tools run as. Ends non-zero when a check fails.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from service.contracts import Resources, new_id
from service.errors import PatchyardError
from worker.parts import Parts, build_parts
from worker.sandbox.base import BoxSpec, Sandbox
from worker.sandbox.docker import engine_health
from worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


_WRITE = "for f in /etc/x /usr/x /opt/patchyard/x /x; do touch $f 2>/dev/null && exit 1; done; exit 0"
_READ = "for f in environ maps mem; do cat /proc/1/$f >/dev/null 2>&1 && exit 1; done; exit 0"
_SIGNALS = "for s in $(seq 1 64); do kill -s $s 1; done; exit 0"
_MOUNT = "import ctypes, sys; sys.exit(ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0)"
PROBES = (
    ("no network", 'test "$(ls /sys/class/net)" = lo', "only the loopback device exists in a box"),
    ("not root", 'test "$(id -u)" = 10001', "tools run as uid 10001"),
    ("no capabilities", r"grep -q '^CapEff:\s0*$' /proc/self/status", "the effective capability set is empty"),
    ("no new privileges", r"grep -q '^NoNewPrivs:\s1' /proc/self/status", "setuid programs gain nothing"),
    ("system call filter", r"grep -q '^Seccomp:\s2' /proc/self/status", "the seccomp profile is in force"),
    ("read-only root", _WRITE, "nothing outside the tmpfs mounts is writable"),
    ("no user namespaces", "command -v unshare && ! unshare -Ur true", "unshare is refused"),
    ("no mounts", f'python3 -c "{_MOUNT}"', "mount is refused"),
    ("supervisor unreadable", _READ, "PID 1 is non-dumpable"),
    ("supervisor unkillable", _SIGNALS, "no signal to PID 1 changes anything"),
    ("no Docker socket", "! test -e /var/run/docker.sock", "the engine cannot be reached from a box"),
    ("no core dumps", 'test "$(ulimit -c)" = 0', "a crash writes nothing"),
)
"""Name, a command that must exit 0 in the box, and what that shows."""


def checks(parts: Parts) -> Iterator[Check]:
    settings = parts.settings
    machine = platform.machine()
    yield Check("machine", machine == "x86_64", f"{machine}; the system call profile is for x86-64")
    if "redis_url" in settings.model_fields_set:
        yield _answers("store", parts.store.ping, "Redis answers")
    else:
        yield Check("store", True, "no PATCHYARD_REDIS_URL: `patchyard up` brings its own Redis")
    health = engine_health(settings.docker_url, runtime=settings.sandbox_runtime, image=settings.sandbox_image)
    yield Check("engine", health.ok, f"{health.engine}; image {settings.sandbox_image}")
    if not health.ok:
        return
    try:
        box = parts.provider.open(_probe_spec(settings.sandbox_image))
    except PatchyardError as error:
        yield Check("sandbox", False, error.detail)
        return
    with closing(box):
        box.claim("doctor", deadline_s=120)
        yield Check("sandbox", True, f"a box answers ({box.info.runtime}, Python {box.info.python})")
        for name, command, shows in PROBES:
            yield _probe(box, name, command, shows)
        yield _probe(box, "still alive", "true", "after all that the next command works")


def _probe_spec(image: str) -> BoxSpec:
    resources = Resources(cpus=1, memory_mb=256, disk_mb=64, pids=64)
    return BoxSpec(task=new_id("task"), run=1, image=image, purpose="probe", **resources.model_dump())


def _probe(box: Sandbox, name: str, command: str, shows: str) -> Check:
    steps = box.exec(command, timeout_s=20)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        return Check(name, done.value.exit_code == 0, shows)
    except PatchyardError as error:
        return Check(name, False, error.detail)


def _answers(name: str, ask: Callable[[], None], shows: str) -> Check:
    try:
        ask()
    except PatchyardError as error:
        return Check(name, False, error.detail)
    return Check(name, True, shows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    arguments = parser.parse_args()
    try:
        found = list(checks(build_parts(WorkerSettings())))
    except (ValidationError, ValueError, PatchyardError) as error:
        sys.stderr.write(f"patchyard doctor: {error}\n")
        return 2
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(check) for check in found], indent=1) + "\n")
    else:
        table = Table("check", "", "what was seen", box=None)
        for check in found:
            table.add_row(check.name, "[green]ok[/]" if check.ok else "[red]FAILED[/]", check.detail)
        Console().print(table)
    return 0 if all(check.ok for check in found) else 1


if __name__ == "__main__":
    sys.exit(main())
