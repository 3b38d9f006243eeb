"""Keeps a provider's connection open between turns, so that no turn waits for a handshake.

No turn waits for anything here, and nothing is sent for a session without turns. Cancelling an
HTTP/1.1 response closes its connection; a new one is opened at once. A server closes an idle
connection after its keep-alive timeout; it is used before that, by listing the provider's models.
The timeout is in a header (``Keep-Alive: timeout=5``), or learned when a request had to reconnect.
With learning, a server that closes unannounced after 5 s (uvicorn, vLLM) leaves 1 of 19 turns cold,
without it all 19 (``pytest tests/service/test_connection_warmth.py -k unannounced``).

Some servers and middleboxes serve one request per connection and reset the second. A request that
is lost on a reused connection closes all idle ones, so that its repeat opens a new one. After the
next answer, listing the models tests whether that connection can be reused. If it cannot, no
connection is kept for this service any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from loguru import logger
from pipecat.services.llm_service import LLMService
from pipecat.utils.errors import extract_http_status_code

from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.http_listener import recording
from pipecat_hedge.service.provider_client import (
    close_idle_connections,
    http_client,
    keepalive_expiry,
    open_connection,
)
from pipecat_hedge.service.stages import Stages

REFRESH_SECS = 45.0
"""The idle time before a refresh if the timeout is unknown: common load balancers close at 60 s."""
MIN_REFRESH_SECS = 3.0
"""The least time between two refreshes. A shorter timeout is not worth the requests."""
ACTIVE_SECS = 300.0
"""How long after its last turn a session's connections are refreshed."""
OPEN_TIMEOUT_SECS = 10.0
"""The timeout of opening or refreshing a connection."""
_TIMEOUT_VALID_SECS = 900.0
"""How long a learned timeout is valid: the connection may have been lost for another reason."""
_MIN_IDLE_SECS = 1.0
"""A connection that was idle for less was not closed by its server: another request used it."""
_MAX_HOSTS = 256
"""Bounds the memory; a process uses far fewer."""


class IdleLimits:
    """The keep-alive timeouts of the servers of this process, by host."""

    def __init__(self) -> None:
        """Start without known timeouts."""
        self._timeouts: dict[
            str, tuple[float, float, float]
        ] = {}  # timeout, refresh after, seen at

    def record_timeout(self, host: str, secs: float, now: float) -> None:
        """Record a timeout that a server states."""
        self._note(host, secs, 0.8 * secs, now)

    def record_closed(self, host: str, secs: float, now: float) -> None:
        """Record that a connection was closed after at most this idle time.

        It may have been closed much earlier, so the next one is refreshed after half the time.
        """
        self._note(host, secs, min(0.5 * secs, REFRESH_SECS), now)

    def refresh_secs(self, host: str, now: float) -> float | None:
        """The idle time before a refresh, in seconds; None if refreshing is useless."""
        secs, refresh, seen_at = self._timeouts.get(host, (REFRESH_SECS, REFRESH_SECS, now))
        if now - seen_at > _TIMEOUT_VALID_SECS:
            return REFRESH_SECS
        refresh = max(refresh, MIN_REFRESH_SECS)
        return refresh if refresh <= secs and secs > MIN_REFRESH_SECS else None

    def _note(self, host: str, secs: float, refresh: float, now: float) -> None:
        known = self._timeouts.pop(host, None)
        if known is not None and known[0] < secs and now - known[2] <= _TIMEOUT_VALID_SECS:
            self._timeouts[host] = known
            return
        self._timeouts[host] = (secs, refresh, now)
        if len(self._timeouts) > _MAX_HOSTS:
            del self._timeouts[next(iter(self._timeouts))]


_limits = IdleLimits()


@dataclass(slots=True)
class _Pool:
    """The state of an HTTP client's connections, which services may share.

    Parameters:
        idle_since: Since when a connection is idle; None without an idle one.
    """

    idle_since: float | None = None


_pools: WeakKeyDictionary[Any, _Pool] = WeakKeyDictionary()


