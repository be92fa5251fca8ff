"""Shows what a patch does to a project's own tests: `python -m worker.proof ARCHIVE PATCH COMMAND…`.

The command runs in two fresh boxes, once on the archive as it is and once with the patch applied; nothing of it runs
on the host. Prints one JSON object `{"before": {"exit_code", "output"}, "applies", "after": {…} | null}`. Exits 0 when
the command fails before and passes after, 1 when it does not, 2 when that could not be found out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from service.contracts import Resources, new_id
from service.errors import PatchyardError
from service.intake import canonicalise
from worker.sandbox.base import BoxSpec, Sandbox, SandboxProvider, ToolFailure
from worker.sandbox.docker import DockerProvider
from worker.settings import WorkerSettings

_TIMEOUT_S = 300.0
_CHUNK = 256 << 10
_PATCH = "/tmp/proof.patch"  # noqa: S108 - in the box
_APPLY = f"GIT_CEILING_DIRECTORIES=/ git apply --whitespace=nowarn {_PATCH}"


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int | None
    output: str
    """The first MiB of it."""


@dataclass(frozen=True, slots=True)
class Proof:
    before: Outcome
    applies: bool
    after: Outcome | None
    """None when the patch does not apply."""

    @property
    def holds(self) -> bool:
        return self.before.exit_code != 0 and self.after is not None and self.after.exit_code == 0


def prove(provider: SandboxProvider, image: str, archive: Path, patch: bytes, command: str) -> Proof:
    """Runs `command` without and with the patch; SandboxError or RequestError when that is not possible."""
    with tempfile.TemporaryFile() as tar:
        with archive.open("rb") as upload:
            canonicalise(upload, tar)
        with _box(provider, image, tar) as box:
            before = _run(box, command)
        with _box(provider, image, tar) as box:
            box.write(_PATCH, patch, overwrite=False)
            applied = _run(box, _APPLY)
            if applied.exit_code != 0:
                return Proof(before, applies=False, after=None)
            return Proof(before, applies=True, after=_run(box, command))


@contextmanager
def _box(provider: SandboxProvider, image: str, tar: BinaryIO) -> Iterator[Sandbox]:
    # A probe: it belongs to no run, so no keeper takes it for an orphan.
    spec = BoxSpec(task=new_id("task"), run=1, image=image, purpose="probe", **Resources().model_dump())
    with closing(provider.open(spec)) as box:
        box.claim(spec.task, deadline_s=2 * _TIMEOUT_S)
        tar.seek(0)
        box.load(iter(lambda: tar.read(_CHUNK), b""))
        yield box


def _run(box: Sandbox, command: str) -> Outcome:
    output = bytearray()
    steps = box.exec(command, timeout_s=_TIMEOUT_S)
    while True:
        try:
            output += next(steps)
        except StopIteration as done:
            return Outcome(done.value.exit_code, output.decode("utf-8", "replace"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.proof", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive", type=Path, help="the project as it was uploaded")
    parser.add_argument("patch", type=Path)
    parser.add_argument("command", nargs="+", help="what to run in the project's folder")
    arguments = parser.parse_args()
    try:
        settings = WorkerSettings()
        provider = DockerProvider(
            url=settings.docker_url, deployment=settings.deployment, runtime=settings.sandbox_runtime
        )
        command = shlex.join(arguments.command)
        patch: bytes = arguments.patch.read_bytes()
        proof = prove(provider, settings.sandbox_image, arguments.archive, patch, command)
    except KeyboardInterrupt:
        return 130
    except (ValidationError, PatchyardError, ToolFailure, OSError) as error:
        sys.stderr.write(f"patchyard proof: {error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(proof)) + "\n")
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main())
