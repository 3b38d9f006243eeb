"""Tracks one vLLM server for this process: its models and its load.

All services of an event loop share one poller per server, which runs only while one of them is in
a session. No request waits for it.

``/health`` costs the server 0.7 ms. ``/metrics`` costs it 12 ms, so it is read rarely, and less
often while there is a queue. Processes that share statistics share its readings: one of them reads
for all.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp
from loguru import logger

from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.limits.server_queue import LoadReading, LoadReadings
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import ServerLoad
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.vllm.errors import VLLMError, cause_of, unreachable, wrong_key

__all__ = ["VLLMServer", "check_base_url", "read_load"]

POLL_SECS = 2.0
"""Between two readings of ``/metrics``. Queues that matter last for seconds."""
QUEUED_FACTOR = 2.5
"""How many times as long the interval is while the server has a queue."""
POLL_TIMEOUT_SECS = 3.0
"""A server that is busy with a long prompt answers late."""
LIST_TIMEOUT_SECS = 5.0
SHARING_SECS = 2.0
"""How long a reading takes to reach the other processes: each exchanges once a second."""

_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], VLLMServer]] = (
    WeakKeyDictionary()
)


class VLLMServer:
    """A server, shared by all services of an event loop.

    Attributes:
        base_url: The address of its OpenAI-compatible API, such as ``http://localhost:8000/v1``.
        poll_secs: The interval of reading its metrics while it has no queue.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        poll_secs: float = POLL_SECS,
    ):
        self.base_url = base_url.rstrip("/")
        self.poll_secs = poll_secs
        self._root = self.base_url.removesuffix("/v1")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._scope = TaskScope()
        self._holders = 0
        self._in_flight = self._in_flight_then = 0
        self._reading: dict[Hashable, asyncio.Future[bool]] = {}
        self._problems: set[str] = set()
        self._load: ServerLoad | None = None
        self._polled_at = 0.0
        self._readings = LoadReadings()
        self._key = LoadReadings.key_of(self._root)
        self._models: tuple[str, ...] = ()

    @classmethod
    def shared(cls, base_url: str, api_key: str | None = None) -> VLLMServer:
        """Return the one instance for a server on this event loop."""
        servers = _servers.setdefault(asyncio.get_running_loop(), {})
        return servers.setdefault((base_url.rstrip("/"), api_key), cls(base_url, api_key))

    # ---- load

    @property
    def load(self) -> ServerLoad | None:
        """The server's load; None without a recent reading."""
        load = self._load
        age = asyncio.get_running_loop().time() - self._polled_at
        if load is None or age > 3 * self.poll_secs + POLL_TIMEOUT_SECS:
            return None
        return replace(load, running=max(load.running + self._in_flight - self._in_flight_then, 0))

    def share(self, readings: LoadReadings) -> None:
        """Share readings of the metrics with other processes."""
        self._readings = readings

    def hold(self) -> None:
        """Poll the server until ``release`` has been called as often as this."""
        self._holders += 1
        if self._holders == 1:
            self._scope.start(self._poll(), name=f"polls {self._root}")

    async def release(self) -> None:
        """Undo one ``hold``."""
        self._holders -= 1
        if self._holders == 0:
            self._load = None
            await self._scope.close()

    @contextmanager
    def count_request(self) -> Generator[None, None, None]:
        """Count a request of this process until the next poll finds it at the server."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def mark_down(self, detail: str, problem: str) -> None:
        """Record that a request found the server down; valid until the next poll.

        Args:
            detail: A short cause.
            problem: The cause and a remedy, for the log.
        """
        self._update(ServerLoad(is_up=False, detail=detail), problem)

    def report(self, recovery: str, problem: str | None) -> None:
        """Log a problem when it first occurs, and its recovery.

        Args:
            recovery: The message at recovery, after the address; it identifies the problem.
            problem: The problem and its remedy; None if there is none.
        """
        if problem is not None and recovery not in self._problems:
            self._problems.add(recovery)
            logger.warning(problem)
        elif problem is None and recovery in self._problems:
            self._problems.discard(recovery)
            logger.info(f"{self.base_url} {recovery}")

    async def _poll(self) -> None:
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while True:
                try:
                    async with asyncio.timeout(POLL_TIMEOUT_SECS):
                        load = await self._poll_once(session)
                except (TimeoutError, aiohttp.ClientError, OSError) as error:
                    load = ServerLoad(is_up=False, detail=cause_of(error))
                self._update(load)
                # Jitter: other processes poll the same server.
                await asyncio.sleep(self._interval_secs(load) * random.uniform(0.9, 1.1))

    def _interval_secs(self, load: ServerLoad | LoadReading | None) -> float:
        return self.poll_secs * (QUEUED_FACTOR if load is not None and load.waiting else 1.0)

    async def _poll_once(self, session: aiohttp.ClientSession) -> ServerLoad | None:
        """Poll once; None if the server does not report its load."""
        async with session.get(f"{self._root}/health") as answer:
            if answer.status >= 500:
                return ServerLoad(is_up=False, detail=f"unhealthy, HTTP {answer.status}")
        now = asyncio.get_running_loop().time()
        if (shared := self._readings.shared.get(self._key)) is not None:
            another_reads_secs = self._interval_secs(shared) + self.poll_secs + SHARING_SECS
            if now - shared.read_at <= another_reads_secs:
                return ServerLoad(True, shared.running, shared.waiting)
        async with session.get(f"{self._root}/metrics") as answer:
            load = read_load(await answer.text(errors="replace"))
        if load is not None:
            self._readings.own[self._key] = LoadReading(load.running, load.waiting, now)
        return load

    def _update(self, load: ServerLoad | None, problem: str | None = None) -> None:
        if load is not None and not load.is_up:
            self._models = ()  # another server process may come to this address
            problem = problem or str(unreachable(self.base_url, load.detail))
        self.report("answers again", problem)
        self._load = load
        self._polled_at = asyncio.get_running_loop().time()
        self._in_flight_then = self._in_flight

    # ---- prefill

    async def read_once(self, prompt: Hashable, read: Callable[[], Awaitable[None]]) -> None:
        """Prefill a prompt once for all concurrent callers.

        If the prefill is cancelled or rejected, the next caller tries. A prompt that the server
        refuses is not sent again.

        Args:
            prompt: Identifies the prompt.
            read: Sends the prefill request.
        """
        while (pending := self._reading.get(prompt)) is not None:
            if await asyncio.shield(pending):
                return
        pending = self._reading[prompt] = asyncio.get_running_loop().create_future()
        is_settled = True
        try:
            await read()
        except (asyncio.CancelledError, Rejected):
            is_settled = False
            raise
        finally:
            del self._reading[prompt]
            pending.set_result(is_settled)

    # ---- models

    async def models(self, *, again: bool = False) -> tuple[str, ...]:
        """Return the names of the served models, at least one; they are listed once.

        Args:
            again: Whether to list them again.

        Raises:
            VLLMError: If it lists none.
        """
        if self._models and not again:
            return self._models
        recovery = "lists its models again"
        try:
            self._models = await self._list_models()
        except VLLMError as error:
            self.report(recovery, str(error))
            raise
        except (TimeoutError, aiohttp.ClientError, OSError) as failure:
            error = unreachable(self.base_url, cause_of(failure))
            self.mark_down(cause_of(failure), str(error))
            raise error from failure
        self.report(recovery, None)
        return self._models

    async def _list_models(self) -> tuple[str, ...]:
        url, timeout = f"{self.base_url}/models", aiohttp.ClientTimeout(total=LIST_TIMEOUT_SECS)
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
            session.get(url) as answer,
        ):
            if answer.status in (401, 403):
                raise wrong_key(self.base_url)
            if answer.status != 200:
                raise unreachable(self.base_url, f"{url} answers HTTP {answer.status}")
            try:
                listed: Any = await answer.json(content_type=None)
                names = tuple(str(model["id"]) for model in listed["data"])
            except (ValueError, LookupError, TypeError):
                names = ()
            if not names:
                raise unreachable(self.base_url, f"{url} lists no models")
            return names


_LINE = re.compile(r"vllm:num_requests_(running|waiting)(?:\{.*\})? (\S+)")
"""A sample of Prometheus' text format: ``vllm:num_requests_running{engine="0"} 3.0``."""


