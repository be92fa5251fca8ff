"""The commands that start processes on this machine: up, api, worker, doctor, demo."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from service.client.demo import run_demo
from service.client.http import ClientError
from service.client.render import console, printable
from service.client.up import Deployment, DeploymentFailed, Options, port_is_free, stop_on_signals
from service.settings import child_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
HOME = Path(".patchyard")

Label = Annotated[
    str | None,
    typer.Option(envvar="PATCHYARD_DEPLOYMENT", help="Label of the containers; without it one of the data folder."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    for command in (up, api, worker, doctor, demo):
        app.command()(command)


def _fail(text: str, code: int = 1) -> typer.Exit:
    console(stderr=True).print(f"patchyard: {text}")
    return typer.Exit(code)


def up(
    host: Annotated[str, typer.Option(envvar="PATCHYARD_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PATCHYARD_PORT", min=0, max=65_535, help="0 takes a free one.")] = 8080,
    data_dir: Annotated[
        Path, typer.Option(envvar="PATCHYARD_DATA_DIR", file_okay=False, help="Keeps everything.")
    ] = HOME / "data",
    workers: Annotated[int, typer.Option(envvar="PATCHYARD_WORKERS", min=1, max=64, help="Tasks at one time.")] = 2,
    deployment: Label = None,
) -> None:
    """Run everything here: embedded Redis, the API and workers. Ctrl-C stops it; tasks in the queue stay."""
    if port and not port_is_free(host, port):
        raise _fail(f"port {port} of {host} is in use; choose another with --port", 2)
    out = console()
    stop = stop_on_signals()
    try:
        with Deployment(Options(data_dir, host, port, workers, deployment)) as running:
            reasons = running.await_ready(stop)
            if not stop.is_set():
                out.print(f"ready: {running.url} (docs at {running.url}/docs)")
                out.print(f"admin key: {running.admin_key_file}, logs: {running.logs}")
                for reason in reasons:
                    out.print(f"! {printable(reason)}")
            running.wait(stop)
            out.print("stopping …")
    except DeploymentFailed as error:
        raise _fail(printable(str(error))) from None


def demo(
    project: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The project to mend.", show_default=False)
    ] = EXAMPLES,
    deployment: Label = None,
) -> None:
    """Show the whole product on a small project with a failing test, and prove the patch."""
    out = console()
    stop = stop_on_signals()
    try:
        held = run_demo(out, project, HOME, deployment, stop)
    except (DeploymentFailed, ClientError) as error:
        raise _fail(printable(str(error))) from None
    if stop.is_set():
        raise typer.Exit(130)
    if not held:
        raise _fail("the demo did not do what it should; see above")
    out.print("\nStart your own with `patchyard up`; its API is described at http://127.0.0.1:8080/docs")


def api() -> None:
    """Run the API alone; configured by PATCHYARD_* (docs/operations.md)."""
    _become("service.api", model_keys=False)


def worker() -> None:
    """Run a worker host alone; configured by PATCHYARD_* (docs/operations.md)."""
    _become("worker.main", model_keys=True)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say whether this host can run tasks safely."""
    _become("worker.doctor", *(["--json"] if as_json else []), model_keys=True)


def _become(module: str, *arguments: str, model_keys: bool) -> None:
    # Replaced, not started: signals and the exit code are the module's own.
    command = [sys.executable, "-m", module, *arguments]
    os.execve(sys.executable, command, child_environment({}, model_keys=model_keys))  # noqa: S606
