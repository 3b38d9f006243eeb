"""Tracks one vLLM server for this process: its models and its load.

All services of an event loop share one poller per server, which runs only while one of them is in
a session. No request waits for it.

``/metrics`` costs the server 12 ms, so it is read rarely, and less often while there is a queue.
Processes that share statistics share its readings: one of them reads for all.
``/load`` costs 0.5 ms. It counts all requests of a server that was started with
``--enable-server-load-tracking``, and is 0 otherwise. It does not separate running from waiting
requests: when it counts more than are known to run, ``/metrics`` is read again.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp
from loguru import logger

from pipecat_hedge.providers.permits import NotSent
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import ServerLoad
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.vllm.errors import VLLMError, cause_of, unreachable, wrong_key

POLL_SECS = 2.0
"""Between two readings of ``/metrics``; other intervals are multiples of it. Queues that matter
last for seconds."""
POLL_TIMEOUT_SECS = 3.0
"""A server that is busy with a long prompt answers late."""
LIST_TIMEOUT_SECS = 5.0

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
        self._forget()

    def _forget(self) -> None:
        """Reset what may differ in another server process at this address."""
        self._models: tuple[str, ...] = ()
        self._counts: Counts | None = None
        self._metrics_at = float("-inf")
        self._tracks_load = False
        self._overcount = 0  # of /load: it miscounts requests that end abnormally
        self._runs = 0  # the most requests known to run at once

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
        now = load.running + self._in_flight - self._in_flight_then
        # A request that was sent just before the reading may not be in it.
        return replace(load, running=max(now, self._in_flight - load.waiting, 0))

    def hold(self) -> None:
        """Poll the server until ``release`` has been called as often as this."""
        self._holders += 1
        if self._holders == 1:
            self._scope.start(self._poll(), name=f"polls {self._root}")

    async def release(self) -> None:
        """Undo one ``hold``."""
        self._holders -= 1
        if self._holders == 0:
            self._load = self._counts = None
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
                await asyncio.sleep(self._pause_secs() * random.uniform(0.9, 1.1))

    def _pause_secs(self) -> float:
        """Return the time until the next poll: short if polls are cheap, long during a queue."""
        if self._tracks_load:
            return 0.5 * self.poll_secs
        has_queue = self._load is not None and self._load.waiting
        return (2.5 if has_queue else 1.0) * self.poll_secs

    async def _poll_once(self, session: aiohttp.ClientSession) -> ServerLoad | None:
        """Poll once; None if the server does not report its load."""
        async with session.get(f"{self._root}/load") as answer:
            if answer.status >= 500:
                return _unhealthy(answer.status)
            total = _count_in(await answer.read())
        self._tracks_load = self._tracks_load or total > 0
        if self._tracks_load and (load := self._load_with(total)) is not None:
            return load
        async with session.get(f"{self._root}/health") as answer:
            if answer.status >= 500:
                return _unhealthy(answer.status)
        async with session.get(f"{self._root}/metrics") as answer:
            counts = read_counts(await answer.text(errors="replace"))
        if counts is None:
            return None  # perhaps a gateway
        self._overcount = total - counts.running - counts.waiting
        self._runs = counts.running if counts.waiting else max(self._runs, counts.running)
        before, self._counts = self._counts, counts
        share = None
        if before is not None and counts.prefix_queries > before.prefix_queries:
            found = counts.prefix_hits - before.prefix_hits
            share = found / (counts.prefix_queries - before.prefix_queries)
        self._metrics_at = asyncio.get_running_loop().time()
        return ServerLoad(True, counts.running, counts.waiting, counts.kv_cache_usage, share)

    def _load_with(self, total: int) -> ServerLoad | None:
        """Return the load with so many requests in the server; None if ``/metrics`` is needed."""
        load, age = self._load, asyncio.get_running_loop().time() - self._metrics_at
        total = max(total - self._overcount, 0)
        waiting = max(total - self._runs, 0)
        if load is None or age > 2.5 * self.poll_secs or (waiting and not load.waiting):
            return None
        return replace(load, running=total - waiting, waiting=waiting)

    def _update(self, load: ServerLoad | None, problem: str | None = None) -> None:
        if load is not None and not load.is_up:
            self._forget()
            problem = problem or str(unreachable(self.base_url, load.detail))
        self.report("answers again", problem)
        self._load = load
        self._polled_at = asyncio.get_running_loop().time()
        self._in_flight_then = self._in_flight

    # ---- prefill

    async def read_once(self, prompt: Hashable, read: Callable[[], Awaitable[None]]) -> None:
        """Prefill a prompt once for all concurrent callers.

        If the prefill is cancelled or rejected, the next caller tries. A prompt that the server
        rejects is not sent again.

        Args:
            prompt: Identifies the prompt.
            read: Sends the prefill request.
        """
        while (pending := self._reading.get(prompt)) is not None:
            if await asyncio.shield(pending):
                return
        pending = self._reading[prompt] = asyncio.get_running_loop().create_future()
        has_ended = True
        try:
            await read()
        except (asyncio.CancelledError, NotSent):
            has_ended = False
            raise
        finally:
            del self._reading[prompt]
            pending.set_result(has_ended)

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


@dataclass(frozen=True, slots=True)
class Counts:
    """The values of a server's metrics, over all its engines.

    Parameters:
        running: Running requests.
        waiting: Queued requests.
        kv_cache_usage: The used share of the fullest engine's key-value cache; None if unknown.
        prefix_queries: Prompt tokens looked up in the prefix cache since the server's start.
        prefix_hits: Prompt tokens found there.
    """

    running: int
    waiting: int
    kv_cache_usage: float | None
    prefix_queries: float
    prefix_hits: float


_LINE = re.compile(r"vllm:(\w+)(?:\{.*\})? (\S+)")
"""A sample of Prometheus' text format: ``vllm:num_requests_running{engine="0"} 3.0``."""


def read_counts(text: str) -> Counts | None:
    """Parse the load from a server's metrics.

    Args:
        text: The metrics in Prometheus' text format, of vLLM 0.10 or newer.

    Returns:
        The counts; None if these are not the metrics of a vLLM server.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    try:
        for line in text.splitlines():
            if (sample := _LINE.match(line)) is not None:
                found[sample[1]].append(float(sample[2]))
        if "num_requests_running" not in found:
            return None
        return Counts(
            running=int(sum(found["num_requests_running"])),
            waiting=int(sum(found["num_requests_waiting"])),
            kv_cache_usage=max(found["kv_cache_usage_perc"], default=None),
            prefix_queries=sum(found["prefix_cache_queries_total"]),
            prefix_hits=sum(found["prefix_cache_hits_total"]),
        )
    except (ValueError, OverflowError):
        return None


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


def _count_in(body: bytes) -> int:
    """Parse the count in an answer to ``/load``; 0 if there is none."""
    try:
        return max(int(json.loads(body)["server_load"]), 0)
    except (ValueError, OverflowError, LookupError, TypeError):
        return 0


def _unhealthy(status: int) -> ServerLoad:
    return ServerLoad(is_up=False, detail=f"unhealthy, HTTP {status}")
