"""`python -m service.api`: the API process.

It starts whether or not Redis answers: `/healthz` is up, everything else says 503 until the store is there. The admin
key is made sure of as soon as it is.
"""

from __future__ import annotations

import secrets
import sys
import threading
from types import FrameType

import uvicorn
from pydantic import ValidationError

from service import telemetry
from service.api import auth
from service.api.app import create_app
from service.api.connection import ClientConnection
from service.api.parts import Parts
from service.blobs import DiskBlobs
from service.errors import PatchyardError, Unavailable
from service.keyfile import load_or_make
from service.queue import Doorbell
from service.seal import Sealer, decode_key, load_or_create_key
from service.settings import ServiceSettings
from service.store import Store

GRACE_S = 3
"""For requests in flight at a stop; streams end at once, and their clients go on elsewhere."""
RETRY_S = 1.0
KEEP_ALIVE_S = 15
MAX_HEADER_BYTES = 32 << 10

log = telemetry.logger("api.main")


class _Server(uvicorn.Server):
    """Ends the event streams first, so that a stop does not wait for viewers."""

    def __init__(self, config: uvicorn.Config, parts: Parts) -> None:
        super().__init__(config)
        self._parts = parts

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._parts.hub.close()
        super().handle_exit(sig, frame)


class Unusable(PatchyardError):
    """What this process was given to start with."""


def admin_secret(settings: ServiceSettings) -> str:
    """The configured admin key; without one the key of the data folder, made and shown on the first start."""
    if settings.admin_key is not None:
        return _usable(settings.admin_key.get_secret_value(), "PATCHYARD_ADMIN_KEY")
    path = settings.admin_key_file
    secret, made = load_or_make(path, lambda: f"pyd_{secrets.token_urlsafe(32)}")
    if made:
        sys.stdout.write(f"The admin key, shown once and kept in {path}: {secret}\n")
        sys.stdout.flush()  # into a pipe or a journal it would else come when this process ends
    return _usable(secret, str(path))


def _usable(secret: str, source: str) -> str:
    if not auth.SECRET.fullmatch(secret):
        raise Unusable(f"{source} holds no key: one is 1 to 512 visible ASCII characters; nobody could sign in with it")
    return secret


def _ensure_admin(store: Store, secret: str, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            key = store.ensure_admin_key(secret)
        except Unavailable:
            stopping.wait(RETRY_S)
        else:
            log.info("admin_key_ready", key=key.id)
            return


def _sealer(settings: ServiceSettings) -> Sealer:
    if settings.seal_key is not None:
        return Sealer(decode_key(settings.seal_key.get_secret_value()))
    return Sealer(load_or_create_key(settings.seal_key_file))


def _server(settings: ServiceSettings, store: Store, blobs: DiskBlobs) -> _Server:
    doorbell = Doorbell(settings.redis_url.get_secret_value())
    app = create_app(settings, store, blobs, _sealer(settings), ring=doorbell.ring)
    config = uvicorn.Config(
        app,
        http=ClientConnection,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    return _Server(config, app.state.parts)


def main() -> int:
    try:
        settings = ServiceSettings()
        telemetry.configure_logging(settings.log_level, service="api")
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        blobs = DiskBlobs(settings.blob_dir)
        store = Store.connect(settings.redis_url.get_secret_value(), blobs=blobs, prefix=settings.redis_prefix)
        server, secret = _server(settings, store, blobs), admin_secret(settings)
    except (ValidationError, PatchyardError, OSError) as error:
        sys.stderr.write(f"patchyard api: {error}\n")
        return 2
    stopping = threading.Event()
    making_admin = threading.Thread(target=_ensure_admin, args=(store, secret, stopping), name="admin-key", daemon=True)
    making_admin.start()
    try:
        server.run()
    finally:
        stopping.set()
        making_admin.join(timeout=GRACE_S)
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
