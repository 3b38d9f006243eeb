"""Sums of a fleet in Redis, Valkey or a Redis Cluster.

All keys of a region begin with one hash tag, so that a region is on one node of a cluster:

- ``{prefix}:latency:<provider | model>:<hour>``: a hash of counts;
- ``{prefix}:budget:<budget>:<window>``: a hash of turns and hedges;
- ``{prefix}:suspect:<provider | model>``, ``{prefix}:down:<provider | model>``: leases.

Every key expires. A change of the buckets in ``latency_model.py`` or of the fields in ``counts.py``
needs another name for the first kind.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from pipecat_hedge.providers.shared_store import (
    Delta,
    News,
    Request,
    StoreRefused,
    StoreUnavailable,
)
from pipecat_hedge.race.errors import ConfigurationError, missing_extra

PREFIX = "pipecat-hedge"
TIMEOUT_SECS = 0.5
"""How long connecting may take, and how long an answer."""
CLOSE_SECS = 0.1
KEPT_SECS = 3 * 86_400
"""How long latencies are kept, so that a Monday starts with the estimates of the Friday before."""
BUDGET_SECS = 3_600
"""How long the counts of a budget's window are kept."""
REASONS = (
    (r"NOAUTH|WRONGPASS|Authentication", "it refuses the user or password: check the URL"),
    (r"NOPERM|permissions", "this user may not run the commands there, or not on these keys"),
    (r"READONLY|read only", "it is a read-only replica: name the primary"),
    (r"OOM|maxmemory", "it is out of memory"),
    (r"LOADING|loading", "it is still loading its data"),
    (r"^TimeoutError .* connecting to", f"no answer within {TIMEOUT_SECS:g} s"),
    (r" connecting to", "no connection"),
)
"""What Redis or its client says when it has run no command, and what it means."""
UNSURE_REASONS = (
    (r"^TimeoutError", f"no answer within {TIMEOUT_SECS:g} s"),
    (r"WRONGTYPE", "a key under the prefix is of another type: choose another prefix"),
)
"""The same when it may have run all commands or some."""


