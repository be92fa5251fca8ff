"""`patchyard demo`: the whole product on a small project with a failing test, and the proof that it did its job.

Nothing the model wrote runs on this machine: the project's tests run in fresh sandboxes, before and after.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from service.client.apply import NotApplied, git_apply
from service.client.http import Json, PatchyardClient
from service.client.pack import packed
from service.client.render import Progress, patch_text, print_patch, printable
from service.client.up import Deployment, DeploymentFailed, Options

PROMPT = (
    "Customers report totals that are a cent too low, and one of the tests fails. "
    "Find the cause, fix it in the code (not in the test), and make sure that all tests pass."
)
TESTS = ("python3", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
_BOX_MB = 512


def run_demo(out: Console, project: Path, home: Path, deployment: str | None) -> bool:
    """Whether everything held; data go into a folder below `home` that is removed at the end, also by an interrupt.

    The key and the label are the demo's own: what is configured here may belong to a deployment that runs beside it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="demo-") as name:
        folder = Path(name)
        out.print("Starting Redis, the API and a worker …")
        key = f"pyd_{secrets.token_urlsafe(32)}"
        label = deployment and f"{deployment}-{folder.name}"
        with Deployment(Options(folder / "data", workers=1, deployment=label, admin_key=key)) as running:
            for reason in running.await_ready(threading.Event()):
                out.print(f"! {printable(reason)}")
            out.print(f"Ready at {running.url}\n")
            return _show(out, running, project, folder, key)


def _show(out: Console, running: Deployment, project: Path, folder: Path, key: str) -> bool:
    archive = folder / "examples.tgz"
    with packed(project) as source, archive.open("wb") as target:
        shutil.copyfileobj(source, target)
    with PatchyardClient(running.url, key) as client, archive.open("rb") as upload:
        task = _run_task(out, client, upload)
        if task["state"] != "succeeded":
            return False
        patch = client.patch(task["id"])
    out.print(printable(task["summary"] or ""))
    if not patch:
        out.print(f"✗ the task changed nothing; is {printable(str(project))} mended already?", style="red")
        return False
    out.print(f"\nThe patch ({patch_text(task['patch'])}):\n")
    print_patch(out, patch)
    return _prove(out, running, project, archive, patch)


def _run_task(out: Console, client: PatchyardClient, upload: BinaryIO) -> Json:
    """The finished task."""
    names = {model["name"] for model in client.models()["models"]}
    model = "default" if "default" in names else "demo"
    spoken = "your model" if model == "default" else "a bundled recording of a model"
    out.print(f"Submitting the project to {spoken}:\n  {PROMPT}\n")
    request = {
        "prompt": PROMPT,
        "model": model,
        "title": "demo",
        "resources": {"memory_mb": _BOX_MB, "disk_mb": _BOX_MB},
    }
    task = client.submit(request, upload)
    with Progress(out) as progress:
        for event in client.events(task["id"]):
            progress.show(event)
    return client.task(task["id"])


def _prove(out: Console, running: Deployment, project: Path, archive: Path, patch: bytes) -> bool:
    clean = archive.with_name("clean")
    shutil.copytree(project, clean, symlinks=True)
    try:
        git_apply(patch, clean, check_only=True)
    except NotApplied as error:
        out.print(f"✗ git apply --check on a clean copy: {printable(str(error))}", style="red")
        return False
    out.print("✓ git apply --check on a clean copy of the project", style="green")
    patch_file = archive.with_name("demo.patch")
    patch_file.write_bytes(patch)
    done = running.module("worker.proof", str(archive), str(patch_file), "--", *TESTS)
    if done.returncode not in (0, 1):
        raise DeploymentFailed(f"the tests could not be run in a sandbox: {printable(done.stderr.strip())}")
    proof = json.loads(done.stdout)
    held = done.returncode == 0
    for moment, wanted in (("before", "fail"), ("after", "pass")):
        outcome = proof[moment]
        last = outcome["output"].strip().rpartition("\n")[2] if outcome else "the patch did not apply"
        passed = outcome is not None and outcome["exit_code"] == 0
        right = passed == (wanted == "pass")
        out.print(
            f"{'✓' if right else '✗'} the project's tests {moment} the patch, in a fresh sandbox: {printable(last)}",
            style="green" if right else "red",
        )
    return held
