"""One vLLM server, as this process knows it: which models it serves, and how busy it is.

All services of an event loop share one look at a server, taken only while one of them is in a
session. No request waits for it.

``/metrics`` costs a server's API process 12 ms, so it is read seldom, and less often the longer the
server has a queue. ``/load`` costs 0.5 ms. It counts the requests in a server that was started with
``--enable-server-load-tracking``, and is always 0 elsewhere. It does not separate running from
waiting requests: where more are counted than are known to run, ``/metrics`` is read again.
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

from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import ServerLoad
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.vllm.errors import VLLMError, cause_of, unreachable, wrong_key

__all__ = ["Counts", "VLLMServer", "check_base_url", "read_counts"]

POLL_SECS = 2.0
"""Between two readings of ``/metrics``; other times are shares of it. Queues that matter last for
seconds."""
POLL_TIMEOUT_SECS = 3.0
"""How long a look may take. A server that is busy with a long prompt answers late."""
LIST_TIMEOUT_SECS = 5.0
"""How long the list of models may take."""

_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], VLLMServer]] = (
    WeakKeyDictionary()
)


class VLLMServer:
    """A server that all services of an event loop share.

    Attributes:
        base_url: The address of its OpenAI-compatible API, as ``http://localhost:8000/v1``.
        poll_secs: The time between two readings of its metrics while it has no queue.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        poll_secs: float = POLL_SECS,
    ):
        """Name a server; nothing is sent yet.

        Args:
            base_url: The address of its API.
            api_key: Its key, if it was started with one.
            poll_secs: The time between two readings of its metrics.
        """
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
        self._queue_pause_secs = 0.0
        self._forget()

    def _forget(self) -> None:
        """Forget what another process at this address may do differently."""
        self._models: tuple[str, ...] = ()
        self._counts: Counts | None = None
        self._metrics_at = float("-inf")
        self._tracks_load = False
        self._overcount = 0  # by /load; requests that end in unusual ways are counted wrongly
        self._runs = 0  # so many requests are known to run at once

    @classmethod
    def shared(cls, base_url: str, api_key: str | None = None) -> VLLMServer:
        """The one instance for a server on this event loop.

        Args:
            base_url: The address of its API.
            api_key: Its key, if it was started with one.
        """
        servers = _servers.setdefault(asyncio.get_running_loop(), {})
        return servers.setdefault((base_url.rstrip("/"), api_key), cls(base_url, api_key))

    # ---- how busy it is

    @property
    def load(self) -> ServerLoad | None:
        """How busy it is; None if nothing recent is known."""
        load = self._load
        age = asyncio.get_running_loop().time() - self._polled_at
        if load is None or age > 3 * self.poll_secs + POLL_TIMEOUT_SECS:
            return None
        return replace(load, running=max(load.running + self._in_flight - self._in_flight_then, 0))

    def hold(self) -> None:
        """Look at the server until ``release`` has been called as often as this."""
        self._holders += 1
        if self._holders == 1:
            self._scope.start(self._poll(), name=f"looks at {self._root}")

    async def release(self) -> None:
        """End what ``hold`` began."""
        self._holders -= 1
        if self._holders == 0:
            self._load = self._counts = None
            await self._scope.close()

    @contextmanager
    def count_request(self) -> Generator[None, None, None]:
        """Count a request of this process, which the next look will find at the server."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def mark_down(self, detail: str, problem: str) -> None:
        """Note that a request found the server down, which counts until the next look.

        Args:
            detail: What was found, in a few words.
            problem: The same with a remedy, for the log.
        """
        self._update(ServerLoad(is_up=False, detail=detail), problem)

    def report(self, recovery: str, problem: str | None) -> None:
        """Log a problem when it is first found, and once more when it is over.

        Args:
            recovery: The end of the sentence that is logged then; it identifies the problem.
            problem: The problem and its remedy; None if there is none (any more).
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
                # Not in step with the other processes that look at it.
                await asyncio.sleep(self._pause_secs() * random.uniform(0.9, 1.1))

    def _pause_secs(self) -> float:
        """The time until the next look, which doubles while there is a queue to be read."""
        if self._tracks_load:
            return 0.5 * self.poll_secs
        if self._load is None or not self._load.waiting:
            self._queue_pause_secs = 0.0
            return self.poll_secs
        pause = min(2 * self._queue_pause_secs, 2.5 * self.poll_secs)
        self._queue_pause_secs = pause or 0.5 * self.poll_secs
        return self._queue_pause_secs

    async def _poll_once(self, session: aiohttp.ClientSession) -> ServerLoad | None:
        """Look once; None if the server does not say how busy it is."""
        async with session.get(f"{self._root}/health") as answer:
            if answer.status >= 500:
                detail = f"calls itself unhealthy, HTTP {answer.status}"
                return ServerLoad(is_up=False, detail=detail)
        async with session.get(f"{self._root}/load") as answer:
            total = _count_in(await answer.read())
        self._tracks_load = self._tracks_load or total > 0
        if self._tracks_load and (load := self._load_with(total)) is not None:
            return load
        async with session.get(f"{self._root}/metrics") as answer:
            counts = read_counts(await answer.text(errors="replace"))
        if counts is None:
            return None  # a gateway in front of it, perhaps
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
        """The load with so many requests in the server; None if only its metrics can tell."""
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

    # ---- what it reads ahead

    async def read_once(self, prompt: Hashable, read: Callable[[], Awaitable[None]]) -> None:
        """Have a prompt read once for all who want it read at the same time.

        If that is interrupted or rejected, the next one tries. What the server refuses is not sent
        again.

        Args:
            prompt: Identifies the prompt.
            read: Sends it.
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

    # ---- what it serves

    async def models(self, *, again: bool = False) -> tuple[str, ...]:
        """The names of the models that it serves, at least one; they are listed once.

        Args:
            again: Whether to list them even if they are known.

        Raises:
            VLLMError: If it does not list any.
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
    """What a server's metrics say, over all its engines.

    Parameters:
        running: Requests being worked on.
        waiting: Requests in its queue.
        kv_cache_usage: The share of the fullest engine's key-value cache that is in use; None if
            the server does not say.
        prefix_queries: Prompt tokens looked up in the prefix cache, since the server started.
        prefix_hits: How many of them were found there.
    """

    running: int
    waiting: int
    kv_cache_usage: float | None
    prefix_queries: float
    prefix_hits: float