class RedisStore:
    """Shares what is learned between all processes that name the same Redis, prefix and region.

    Needs the extra ``pipecat-hedge[redis]``, and Redis from 6.2, Valkey, or a Redis Cluster, of
    which ``url`` names any node.

    Example::

        stats = ProviderStats(RedisStore("redis://localhost:6379", prefix="support-bot"))
        llm = HedgedLLMService([...], stats=stats)
    """

    def __init__(self, url: str | None = None, *, prefix: str = PREFIX, region: str | None = None):
        """Configure the store; nothing is connected yet.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``. Defaults to ``REDIS_URL``.
            prefix: Prefix of all keys. Fleets with different prefixes share nothing.
            region: Where the processes run, such as ``eu``: regions share nothing. Defaults to
                ``PIPECAT_HEDGE_REGION``.

        Raises:
            ConfigurationError: If an argument cannot work, or redis-py is not installed.
        """
        url = url if url is not None else os.environ.get("REDIS_URL", "").strip()
        if not url:
            raise ConfigurationError(
                "url is not given and REDIS_URL is not set: write RedisStore('redis://host:6379')"
            )
        if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"url must be a str such as 'redis://host:6379', got {type(url).__name__}"
            )
        if region is None:
            region = os.environ.get("PIPECAT_HEDGE_REGION", "").strip()
        for name, value, least in (("prefix", prefix, 1), ("region", region, 0)):
            is_text = isinstance(value, str) and least <= len(value) <= 100  # pyright: ignore[reportUnnecessaryIsInstance]
            if not is_text or re.search(r"[\s{}]", value):
                raise ConfigurationError(
                    f"{name} must be {least} to 100 characters without blanks and braces, "
                    f"got {value!r}"
                )
        try:
            self._redis = import_module("redis.asyncio")
            self._errors = import_module("redis.exceptions")
            never = import_module("redis.backoff").NoBackoff()
            retry = import_module("redis.asyncio.retry").Retry(never, 0)
        except ImportError:
            raise missing_extra("RedisStore", "redis-py", "redis") from None
        self._url, self._root = url, f"{{{prefix}/{region}}}" if region else f"{{{prefix}}}"
        self._options: dict[str, Any] = {
            **dict.fromkeys(("socket_connect_timeout", "socket_timeout"), TIMEOUT_SECS),
            "retry": retry,
        }
        self._client: Any = None
        self._is_cluster = False
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            parts = urlsplit(url)
            self._pool().make_connection()
        except (ValueError, TypeError):
            raise ConfigurationError(
                "url is none of a Redis: write redis://, rediss:// or unix://, a host and a port, "
                "as redis://localhost:6379"
            ) from None
        is_path = parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/")
        if "@" in parts.path + parts.query + parts.fragment and not is_path:
            raise ConfigurationError(  # then the address may begin with a part of the password
                "url has an @ after its address: write / ? # @ in a password as %2F %3F %23 %40"
            )
        address = parts.netloc.rpartition("@")[2]
        self._name = f"{parts.scheme}://{address}{parts.path} ({prefix})"

    def __str__(self) -> str:
        """The address and the prefix, without credentials."""
        return self._name

    async def add(self, delta: Delta) -> None:
        """See ``SharedStore``."""
        hashes = [
            (self._key("latency", key, delta.hour), KEPT_SECS, sums)
            for key, sums in delta.latencies.items()
        ] + [
            (self._key("budget", key, delta.window), BUDGET_SECS, sums)
            for key, sums in delta.budgets.items()
        ]

        def commands(pipe: Any) -> None:
            for key, secs, sums in hashes:
                for name, count in sums.items():
                    pipe.hincrby(key, name, count)
                pipe.expire(key, secs)

        await self._pipeline(commands)

    async def read(self, request: Request) -> News:
        """See ``SharedStore``."""
        latencies = [(key, hour) for key in request.latencies for hour in request.hours]
        budgets = [(key, window) for key in request.budgets for window in request.windows]
        providers = list(request.providers)

        def commands(pipe: Any) -> None:
            for key, hour in latencies:
                pipe.hgetall(self._key("latency", key, hour))
            for key, window in budgets:
                pipe.hgetall(self._key("budget", key, window))
            for key in providers:  # not MGET, which a pipeline of a cluster cannot have
                pipe.get(self._key("down", key))

        found = await self._pipeline(commands)
        sums: dict[str, Counter[str]] = {key: Counter() for key in request.budgets}
        for (key, _), fields in zip(budgets, found[len(latencies) :], strict=False):
            sums[key].update(_sums(fields))
        down = found[len(latencies) + len(budgets) :]
        return News(
            {at: _sums(fields) for at, fields in zip(latencies, found, strict=False)},
            sums,
            {
                provider: reason.decode("utf-8", "replace")
                for provider, reason in zip(providers, down, strict=True)
                if reason is not None
            },
        )

    async def known(self) -> dict[str, dict[str, int]]:
        """All counts of the region, over its hours, by the key of the statistics."""
        found: dict[str, Counter[str]] = {}
        root = f"{self._root}:latency:"

        async def names(client: Any) -> list[bytes]:
            return [name async for name in client.scan_iter(f"{root}*", count=1000)]

        for name in await self._run(names):
            key, _, hour = name.decode("utf-8", "replace").removeprefix(root).rpartition(":")
            if hour.isdigit():
                sums = await self.read(Request((int(hour),), (key,), (), (), ()))
                found.setdefault(key, Counter()).update(sums.latencies[key, int(hour)])
        return {key: dict(sums) for key, sums in found.items()}

    async def report_down(self, provider: str, process: str, reason: str, secs: float) -> None:
        """See ``SharedStore``."""
        suspect, down = self._key("suspect", provider), self._key("down", provider)
        millis = round(1000 * secs)

        async def commands(client: Any) -> None:
            if await client.set(suspect, process, nx=True, px=millis):
                return
            if (await client.get(suspect) or b"").decode() == process:
                await client.set(suspect, process, px=millis)
            else:
                await client.set(down, reason[:200], px=millis)

        await self._run(commands)

    async def report_up(self, provider: str) -> None:
        """See ``SharedStore``."""
        keys = [self._key(kind, provider) for kind in ("suspect", "down")]
        await self._run(lambda client: client.delete(*keys))

    def _key(self, kind: str, name: str, number: int | None = None) -> str:
        key = f"{self._root}:{kind}:{name}"
        return key if number is None else f"{key}:{number}"

    async def _pipeline(self, commands: Callable[[Any], None]) -> list[Any]:
        async def run(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            commands(pipe)
            results = await pipe.execute(raise_on_error=False)  # else errors quote the command
            for error in (result for result in results if isinstance(result, Exception)):
                raise error
            return results

        return await self._run(run)

    async def _run(self, command: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        loop = asyncio.get_running_loop()
        raised = (self._errors.RedisError, self._errors.RedisClusterException)
        if self._client is None or self._loop is not loop:  # another loop's cannot be used here
            self._loop = loop
            self._client = self._connect()
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECS):
                try:
                    return await command(self._client)
                except asyncio.CancelledError:  # Pipecat's ``wait_for2`` has one no timeout catches
                    raise asyncio.CancelledError from None
        except self._errors.MovedError:
            await self.close()
            if self._is_cluster:
                raise StoreUnavailable("the cluster's nodes change: tried again") from None
            self._is_cluster = True
            return await self._run(command)
        except (*raised, OSError, TimeoutError, UnicodeError) as e:
            await self.close()
            raise self._unavailable(e) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; the next exchange opens another."""
        client, self._client = self._client, None
        if client is None:
            return
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECS):
                await client.aclose()

    def _connect(self) -> Any:
        if self._is_cluster:
            return self._redis.RedisCluster.from_url(self._url, **self._options)
        return self._redis.Redis.from_pool(self._pool())

    def _pool(self) -> Any:
        return self._redis.ConnectionPool.from_url(
            self._url, max_connections=1, health_check_interval=0, **self._options
        )

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        """What is wrong, in words that cannot hold a password."""
        text = f"{type(error).__name__} {error}"
        for raised, reasons in ((StoreRefused, REASONS), (StoreUnavailable, UNSURE_REASONS)):
            for pattern, meaning in reasons:
                if re.search(pattern, text):
                    return raised(meaning)
        if isinstance(error, (OSError, self._errors.ConnectionError)):
            return StoreUnavailable("no connection")
        return StoreUnavailable(type(error).__name__)


def _sums(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    """The fields of a hash; those that are no counts are left out."""
    return {name.decode("utf-8", "replace"): int(n) for name, n in fields.items() if n.isdigit()}
