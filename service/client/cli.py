"""The `patchyard` command: runs a deployment, and speaks to one over HTTP.

Exit codes: 0 ok, 1 the task failed, 2 usage, 3 cannot reach or sign in, 4 cancelled, 5 the patch awaits review.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from service.client import processes
from service.client.apply import NotApplied, git_apply
from service.client.http import ClientError, Json, PatchyardClient
from service.client.pack import packed
from service.client.render import (
    Progress,
    console,
    key_table,
    patch_text,
    print_patch,
    printable,
    task_details,
    task_table,
)

OK, FAILED, USAGE, UNREACHABLE, CANCELLED, AWAITS_REVIEW = range(6)

app = typer.Typer(
    help="Runs coding tasks in sandboxes and returns proven patches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys_app = typer.Typer(help="Keys of a team.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
processes.register(app)

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Team = Annotated[str | None, typer.Option(help="Another team; for an admin of the team `default`.")]


@dataclass(frozen=True, slots=True)
class _Connection:
    """Where the service is and who asks, from the options before the command."""

    url: str
    key: str


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"patchyard {version('patchyard')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="PATCHYARD_URL", help="Address of the service.")] = "http://127.0.0.1:8080",
    key: Annotated[
        str, typer.Option("--api-key", envvar="PATCHYARD_API_KEY", help="Your key.", show_default=False)
    ] = "",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    context.obj = _Connection(url, key)


def _fail(code: int, text: str) -> typer.Exit:
    console(stderr=True).print(f"patchyard: {printable(text)}")
    return typer.Exit(code)


def _exit_code(error: ClientError) -> int:
    if error.code == "review_required":
        return AWAITS_REVIEW
    if error.code in ("no_patch", "not_finished", "patch_too_large", "review_rejected"):
        return FAILED
    return USAGE if 400 <= error.status < 500 and error.status not in (401, 403, 429) else UNREACHABLE


@contextmanager
def _service(context: typer.Context) -> Iterator[PatchyardClient]:
    """The client; whatever it raises ends the command with one line and the right code."""
    connection: _Connection = context.obj
    try:
        with PatchyardClient(connection.url, connection.key) as client:
            yield client
    except ClientError as error:
        hint = "; set PATCHYARD_API_KEY" if error.status == 401 else ""
        raise _fail(_exit_code(error), error.detail + hint) from None
    except NotApplied as error:
        raise _fail(FAILED, f"the patch was not applied: {error}") from None
    except KeyboardInterrupt:
        raise _fail(130, "interrupted; a task that was submitted goes on") from None


def _print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)  # whoever reads a pipe follows live


def _outcome(task: Json) -> int:
    """The exit code of a finished task."""
    if task["state"] == "cancelled":
        return CANCELLED
    if task["state"] == "failed":
        return FAILED
    return AWAITS_REVIEW if task["review"]["state"] == "pending" else OK


@contextmanager
def _archive(path: str) -> Iterator[BinaryIO]:
    """What to upload: a packed folder, an archive as it is, or with `-` what comes in on stdin."""
    if path == "-":
        with tempfile.TemporaryFile() as archive:  # whole: a pipe does not say how much it will bring
            shutil.copyfileobj(sys.stdin.buffer, archive)
            archive.seek(0)
            yield archive
        return
    source = Path(path)
    try:
        with packed(source) if source.is_dir() else source.open("rb") as archive:
            yield archive
    except OSError as error:
        raise _fail(USAGE, f"cannot read {error.filename or path}: {error.strerror}") from None


def _labels(pairs: list[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise _fail(USAGE, f"a label is NAME=VALUE, not {pair!r}")
        labels[name] = value
    return labels


@app.command()
def submit(
    context: typer.Context,
    message: Annotated[str, typer.Option("--message", "-m", help="What is to be done.")],
    path: Annotated[str | None, typer.Argument(help="Folder to pack, or an archive; `-` reads one from stdin.")] = None,
    model: Annotated[str | None, typer.Option(help="Model profile.")] = None,
    title: Annotated[str | None, typer.Option(help="Shown in lists.")] = None,
    label: Annotated[list[str], typer.Option(help="NAME=VALUE; may be repeated.")] = [],  # noqa: B006
    max_turns: Annotated[int | None, typer.Option(help="Replies of the model.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(help="Money for the model.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens in and out.")] = None,
    wall_time_s: Annotated[int | None, typer.Option(help="Seconds of running time.")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="Memory of the sandbox.")] = None,
    disk_mb: Annotated[int | None, typer.Option(help="Disk of the sandbox.")] = None,
    cpus: Annotated[float | None, typer.Option(help="Processors of the sandbox.")] = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    apply_it: Annotated[bool, typer.Option("--apply", help="Follow it and apply its patch to PATH.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a task. A folder is packed without what .gitignore excludes, and without .git."""
    if apply_it and (path is None or not Path(path).is_dir()):
        raise _fail(USAGE, "--apply needs a folder to apply the patch to")
    limits = {
        "max_turns": max_turns,
        "max_cost_usd": max_cost_usd,
        "max_tokens": max_tokens,
        "wall_time_s": wall_time_s,
    }
    request = {
        "prompt": message,
        "model": model,
        "title": title,
        "labels": _labels(label),
        "limits": _given(limits),
        "resources": _given({"memory_mb": memory_mb, "disk_mb": disk_mb, "cpus": cpus}),
    }
    with _service(context) as client:
        with nullcontext() if path is None else _archive(path) as archive:
            task = client.submit(_given(request), archive)
        if not (watch_it or apply_it):
            _print_json(task) if as_json else print(task["id"])
            return
        code = _follow(client, task["id"], as_json=as_json)
        if apply_it and code == OK and path is not None:
            _apply(client, task["id"], Path(path))
    raise typer.Exit(code)


