"""Records how a request's time until the first token divides.

Unknown values are None, never guesses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipecat_hedge.providers.backends import SIMULATED_HEADER
from pipecat_hedge.providers.rate_limit_headers import used_up_secs
from pipecat_hedge.race.reports import StageReport
from pipecat_hedge.service.wires import BodyReader


@dataclass(slots=True)
class Stages:
    """The stages of one attempt's request so far. Times are the loop's.

    If the attempt takes two requests (a moved model, a redirect), durations of connecting are sums
    and times are those of the last request.

    Parameters:
        is_traced: Whether the request's client can be traced.
        is_begun: Whether the client began to write a request, some of which may have arrived.
        new_connection: Whether a connection was opened; None if no request was traced.
        is_lost: Whether a reused connection failed before the response began.
        tcp_secs: The duration of the DNS lookup and TCP connect.
        tls_secs: The duration of the TLS handshake.
        written_at: When the request had been written.
        headers_at: When the response's headers had come.
        first_byte_at: When the first byte of the response's body had come.
        first_token_at: When the first piece of any kind had come.
        host: The request's host, with the port if it is not the default.
        requested_at: When the client was called.
        keep_alive_secs: The server's keep-alive timeout, if it states one.
        has_response: Whether a response has begun that is no redirect.
        on_used_up: Called with the seconds for which a response says that a rate limit is used up.
        is_simulated: Whether the server is known as a simulator.
        deltas: Reads the response's body.
    """

    is_traced: bool = False
    is_begun: bool = False
    new_connection: bool | None = None
    is_lost: bool = False
    tcp_secs: float | None = None
    tls_secs: float | None = None
    written_at: float | None = None
    headers_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    host: str | None = None
    requested_at: float | None = None
    keep_alive_secs: float | None = None
    has_response: bool = False
    on_used_up: Callable[[float], None] | None = None
    is_simulated: bool = False
    deltas: BodyReader = field(default_factory=BodyReader)
    _began_at: float = 0.0

    @property
    def is_unsent(self) -> bool:
        """Whether the client can be traced and has not begun to send a request."""
        return self.is_traced and not self.is_begun

    def record_request(self, host: str) -> None:
        """Record that a client is about to send a request to ``host``, or to connect for it."""
        self.host, self.requested_at = host, asyncio.get_running_loop().time()

    async def record_event(self, event: str, info: Mapping[str, Any]) -> None:
        """Record an event of httpcore; its ``trace`` extension.

        Args:
            event: Its name, such as ``http11.send_request_body.complete``.
            info: Its details.
        """
        handler = self._HANDLERS.get(event.partition(".")[2])
        if handler is not None:
            handler(self, asyncio.get_running_loop().time())

    def record_headers(self, headers: Mapping[str, str], *, is_redirect: bool = False) -> None:
        """Record a response's headers.

        Args:
            headers: The headers; lookup must be case-insensitive.
            is_redirect: Whether the client follows it: if its target fails, nothing has begun.
        """
        self.has_response |= not is_redirect
        if self.on_used_up is not None and (secs := used_up_secs(headers, time.time())) > 0:
            self.on_used_up(secs)
        self.first_byte_at = None  # of a previous request
        self.deltas = BodyReader()
        self.keep_alive_secs = keep_alive_secs(headers)
        self.is_simulated |= SIMULATED_HEADER in headers

    def record_chunk(self, chunk: bytes) -> None:
        """Record a part of a response's body."""
        now = asyncio.get_running_loop().time()
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.deltas.feed(chunk, now)

    def record_token(self) -> None:
        """Record that a piece of the answer came, of whatever kind."""
        if self.first_token_at is None:
            self.first_token_at = asyncio.get_running_loop().time()

    def report(self, sent_at: float) -> StageReport | None:
        """Summarise the stages; None if none is known.

        Args:
            sent_at: When the request was sent, in the loop's time.
        """
        if self.new_connection is None and self.first_token_at is None:
            return None

        def since(at: float | None) -> float | None:
            return None if at is None else at - sent_at

        return StageReport(
            new_connection=self.new_connection,
            tcp_secs=self.tcp_secs,
            tls_secs=self.tls_secs,
            written_secs=since(self.written_at),
            headers_secs=since(self.headers_at),
            first_byte_secs=since(self.first_byte_at),
            first_token_secs=since(self.first_token_at),
        )

    # ---- httpcore's events

    def _connect_started(self, now: float) -> None:
        self.new_connection, self._began_at = True, now

    def _tls_started(self, now: float) -> None:
        self._began_at = now

    def _connect_done(self, now: float) -> None:
        self.tcp_secs = (self.tcp_secs or 0.0) + now - self._began_at

    def _tls_done(self, now: float) -> None:
        self.tls_secs = (self.tls_secs or 0.0) + now - self._began_at

    def _write_started(self, now: float) -> None:
        self.is_begun = True
        if self.new_connection is None:
            self.new_connection = False

    def _write_done(self, now: float) -> None:
        self.written_at = now

    def _headers_received(self, now: float) -> None:
        self.headers_at = now

    _HANDLERS: ClassVar[dict[str, Callable[[Stages, float], None]]] = {
        "connect_tcp.started": _connect_started,
        "connect_tcp.complete": _connect_done,
        "connect_unix_socket.started": _connect_started,
        "connect_unix_socket.complete": _connect_done,
        "start_tls.started": _tls_started,
        "start_tls.complete": _tls_done,
        "send_request_headers.started": _write_started,
        "send_request_body.complete": _write_done,
        "receive_response_headers.complete": _headers_received,
    }


# ---- headers


def keep_alive_secs(headers: Mapping[str, str]) -> float | None:
    """A server's keep-alive timeout in seconds, as in ``Keep-Alive: timeout=5, max=99``.

    Returns:
        The timeout; None if the header does not state one.
    """
    for parameter in (headers.get("keep-alive") or "").split(","):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "timeout" and value.strip().isdecimal():
            return float(value)
    return None