class WarmConnection:
    """One service's connection to its provider.

    Each request is sent within ``in_use``. From ``keep`` to ``stop`` the connection is kept open.
    A service whose client cannot be traced is ignored.

    Attributes:
        is_simulated: Whether a simulator has answered.
    """

    def __init__(self, service: LLMService[Any]):
        """Create a connection that is not kept open yet.

        Args:
            service: The service, whose client is traced.
        """
        self._service = service
        client = http_client(service)
        self._is_traced = client is not None
        self._pool = _Pool() if client is None else _pools.setdefault(client, _Pool())
        self._expiry_secs = keepalive_expiry(client)
        self.is_simulated = False
        self._host: str | None = None
        self._uses = 0
        self._lost_reuses = 0  # requests lost on reused connections, in a row
        self._is_opening = False
        self._used_at = self._wanted_until = 0.0
        self._scope: TaskScope | None = None
        self._may_send: Callable[[], bool] = lambda: True
        self._alarm: asyncio.TimerHandle | None = None

    def keep(self, scope: TaskScope, may_send: Callable[[], bool]) -> None:
        """Keep the connection open from now on.

        Args:
            scope: Owns the requests that this takes.
            may_send: Whether the provider may be sent one now.
        """
        self._scope, self._may_send = scope, may_send
        self.turn_began()

    def stop(self) -> None:
        """Send nothing from now on. Requests on their way belong to the scope."""
        self._scope = None
        self._set_alarm()

    def turn_began(self) -> None:
        """Record that the session is active."""
        self._wanted_until = asyncio.get_running_loop().time() + ACTIVE_SECS
        self._set_alarm()

    async def open(self) -> None:
        """Open a connection, or use an open one."""
        async with self.in_use(Stages()):
            try:
                await open_connection(self._service)
            except Exception as error:
                if extract_http_status_code(error) is None:
                    raise
                logger.debug(f"{self._service}: models not listed: {type(error).__name__}")

    @asynccontextmanager
    async def in_use(
        self, stages: Stages, failed: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[None, None]:
        """Send a request within this context, and learn from its connection.

        Args:
            stages: Receives what the client reports.
            failed: Whether the request failed without an exception.
        """
        loop, pool = asyncio.get_running_loop(), self._pool
        stages.is_traced, stages.is_simulated = self._is_traced, self.is_simulated
        idle_since, pool.idle_since = pool.idle_since, None
        is_whole = has_raised = False
        self._uses += 1
        self._set_alarm()
        try:
            with recording(stages):
                yield
            is_whole = not failed()
        except Exception:
            has_raised = True
            raise
        finally:
            self._uses -= 1
            self._used_at = loop.time()
            self.is_simulated |= stages.is_simulated
            if stages.new_connection is False:
                stages.is_lost = stages.headers_at is None and (has_raised or failed())
                if stages.is_lost:
                    self._lost_reuses += 1
                elif stages.headers_at is not None:
                    self._lost_reuses = 0
            if stages.new_connection is not None:
                self._host = stages.host
                self._learn(stages, idle_since)
                if is_whole:
                    pool.idle_since = self._used_at
            elif pool.idle_since is None:  # no request was sent, or its client cannot be traced
                pool.idle_since = idle_since
            if stages.is_lost or not self._is_reusable:
                pool.idle_since = None
                await close_idle_connections(self._service)
            # After a loss and an answer: test whether the answer's connection can be reused.
            is_test_due = self._lost_reuses > 0 and is_whole and not self._is_opening
            self._set_alarm(at_once=is_test_due)

    @property
    def _is_reusable(self) -> bool:
        """Whether the server may answer two requests of one connection."""
        return self._lost_reuses < 2

    def reopen(self, stages: Stages) -> None:
        """Open a connection at once, in place of one that is closed or may soon be.

        Not after a request that was lost on a reused connection: its repeat opens one.

        Args:
            stages: The cancelled request's stages.
        """
        if (
            stages.new_connection is not None
            and not stages.is_lost
            and self._pool.idle_since is None
            and not self._is_opening
        ):
            self._host = stages.host
            self._set_alarm(at_once=True)

    def _learn(self, stages: Stages, idle_since: float | None) -> None:
        if stages.host is None or stages.requested_at is None:
            return
        if stages.keep_alive_secs is not None:
            _limits.record_timeout(stages.host, stages.keep_alive_secs, stages.requested_at)
        if stages.new_connection and idle_since is not None:
            idle_secs = stages.requested_at - idle_since
            if idle_secs >= _MIN_IDLE_SECS and not self._expires_within(idle_secs):
                _limits.record_closed(stages.host, idle_secs, stages.requested_at)

    def _expires_within(self, secs: float) -> bool:
        """Whether the client itself closes a connection that is idle for this long."""
        return self._expiry_secs is not None and self._expiry_secs <= secs

    def _set_alarm(self, *, at_once: bool = False) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        is_due = at_once or not self._uses
        if self._scope is None or self._host is None or not is_due or not self._is_reusable:
            return
        loop = asyncio.get_running_loop()
        due = now = loop.time()
        if not at_once:
            secs = _limits.refresh_secs(self._host, now)
            if secs is None:
                return
            if self._expiry_secs is not None:  # the client itself closes idle connections
                secs = min(secs, 0.8 * self._expiry_secs)
                if secs < MIN_REFRESH_SECS:
                    return
            due = max(self._used_at + secs, now + 1.0)  # a starting turn goes first
            if due > self._wanted_until:
                return
        # A new context: these requests are not part of the one that has just ended.
        self._alarm = loop.call_at(due, self._on_alarm, context=Context())

    def _on_alarm(self) -> None:
        self._alarm = None
        if self._scope is None:
            return
        if self._may_send():
            self._is_opening = True
            self._scope.start(self._refresh(), name=f"keeps {self._service}'s connection open")
        else:
            self._used_at = asyncio.get_running_loop().time()
            self._set_alarm()

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_SECS):
                await self.open()
        except Exception as error:  # the next turn will report it
            logger.debug(f"{self._service}: no connection kept open: {type(error).__name__}")
        finally:
            self._is_opening = False