def _given(values: Json) -> Json:
    return {name: value for name, value in values.items() if value not in (None, {})}


def _follow(client: PatchyardClient, task_id: str, *, as_json: bool) -> int:
    out = console()
    if as_json:
        for event in client.events(task_id):
            _print_json(event)
    else:
        out.print(printable(task_id))
        with Progress(out) as progress:
            for event in client.events(task_id):
                progress.show(event)
    task = client.task(task_id)
    if not as_json:
        if task["summary"]:
            out.print(printable(task["summary"]))
        if task["patch"]:
            out.print(f"patch: {printable(patch_text(task['patch']))}")
    return _outcome(task)


@app.command()
def watch(context: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Follow a task to its end; the exit code says how it went. With --json, one event a line."""
    with _service(context) as client:
        code = _follow(client, task_id, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def ls(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List the team's newest tasks."""
    with _service(context) as client:
        tasks = list(client.tasks(limit))
    _print_json(tasks) if as_json else console().print(task_table(tasks))


@app.command()
def show(context: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Show a task."""
    with _service(context) as client:
        task = client.task(task_id)
    _print_json(task) if as_json else console().print(task_details(task))


@app.command()
def patch(
    context: typer.Context,
    task_id: TaskId,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", dir_okay=False)] = None,
) -> None:
    """Download a task's patch: its exact bytes into a file or a pipe, and made readable on a terminal."""
    with _service(context) as client:
        content = client.patch(task_id)
    if output is not None:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise _fail(USAGE, f"cannot write {output}: {error.strerror}") from None
    elif sys.stdout.isatty():
        print_patch(console(), content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@app.command()
def apply(
    context: typer.Context,
    task_id: TaskId,
    path: Annotated[Path, typer.Argument(help="Folder that was submitted.", exists=True, file_okay=False)] = Path(),
) -> None:
    """Apply a task's patch to a folder, all of it or nothing (git apply)."""
    with _service(context) as client:
        _apply(client, task_id, path)


def _apply(client: PatchyardClient, task_id: str, folder: Path) -> None:
    content = client.patch(task_id)
    if not content:
        console(stderr=True).print("the task changed nothing")
        return
    git_apply(content, folder)
    console(stderr=True).print(f"applied to {printable(str(folder))}")


@app.command()
def cancel(context: typer.Context, task_id: TaskId, as_json: AsJson = False) -> None:
    """Cancel a task."""
    with _service(context) as client:
        task = client.cancel(task_id)
    _print_json(task) if as_json else print(printable(task["state"]))


@keys_app.command("create")
def create_key(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="What it is for.")],
    team: Team = None,
    role: Annotated[list[str], typer.Option(help="submit, review or admin; may be repeated.")] = ["submit"],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Make a key. Its secret is shown now and never again."""
    with _service(context) as client:
        key = client.create_key(_given({"team": team, "roles": role, "name": name}))
    _print_json(key) if as_json else print(key["secret"])


@keys_app.command("list")
def list_keys(context: typer.Context, team: Team = None, as_json: AsJson = False) -> None:
    """List the team's keys, without their secrets."""
    with _service(context) as client:
        keys = client.keys(team)
    _print_json(keys) if as_json else console().print(key_table(keys))


@keys_app.command("revoke")
def revoke_key(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID")],
    team: Team = None,
) -> None:
    """Revoke a key, from now on."""
    with _service(context) as client:
        client.revoke_key(key_id, team)