def read_load(text: str) -> ServerLoad | None:
    """Parse the load from a server's metrics, over all its engines.

    Args:
        text: The metrics in Prometheus' text format, of vLLM 0.10 or newer.

    Returns:
        The load; None if these are not the metrics of a vLLM server.
    """
    requests: dict[str, int] = {}
    try:
        for line in text.splitlines():
            if (sample := _LINE.match(line)) is not None:
                kind, value = sample.groups()
                requests[kind] = requests.get(kind, 0) + int(float(value))
    except (ValueError, OverflowError):
        return None
    if "running" not in requests:
        return None
    return ServerLoad(True, requests["running"], requests.get("waiting", 0))


def check_base_url(base_url: Any) -> None:
    """Check that a value can be the address of an OpenAI-compatible API.

    Raises:
        ConfigurationError: If not; the message has an example.
    """
    example = "write it like http://localhost:8000/v1"
    if not isinstance(base_url, str):
        raise ConfigurationError(f"base_url must be a string, got {base_url!r}: {example}")
    where = urlsplit(base_url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise ConfigurationError(f"base_url must be an HTTP address, got {base_url!r}: {example}")
    if where.path.rstrip("/") == "":
        raise ConfigurationError(
            f"base_url {base_url!r} is the server's address, not that of its OpenAI-compatible "
            f"API: write {base_url.rstrip('/')}/v1"
        )
