"""Secrets at rest: AES-256-GCM, bound to the task they belong to.

A sealed value is version byte, 12-byte random nonce, ciphertext with tag. Version and task id are the associated
data, so that one task's secrets cannot be opened as another's.
"""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.errors import PatchyardError
from service.keyfile import load_or_make

KEY_BYTES = 32
_VERSION = b"\x01"
_NONCE_BYTES = 12
"""As AES-GCM wants it (NIST SP 800-38D); random, good for 2^32 values under one key."""


class SealError(PatchyardError):
    """The sealing key is not usable, or a sealed value is not what this key sealed for this task."""

    code = "seal_error"


class Sealer:
    """Seals and opens under one key; safe to share between threads."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise SealError(f"the sealing key must be {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def seal(self, task_id: str, value: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, value, _VERSION + task_id.encode())

    def open(self, task_id: str, sealed: bytes) -> bytes:
        """The value; SealError when a bit, the task or the key is another one."""
        version, nonce, body = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, version + task_id.encode())
        except (InvalidTag, ValueError):
            raise SealError(
                f"the secrets of {task_id} cannot be opened: they were altered, or PATCHYARD_SEAL_KEY has changed"
            ) from None


def decode_key(text: str) -> bytes:
    """The key from its base64 text (`PATCHYARD_SEAL_KEY`); SealError says what is wrong with it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raise SealError("the sealing key is not base64") from None
    if len(key) != KEY_BYTES:
        raise SealError(f"the sealing key must be {KEY_BYTES} bytes in base64, not {len(key)}")
    return key


def load_or_create_key(path: Path) -> bytes:
    """The key kept in this file; made on the first start, mode 600, one and the same for twins that start together."""
    kept, _ = load_or_make(path, lambda: base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii"))
    return decode_key(kept)