_LINE = re.compile(r"vllm:(\w+)(?:\{.*\})? (\S+)")
"""A sample of Prometheus' text format: ``vllm:num_requests_running{engine="0"} 3.0``."""


def read_counts(text: str) -> Counts | None:
    """Read what a server's metrics say of its load.

    Args:
        text: The metrics, in Prometheus' text format; those of vLLM 0.10 or newer.

    Returns:
        The counts; None if these are not the metrics of a vLLM.
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
    """Refuse what cannot be the address of an OpenAI-compatible API.

    Args:
        base_url: The address.

    Raises:
        ConfigurationError: If it cannot; the message says what to write.
    """
    example = "write it as http://localhost:8000/v1"
    if not isinstance(base_url, str):
        raise ConfigurationError(f"base_url must be a string, got {base_url!r}: {example}")
    where = urlsplit(base_url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise ConfigurationError(f"base_url is no HTTP address, got {base_url!r}: {example}")
    if where.path.rstrip("/") == "":
        raise ConfigurationError(
            f"base_url {base_url!r} is the server's, not that of its OpenAI-compatible API: "
            f"write {base_url.rstrip('/')}/v1"
        )


def _count_in(body: bytes) -> int:
    """The count in an answer to ``/load``; 0 if there is none."""
    try:
        return max(int(json.loads(body)["server_load"]), 0)
    except (ValueError, OverflowError, LookupError, TypeError):
        return 0
