"""Protects the bot's server: checks origins and offers, and limits concurrent calls.

Otherwise any page that the user opens could call the bot and use the keys in ``.env``. Before the
runner gets a request, its origin, host and size are checked, and an offer must be valid and within
the limit of calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from aiortc.sdp import SessionDescription
from loguru import logger
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection

from pipecat_hedge.telemetry import LIVE_PATH, AllowedOrigins

__all__ = ["CONNECT_SECS", "MAX_BYTES", "MAX_SESSIONS", "Gate", "connected_in_time"]

MAX_BYTES = 65_536
"""Of a request's body."""
MAX_SESSIONS = 16
CONNECT_SECS = 15.0
"""The longest time for a call to connect."""
WATCHED = ("/metrics", LIVE_PATH)
"""Paths for scrapers and ``pipecat-hedge top`` on other machines."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Rejected(Exception):
    """A rejected request."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Gate:
    """An ASGI middleware that checks requests.

    A call runs inside the request that offered it, so it counts for as long as that request runs.

    Attributes:
        sessions: The number of calls, including those being set up.
    """

    def __init__(
        self,
        app: App,
        origins: AllowedOrigins,
        *,
        max_sessions: int = MAX_SESSIONS,
        is_local: bool = True,
        is_known: Callable[[str], bool] = lambda pc_id: False,
    ):
        """Wrap an application.

        Args:
            app: The application.
            origins: The allowed origins.
            max_sessions: The most concurrent calls.
            is_local: Whether the server is bound to loopback. If not, metrics and the live feed may
                be read under any host name.
            is_known: Whether a call with that connection id is running; an offer to it is not a new
                call.
        """
        self._app, self._origins = app, origins
        self._max_sessions, self._is_local, self._is_known = max_sessions, is_local, is_known
        self.sessions = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it; see ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            body = await _read(receive) if _has_body(scope) else None
            starts_call = self._starts_call(scope, body)
            if starts_call and self.sessions >= self._max_sessions:
                raise Rejected(503, f"all {self._max_sessions} sessions are taken: try again later")
        except Rejected as rejected:
            await _reject(scope, receive, send, rejected)
            return
        self.sessions += starts_call  # no await between check and increment
        try:
            await self._app(scope, receive if body is None else _replayed(body, receive), send)
        finally:
            self.sessions -= starts_call

    def _check(self, scope: Message) -> None:
        def header_values(wanted: bytes) -> list[str]:
            return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]

        is_open = scope["path"] in WATCHED and not self._is_local
        why = self._origins.why_forbidden(
            header_values(b"origin"), None if is_open else header_values(b"host")
        )
        if why is not None:
            raise Rejected(403, f"{why} (see --allow-origin)")

    def _starts_call(self, scope: Message, body: bytes | None) -> bool:
        if scope["type"] == "websocket":
            return True
        if scope["method"] != "POST" or not scope["path"].rstrip("/").endswith("/api/offer"):
            return False
        pc_id = _checked_offer(body or b"")
        return pc_id is None or not self._is_known(pc_id)


def _has_body(scope: Message) -> bool:
    return scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS")


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Rejected(400, "the request is incomplete")
        body += message.get("body", b"")
        if len(body) > MAX_BYTES:
            raise Rejected(413, f"more than {MAX_BYTES // 1024} KB: too long for an offer")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns the body that was already read."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def _checked_offer(body: bytes) -> str | None:
    """Return the connection id of an offer; None for a new call.

    Raises:
        Rejected: If it is not an offer.
    """
    try:
        offer = json.loads(body)
    except (ValueError, RecursionError):
        raise Rejected(400, "the offer is not JSON") from None
    if not isinstance(offer, dict) or offer.get("type") != "offer":
        raise Rejected(400, 'not an offer: it needs a type, "offer", and an sdp')
    sdp, pc_id = offer.get("sdp"), offer.get("pc_id")
    if not isinstance(sdp, str) or not (pc_id is None or isinstance(pc_id, str)):
        raise Rejected(400, "not an offer: sdp and pc_id must be strings")
    try:
        media = SessionDescription.parse(sdp).media
    except Exception:  # the parser may raise anything on untrusted input
        raise Rejected(400, "the offer's sdp cannot be read") from None
    if not media:
        raise Rejected(400, "the offer's sdp offers no media")
    for each in media:
        if each.ice is None or not (each.ice.usernameFragment and each.ice.password):
            raise Rejected(400, "the offer's sdp has no ICE credentials")
        if each.dtls is None or not each.dtls.fingerprints:
            raise Rejected(400, "the offer's sdp has no fingerprint")
    return pc_id


async def _reject(scope: Message, receive: Receive, send: Send, rejected: Rejected) -> None:
    body = f"{rejected}\n".encode()
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": str(rejected)})
        return
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if rejected.status == 503:
        headers.append((b"retry-after", b"15"))
    await send({"type": "http.response.start", "status": rejected.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected_in_time(
    connection: SmallWebRTCConnection, secs: float = CONNECT_SECS
) -> AsyncIterator[None]:
    """Cancel the body if the connection is not established in time; always close the connection."""
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    try:
        async with limit:

            def check() -> None:
                if connection.pc.connectionState != "connected":
                    limit.reschedule(loop.time())

            alarm = loop.call_later(secs, check)
            try:
                yield
            finally:
                alarm.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        logger.info(f"a call did not connect within {secs:g} s and was closed")
    finally:
        await connection.disconnect()
