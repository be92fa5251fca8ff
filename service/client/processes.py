"""The commands that start processes on this machine: up, api, worker, doctor, demo."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from service.client.demo import run_demo
from service.client.http import ClientError
from service.client.render import console, printable
from service.client.up import (
    Deployment,
    DeploymentFailed,
    Options,
    interrupt_on_signals,
    port_is_free,
    stop_on_signals,
)
from service.settings import UpSettings, child_environment

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
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="0 takes a free one.  [default: 8080]")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keeps everything.  [default: .patchyard/data]")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="Tasks at one time.  [default: 2]")] = None,
    deployment: Annotated[
        str | None, typer.Option(help="Label of the containers; without it one of the data folder.")
    ] = None,
) -> None:
    """Run everything here: embedded Redis, the API and workers. Ctrl-C stops it; tasks in the queue stay.

    Options not given are read from PATCHYARD_HOST, PATCHYARD_PORT and so on, in the environment or in `.env`.
    """
    settings = _up_settings(host=host, port=port, data_dir=data_dir, workers=workers, deployment=deployment)
    out = console()
    stop = stop_on_signals()
    options = Options(settings.data_dir, settings.host, settings.port, settings.workers, settings.deployment)
    try:
        if settings.port and not port_is_free(settings.host, settings.port):
            raise _fail(f"port {settings.port} of {settings.host} is in use; choose another with --port", 2)
        with Deployment(options) as running:
            reasons = running.await_ready(stop)
            if not stop.is_set():
                out.print(f"ready: {running.url} (docs at {running.url}/docs)")
                key = running.admin_key_file if settings.admin_key is None else "the one of PATCHYARD_ADMIN_KEY"
                out.print(f"admin key: {key}, logs: {running.logs}")
                for reason in reasons:
                    out.print(f"! {printable(reason)}")
            running.wait(stop)
            out.print("stopping …")
    except (DeploymentFailed, OSError) as error:
        raise _fail(printable(str(error))) from None


def _up_settings(**given: Any) -> UpSettings:
    try:
        return UpSettings(**{name: value for name, value in given.items() if value is not None})
    except (ValidationError, OSError) as error:
        raise _fail(f"the settings cannot be used: {printable(_problems(error))}", 2) from None


def _problems(error: ValidationError | OSError) -> str:
    if isinstance(error, OSError):
        return str(error)
    return "; ".join(f"PATCHYARD_{'.'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors())


def demo(
    project: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The project to mend.", show_default=False)
    ] = EXAMPLES,
    deployment: Label = None,
) -> None:
    """Show the whole product on a small project with a failing test, and prove the patch."""
    out = console()
    interrupt_on_signals()
    try:
        held = run_demo(out, project, HOME, deployment)
    except (DeploymentFailed, ClientError, OSError) as error:
        raise _fail(printable(str(error))) from None
    except KeyboardInterrupt:
        raise _fail("interrupted; nothing was left behind", 130) from None
    if not held:
        raise _fail("the demo did not do what it should; see above")
    out.print("\nStart your own with `.venv/bin/patchyard up`; its API is described at http://127.0.0.1:8080/docs")


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
