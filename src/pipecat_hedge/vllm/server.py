"""One vLLM server, as this process knows it: what it serves, and how busy it is.

Law: however many services ask a server, one task looks at it, and only while one of them is in a
session; no request ever waits for a look.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.limits.server_load import ServerLoad
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.vllm.server_metrics import (
    FIRST_TOKEN,
    Counts,
    Histogram,
    read_counts,
    read_histogram,
)

__all__ = [
    "LOOK_EVERY_SECS",
    "ServedModel",
    "ServerUnreachable",
    "VLLMServer",
    "check_base_url",
]

LOOK_EVERY_SECS = 2.0
"""Reading its metrics takes a vLLM some milliseconds; queues that matter last for seconds."""
LOOK_AGAIN_SECS = 0.25
"""The same while it has a queue that somebody wants to know of: a request that has just come is
counted as waiting, too, and holds a hedge back for no longer than that."""
LOOK_AT_TOKEN_SECS = 1.0
"""The same when one of its answers has begun: then it tells how long that took by its own clock."""
LOOK_SECS = 3.0
"""How long a look may take. A server that is busy with a long prompt answers late."""
ASK_SECS = 5.0
"""How long the list of its models may take."""


class ServerUnreachable(Exception):
    """The server cannot be asked; the message says why.

    Attributes:
        status: The HTTP status that it answered with instead; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None):
        """Say why.

        Args:
            message: Why.
            status: The HTTP status, if there was an answer.
        """
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server serves.

    Parameters:
        name: What to ask for.
        max_tokens: The most tokens of prompt and answer together; None if the server does not say.
    """

    name: str
    max_tokens: int | None


@dataclass(slots=True)
class _Reading:
    """A prompt that is being read: when that is over, and whether nobody needs to try again."""

    over: asyncio.Event
    is_settled: bool = False


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], VLLMServer]] = (
    WeakKeyDictionary()
)


class VLLMServer:
    """A server that all services of an event loop share.

    Attributes:
        base_url: Where its OpenAI-compatible API is, as ``http://localhost:8000/v1``.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        look_every_secs: float = LOOK_EVERY_SECS,
    ):
        """Name a server; nobody asks it yet.

        Args:
            base_url: Where its API is.
            api_key: Its key, where it wants one.
            look_every_secs: The time between two looks.
        """
        self.base_url = base_url.rstrip("/")
        self._root = self.base_url.removesuffix("/v1")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._look_every_secs = look_every_secs
        self._holders = 0
        self._scope = TaskScope()
        self._look: ServerLoad | None = None
        self._counts: Counts | None = None
        self._first_tokens: Histogram | None = None
        self._looked_at = 0.0
        self._asking = self._asking_then = 0
        self._is_wanted = asyncio.Event()
        self._models: tuple[ServedModel, ...] = ()
        self._read_ahead: dict[Hashable, _Reading] = {}

    @classmethod
    def shared(cls, base_url: str, api_key: str | None = None) -> VLLMServer:
        """The server as everybody on this event loop knows it.

        Args:
            base_url: Where its API is.
            api_key: Its key, where it wants one.
        """
        servers = _servers.setdefault(asyncio.get_running_loop(), {})
        key = (base_url.rstrip("/"), api_key)
        if key not in servers:
            servers[key] = cls(base_url, api_key)
        return servers[key]

    # ---- how busy it is

    @property
    def load(self) -> ServerLoad | None:
        """How busy it is; None if nothing recent is known."""
        look = self._look
        if look is None:
            return None
        age = asyncio.get_running_loop().time() - self._looked_at
        if age > 1.5 * self._look_every_secs + LOOK_SECS:  # a look that is under way is awaited
            return None
        if look.waiting and age >= LOOK_AGAIN_SECS:
            self._is_wanted.set()
        return replace(look, running=max(look.running + self._asking - self._asking_then, 0))

    def hold(self) -> None:
        """Look at the server from now on, until ``release``. Each holder counts."""
        self._holders += 1
        if self._holders == 1:
            self._scope.start(self._keep_looking(), name=f"looks at {self._root}")

    async def release(self) -> None:
        """End what ``hold`` began; without any holder nobody looks."""
        self._holders -= 1
        if self._holders == 0:
            self._look = self._counts = self._first_tokens = None
            await self._scope.close()

    @contextmanager
    def asking(self) -> Generator[None, None, None]:
        """Count a request of one's own, which the server counts only at the next look."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def first_token_came(self) -> None:
        """Look soon: the server has counted a first token, and how long it took."""
        if asyncio.get_running_loop().time() - self._looked_at >= LOOK_AT_TOKEN_SECS:
            self._is_wanted.set()

    def mark_gone(self, detail: str) -> None:
        """Say that a request found nobody, which is news before the next look.

        Args:
            detail: What it found.
        """
        self._see(ServerLoad(is_up=False, detail=detail))

    async def _keep_looking(self) -> None:
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while True:
                if (load := await self._look_once(session)) is not None:
                    self._see(load)
                self._is_wanted.clear()
                # Not in step with the other processes that look at it.
                pause = self._look_every_secs * random.uniform(0.9, 1.1)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_wanted.wait(), pause)

    async def _look_once(self, session: aiohttp.ClientSession) -> ServerLoad | None:
        try:
            async with asyncio.timeout(LOOK_SECS):
                async with session.get(f"{self._root}/health") as answer:
                    health = answer.status
                async with session.get(f"{self._root}/metrics") as answer:
                    told = await answer.read() if answer.status == 200 else b""
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return ServerLoad(is_up=False, detail=_why(error))
        if health >= 500:
            return ServerLoad(is_up=False, detail=f"calls itself unhealthy, HTTP {health}")
        try:
            text = told.decode(errors="replace")
            counts = read_counts(text)
            first_tokens = read_histogram(text, FIRST_TOKEN)
        except ValueError:
            return None
        if counts is None:
            return None  # a gateway in front of it, perhaps: nothing is known
        share = self._hit_share(counts)
        self._counts = counts
        before, self._first_tokens = self._first_tokens, first_tokens
        came = None if before is None else first_tokens - before
        return ServerLoad(
            True,
            counts.running,
            counts.waiting,
            counts.kv_cache_usage,
            share,
            first_token_secs=came.mean if came is not None and came.count > 0 else None,
            looked_at=asyncio.get_running_loop().time(),
        )

    def _hit_share(self, now: Counts) -> float | None:
        before = self._counts
        if before is None or now.prefix_queries < before.prefix_queries:  # it has been restarted
            before = Counts(0, 0, None, 0.0, 0.0)
        asked = now.prefix_queries - before.prefix_queries
        return (now.prefix_hits - before.prefix_hits) / asked if asked else None

    def _see(self, load: ServerLoad) -> None:
        if not load.is_up:
            self._models = ()  # it may come back with others
        self._look = load
        self._looked_at = asyncio.get_running_loop().time()
        self._asking_then = self._asking

    # ---- what it is sent ahead

    async def read_ahead(self, prompt: Hashable, read: Callable[[], Awaitable[None]]) -> None:
        """Have a prompt read, once for all who want it read at the same time.

        Whoever reads it may be interrupted, or have no room to: then the next one does. What the
        server has refused is not sent again by all who wait.

        Args:
            prompt: What tells the prompt from others.
            read: Sends it; not called while somebody else does, who is awaited.
        """
        while (under_way := self._read_ahead.get(prompt)) is not None:
            await under_way.over.wait()
            if under_way.is_settled:
                return
        reading = self._read_ahead[prompt] = _Reading(asyncio.Event())
        try:
            await read()
            reading.is_settled = True
        except Exception as error:
            reading.is_settled = not isinstance(error, Rejected)
            raise
        finally:
            del self._read_ahead[prompt]
            reading.over.set()

    # ---- what it serves

    async def models(self, *, again: bool = False) -> tuple[ServedModel, ...]:
        """The models that it serves; they are asked for once.

        Args:
            again: Whether to ask even if they are known.

        Raises:
            ServerUnreachable: If it does not say.
        """
        if again or not self._models:
            self._models = await self._ask_for_models()
        return self._models

    async def _ask_for_models(self) -> tuple[ServedModel, ...]:
        timeout = aiohttp.ClientTimeout(total=ASK_SECS)
        url = f"{self.base_url}/models"
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.get(url) as answer,
            ):
                if answer.status != 200:
                    told = f"{url} answers HTTP {answer.status}"
                    raise ServerUnreachable(told, answer.status)
                listed: Any = await answer.json()
            return tuple(ServedModel(m["id"], m.get("max_model_len")) for m in listed["data"])
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(_why(error)) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerUnreachable(f"{url} lists no models") from error

    async def count_tokens(self, request: bytes) -> int | None:
        """How many tokens the prompt of a chat completion has, by the server's own tokenizer.

        Args:
            request: The body of the request, in JSON.

        Returns:
            The count; None if the server does not say, as when it is behind a gateway.
        """
        timeout = aiohttp.ClientTimeout(total=ASK_SECS)
        try:
            asked = json.loads(request)
            wanted = {k: asked[k] for k in ("model", "messages", "tools") if k in asked}
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.post(f"{self._root}/tokenize", json=wanted) as answer,
            ):
                counted: Any = await answer.json()
            return int(counted["count"])
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):
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


def _why(error: BaseException) -> str:
    """What went wrong with a connection, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, aiohttp.ClientSSLError):
        return "no TLS is spoken there: write http://, not https://"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "nothing listens there"
    return type(error).__name__
