"""One streamed HTTP request through the openai SDK, read by a thread so that its owner can always be woken.

A blocking read cannot be interrupted from another thread in any phase (name, connect, TLS, headers, body);
waiting on a condition can. The thread reads at most `_AHEAD` pieces ahead: the consumer's pace is the brake.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from service.errors import ModelError
from worker.llm.failures import Transient, classify
from worker.llm.profiles import Profile

CONNECT_S = 10.0
WRITE_S = 60.0
"""A long conversation goes out over a slow line."""
_AHEAD = 64
_MAX_ERROR_BYTES = 1 << 20


def connect(profile: Profile) -> openai.OpenAI:
    """A client for the profile's provider, without opening a connection: it may be made before a fork.

    The TLS context is the expensive part; a replay profile talks to loopback only and gets none, nor a proxy.
    """
    replay = profile.replay is not None
    http = openai.DefaultHttpxClient(
        timeout=httpx2.Timeout(connect=CONNECT_S, read=profile.idle_timeout_s, write=WRITE_S, pool=CONNECT_S),
        trust_env=not replay,
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if replay else True,
        follow_redirects=False,
    )
    client = openai.OpenAI(
        api_key=profile.api_key.get_secret_value() if profile.api_key else "none",
        base_url=profile.base_url or "http://127.0.0.1/v1",
        max_retries=0,
        http_client=http,
    )
    # The SDK fills these from the environment, whatever provider the profile names.
    client.organization = client.project = None
    return client


def warm(profile: Profile) -> None:
    """Loads what the first request would load, by one request that never leaves the process."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b"data: [DONE]\n\n", request=request)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with openai.OpenAI(api_key="none", base_url="http://warm.invalid/v1", max_retries=0, http_client=http) as client:
        connection = Connection(client, {"model": profile.model, "messages": []})
        while connection.receive(CONNECT_S):
            pass


@dataclass(frozen=True, slots=True)
class _End:
    error: ModelError | None


class Connection:
    """Sends `body` at once; `receive` gives the answer's bytes; `close` ends it in any phase, from any thread."""

    def __init__(self, client: openai.OpenAI, body: dict[str, Any]) -> None:
        self._client = client
        self._content = json.dumps(body, ensure_ascii=False).encode()
        self._pieces: deque[bytes | _End] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._socket: socket.socket | None = None
        threading.Thread(target=self._run, name="model-request", daemon=True).start()

    def receive(self, timeout_s: float) -> bytes | None:
        """The next bytes; None when `timeout_s` passed or it was closed; b"" at the end.

        Raises what `worker.llm.failures` made of an answer that is none, and Transient when the line broke.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._closed, timeout_s)
            if self._closed or not self._pieces:
                return None
            piece = self._pieces[0]
            if isinstance(piece, _End):
                if piece.error is not None:
                    raise piece.error
                return b""
            self._pieces.popleft()
            self._changed.notify_all()
            return piece

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._pieces.clear()
            self._changed.notify_all()
            if self._socket is not None:
                # Closing a descriptor does not wake a thread that reads from it; shutting the socket down does.
                # Of a TLS socket only the plain half: its other half belongs to the reading thread.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _run(self) -> None:
        error: ModelError | None = Transient("the request to the model's provider ended unexpectedly")
        try:
            self._read()
            error = None
        except ModelError as failure:
            error = failure
        except openai.APIStatusError as failure:
            error = _status_error(failure.response)
        except openai.APITimeoutError:
            error = Transient("the model's provider did not answer in time")
        except openai.APIConnectionError as failure:
            error = Transient(f"the model's provider cannot be reached: {failure.__cause__ or failure}")
        except httpx2.TimeoutException:
            error = Transient("the model's answer stopped coming")
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as failure:
            error = Transient(f"the model's answer broke off: {failure}")
        finally:
            with self._changed:
                self._socket = None
                self._pieces.append(_End(error))
                self._changed.notify_all()

    def _read(self) -> None:
        response = self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            content=self._content,
            options={"headers": {"Content-Type": "application/json", "X-Stainless-Raw-Response": "stream"}},
        )
        with contextlib.closing(response):
            stream = response.extensions.get("network_stream")
            with self._changed:
                self._socket = stream and stream.get_extra_info("socket")
            for piece in response.iter_bytes():
                if piece and not self._hand_over(piece):
                    return

    def _hand_over(self, piece: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._pieces) < _AHEAD or self._closed)
            if self._closed:
                return False
            self._pieces.append(piece)
            self._changed.notify_all()
            return True


def _status_error(response: httpx2.Response) -> ModelError:
    body: Any = response.content[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(body)
    return classify(response.status_code, body, {key.lower(): value for key, value in response.headers.items()})
