"""Where a request's first second goes, as its HTTP client and its server tell.

Law: what is not told is None, and nothing is guessed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipecat_hedge.race.reports import StageReport
from pipecat_hedge.service.deltas import DeltaReader

__all__ = ["Stages", "keep_alive_secs", "server_time"]


@dataclass(slots=True)
class Stages:
    """What is known of one attempt's request so far. Moments are the loop's.

    Where it takes two requests (a model that has moved on, a redirection), times of connecting are
    sums and moments those of the last.

    Parameters:
        is_traced: Whether the request's client tells what it does.
        is_begun: Whether a request was begun to be written; then some or all of it may have reached
            the provider.
        new_connection: Whether a connection was opened; None if no request was heard of.
        tcp_secs: How long it took to find the address and to connect.
        tls_secs: How long it took to agree on keys.
        written_at: When the request had been written.
        headers_at: When the response's headers had come.
        first_byte_at: When the first byte of its body had come.
        first_token_at: When the first piece of any kind had come.
        server_secs: How long the server says that it worked on it.
        server_source: Where it says so.
        host: Whom the client was to ask, with the port if it is no usual one.
        requested_at: When the client was told to.
        keep_alive_secs: For how long the server says that it keeps an idle connection open.
        deltas: What can be read of the body.
    """

    is_traced: bool = False
    is_begun: bool = False
    new_connection: bool | None = None
    tcp_secs: float | None = None
    tls_secs: float | None = None
    written_at: float | None = None
    headers_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    server_secs: float | None = None
    server_source: str | None = None
    host: str | None = None
    requested_at: float | None = None
    keep_alive_secs: float | None = None
    deltas: DeltaReader = field(default_factory=DeltaReader)
    _began_at: float = 0.0

    @property
    def is_unsent(self) -> bool:
        """Whether the client tells what it does, and has not come to send a request."""
        return self.is_traced and not self.is_begun

    def record_request(self, host: str) -> None:
        """Take note that a client is about to send a request, or to connect for it.

        Args:
            host: Whom it asks.
        """
        self.host, self.requested_at = host, asyncio.get_running_loop().time()

    async def record_event(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of an event of httpcore's; its ``trace``.

        Args:
            event: Its name, as ``http11.send_request_body.complete``.
            info: What came with it.
        """
        handler = self._HANDLERS.get(event.partition(".")[2])
        if handler is not None:
            handler(self, asyncio.get_running_loop().time())

    def record_headers(self, headers: Mapping[str, str]) -> None:
        """Take note of a response's headers.

        Args:
            headers: The headers, whose names may be asked for in any case.
        """
        self.first_byte_at = None  # of the request before, if there was one
        self.deltas = DeltaReader()
        server_time_found = server_time(headers)
        if server_time_found is not None:
            self.server_secs, self.server_source = server_time_found
        self.keep_alive_secs = keep_alive_secs(headers)

    def record_chunk(self, chunk: bytes) -> None:
        """Take note of a part of a response's body."""
        now = asyncio.get_running_loop().time()
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.deltas.feed(chunk, now)

    def record_token(self) -> None:
        """Take note that a piece of the answer has come, of whatever kind."""
        if self.first_token_at is None:
            self.first_token_at = asyncio.get_running_loop().time()

    def report(self, sent_at: float) -> StageReport | None:
        """Sum up what is known; None if nothing is.

        Args:
            sent_at: When the request was sent, in the loop's time.
        """
        if self.new_connection is None and self.first_token_at is None and self.server_secs is None:
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
            server_secs=self.server_secs,
            server_source=self.server_source,
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


# ---- what headers tell


def keep_alive_secs(headers: Mapping[str, str]) -> float | None:
    """For how long a server keeps an idle connection open, as in ``Keep-Alive: timeout=5, max=99``.

    Returns:
        The time in seconds; None if it does not say.
    """
    for parameter in (headers.get("keep-alive") or "").split(","):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "timeout" and value.strip().isdecimal():
            return float(value)
    return None


# In milliseconds. OpenAI's own; Envoy's, which stands before many providers, Anthropic among them.
# Both end when the response's headers are sent.
_SERVER_TIME_HEADERS = ("openai-processing-ms", "x-envoy-upstream-service-time")


def server_time(headers: Mapping[str, str]) -> tuple[float, str] | None:
    """How long a server says that it worked on a request, in seconds, and in which header.

    Returns:
        The time and the header's name; None if it does not say.
    """
    for name in _SERVER_TIME_HEADERS:
        if (secs := _secs(headers.get(name))) is not None:
            return secs, name
    timing = headers.get("server-timing")
    durations = [secs for metric in (timing or "").split(",") if (secs := _duration(metric))]
    return (max(durations), "server-timing") if durations else None


def _duration(metric: str) -> float | None:
    """The ``dur`` of one metric of a ``Server-Timing`` header, as Google's ``gfet4t7; dur=52``."""
    for parameter in metric.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "dur":
            return _secs(value.strip().strip('"'))
    return None


def _secs(millis: str | None) -> float | None:
    try:
        secs = float(millis or "") / 1000
    except ValueError:
        return None
    return secs if 0 <= secs < float("inf") else None
