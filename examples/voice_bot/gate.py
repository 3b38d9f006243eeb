"""The bot's door: who may come in, and how many at once.

Every page that the user opens could otherwise have the bot call, with the keys in ``.env``. So
before the runner sees a request its origin and host are checked, what it brings is small, and an
offer of a call is one, and finds a free place.
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
"""Of what a request brings."""
MAX_SESSIONS = 16
CONNECT_SECS = 15.0
"""How long a call may take to connect."""
WATCHED = ("/metrics", LIVE_PATH)
"""What a scraper or ``pipecat-hedge top`` on another machine reads."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Rejected(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Gate:
    """Stands before an ASGI application.

    A call is held inside the request that offered it, so a place is taken for as long as that
    request runs.

    Attributes:
        sessions: How many calls there are now, those included that are being set up.
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
        """Stand before it.

        Args:
            app: The application.
            origins: Who may come in.
            max_sessions: How many calls there may be at once.
            is_local: Whether the server is bound to loopback. If it is not, those may read metrics
                and the live feed who know it by any name.
            is_known: Whether a call with that identity is going on; what is offered to it is no
                further one.
        """
        self._app, self._origins = app, origins
        self._max_sessions, self._is_local, self._is_known = max_sessions, is_local, is_known
        self.sessions = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it; see ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            body = await _read(receive) if _has_body(scope) else None
            starts_call = self._starts_call(scope, body)
            if starts_call and self.sessions >= self._max_sessions:
                raise Rejected(503, f"all {self._max_sessions} sessions are taken: try again later")
        except Rejected as refused:
            await _refuse(scope, receive, send, refused)
            return
        self.sessions += starts_call  # nothing is awaited between the look and the claim
        try:
            await self._app(scope, receive if body is None else _replayed(body, receive), send)
        finally:
            self.sessions -= starts_call

    def _check(self, scope: Message) -> None:
        def header_values(wanted: bytes) -> list[str]:
            return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]

        is_open = scope["path"] in WATCHED and not self._is_local
        why = self._origins.refusal(
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
            raise Rejected(400, "the request broke off")
        body += message.get("body", b"")
        if len(body) > MAX_BYTES:
            raise Rejected(413, f"more than {MAX_BYTES // 1024} KB: no offer is as long")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What has been read, once more; then whatever comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def _checked_offer(body: bytes) -> str | None:
    """The call that an offer is made to; None for a new one.

    Raises:
        Rejected: If it is no offer.
    """
    try:
        offer = json.loads(body)
    except (ValueError, RecursionError):
        raise Rejected(400, "the offer is not JSON") from None
    if not isinstance(offer, dict) or offer.get("type") != "offer":
        raise Rejected(400, 'this is no offer: it needs a type, "offer", and an sdp')
    sdp, pc_id = offer.get("sdp"), offer.get("pc_id")
    if not isinstance(sdp, str) or not (pc_id is None or isinstance(pc_id, str)):
        raise Rejected(400, "this is no offer: sdp must be a text, and so must pc_id")
    try:
        media = SessionDescription.parse(sdp).media
    except Exception:  # whatever a parser makes of what strangers write
        raise Rejected(400, "the offer's sdp cannot be read") from None
    if not media:
        raise Rejected(400, "the offer's sdp offers no media")
    for each in media:
        if each.ice is None or not (each.ice.usernameFragment and each.ice.password):
            raise Rejected(400, "the offer's sdp has no ICE credentials")
        if each.dtls is None or not each.dtls.fingerprints:
            raise Rejected(400, "the offer's sdp has no fingerprint")
    return pc_id


async def _refuse(scope: Message, receive: Receive, send: Send, refused: Rejected) -> None:
    body = f"{refused}\n".encode()
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": str(refused)})
        return
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if refused.status == 503:
        headers.append((b"retry-after", b"15"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected_in_time(
    connection: SmallWebRTCConnection, secs: float = CONNECT_SECS
) -> AsyncIterator[None]:
    """End what runs in this block if nobody has connected in time, and close the connection.

    Args:
        connection: The call's connection.
        secs: The time.
    """
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
        logger.info(f"a call was offered and nobody connected in {secs:g} s: it is ended")
    finally:
        await connection.disconnect()
