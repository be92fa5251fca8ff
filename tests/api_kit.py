"""The real API for tests: uvicorn on loopback over a real Valkey, real blobs, and a stand-in for nothing."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from service.api.app import create_app
from service.api.connection import ClientConnection
from service.blobs import DiskBlobs
from service.contracts import Catalogue, ExitReason, Key, ModelCard, PatchInfo, Resources, Role, State, Task
from service.queue import Doorbell
from service.seal import Sealer
from service.settings import ServiceSettings
from service.store import Lease, Store

ADMIN = "pyd_admin-key-of-the-tests"
SEAL_KEY = b"k" * 32
MAXIMA = Resources(cpus=2, memory_mb=4096, disk_mb=2048, pids=512)


def catalogue(**changes: Any) -> Catalogue:
    """What a keeper would publish: a priced model, one without a price, two images."""
    values: dict[str, Any] = {
        "host": "host-a",
        "models": (
            ModelCard(name="demo", model="demo", context_window=128_000, price={"input": 0.0, "output": 0.0}),
            ModelCard(name="unpriced", model="x-1", context_window=32_000, price=None),
        ),
        "images": ("patchyard-sandbox", "other-image"),
        "maxima": MAXIMA,
        "engine_ok": True,
        "engine": "Docker 20.10",
        "workers": 1,
        "at": datetime.now(UTC),
    }
    return Catalogue(**{**values, **changes})


def make_tar(files: dict[str, bytes]) -> bytes:
    """A plain tar.gz of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


TAR = make_tar({"shop/price.py": b"PRICE = 1\n", "README": b"read me\n"})


@dataclass
class Api:
    """A running API and what stands behind it."""

    url: str
    app: FastAPI
    store: Store
    blobs: DiskBlobs
    sealer: Sealer
    settings: ServiceSettings
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, secret: str | None = ADMIN) -> httpx.Client:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        made = httpx.Client(base_url=self.url, headers=headers, timeout=20)
        self.clients.append(made)
        return made

    def key(self, team: str, *roles: str) -> tuple[Key, httpx.Client]:
        key, secret = self.store.create_key(team, [Role(role) for role in roles], "of a test")
        return key, self.client(secret)

    def submit(self, client: httpx.Client | None = None, **task: Any) -> dict[str, Any]:
        answer = (client or self.client()).post("/v1/tasks", json={"prompt": "do it", "model": "demo", **task})
        assert answer.status_code == 202, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def claim(self) -> Lease:
        lease = self.store.claim("a-worker")
        assert lease is not None
        return lease

    def finish(
        self, lease: Lease, *, patch: bytes | None = None, state: State = State.SUCCEEDED, **fields: Any
    ) -> Task:
        """Ends a run as a worker would, with a proven patch of these bytes if there are any."""
        if patch is not None:
            blob = self.blobs.put([patch])
            fields["patch"] = patch_info(sha256=blob.sha256, bytes=blob.size)
        self.store.finish(lease, state, fields.pop("exit_reason", ExitReason.COMPLETED), **fields)
        task = self.store.task(lease.task_id)
        assert task is not None
        return task


def patch_info(**changes: Any) -> PatchInfo:
    values: dict[str, Any] = {
        "status": "complete",
        "as_of_turn": 3,
        "sha256": None,
        "bytes": 0,
        "files": 1,
        "additions": 1,
        "deletions": 0,
        "applies_cleanly": True,
        "reproduces_tree": True,
    }
    return PatchInfo(**{**values, **changes})


def wait_until(condition: Any, seconds: float = 10) -> None:
    """Returns as soon as `condition()` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The app behind a real socket; its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=ClientConnection,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
                lifespan="on",
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            app.state.parts.hub.close()
            server.should_exit = True
            thread.join(timeout=15)
            assert not thread.is_alive()


@contextmanager
def serving(
    redis_url: str, folder: Path, *, published: Iterable[Catalogue] | None = None, **settings: Any
) -> Iterator[Api]:
    """An API with a key prefix of its own; with a catalogue unless told otherwise."""
    prefix = f"t-{uuid.uuid4().hex}:"
    known = ServiceSettings(_env_file=None, data_dir=folder, redis_prefix=prefix, **settings)
    blobs = DiskBlobs(known.blob_dir)
    store = Store.connect(redis_url, blobs=blobs, prefix=prefix)
    bell = Doorbell(redis_url, name=prefix + "bell")
    store.ensure_admin_key(ADMIN)
    for each in [catalogue()] if published is None else published:
        store.publish_catalogue(each)
    sealer = Sealer(SEAL_KEY)
    app = create_app(known, store, blobs, sealer, ring=bell.ring)
    try:
        with listening(app) as url:
            api = Api(url, app, store, blobs, sealer, known)
            try:
                yield api
            finally:
                for client in api.clients:
                    client.close()
    finally:
        bell.close()
        store.close()
