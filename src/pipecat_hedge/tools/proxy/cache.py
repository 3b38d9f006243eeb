"""Keeps whole answers and serves them again: in memory, in a file, or in a Redis."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from loguru import logger

from pipecat_hedge.race import missing_extra
from pipecat_hedge.tools.proxy.settings import CacheSettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["AnswerCache", "Kept", "cache_counter", "request_key"]

MB = 2**20
Found: TypeAlias = Literal["hits", "misses"]
REDIS_SECS = 0.25
"""A Redis that takes longer is not waited for: the answer is then fetched from an upstream."""
REDIS_PREFIX = "pipecat-hedge:answers:"
VARYING = ("anthropic-", "openai-")
"""The headers that can change an answer, such as the API's version, begin so."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole answer.

    Parameters:
        status: Its status code.
        headers: Its headers.
        body: Its body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def request_key(tenant: str, path: str, body: bytes, headers: Mapping[str, str]) -> str:
    """Return the key of a request: equal only for the same tenant and the whole same request.

    Args:
        tenant: The client's name.
        path: The path with the query.
        body: The body.
        headers: The headers, of which ``VARYING`` count.
    """
    kinds = sorted((n.lower(), v) for n, v in headers.items() if n.lower().startswith(VARYING))
    digest = hashlib.sha256()
    for part in (tenant.encode(), path.encode(), json.dumps(kinds).encode(), body):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def cache_counter(registry: CollectorRegistry | None) -> Callable[[Found], None]:
    """Return what counts the cache's hits and misses as metrics; without a registry, nothing."""
    if registry is None:
        return lambda _: None
    from prometheus_client import Counter

    counters: dict[Found, Counter] = {
        name: Counter(f"pipecat_hedge_cache_{name}", f"The cache's {name}.", registry=registry)
        for name in get_args(Found)
    }
    return lambda name: counters[name].inc()


class AnswerCache:
    """The answers of all models."""

    def __init__(self, settings: CacheSettings):
        """Open the cache.

        Raises:
            ConfigurationError: If a Redis is named and redis-py is not installed.
        """
        url = settings.redis_url
        self._store = _Database(settings) if url is None else _Redis(url)
        self._has_warned = False

    async def get(self, key: str) -> Kept | None:
        """Return the answer to a request, if it is kept and not too old."""
        try:
            value = await self._store.get(key)
            return None if value is None else _unpacked(value)
        except Exception as error:
            self._warn(error)
            return None

    async def put(self, key: str, kept: Kept, secs: float) -> None:
        """Keep an answer for ``secs``."""
        head = json.dumps({"status": kept.status, "headers": dict(kept.headers)}).encode()
        try:
            await self._store.put(key, head + b"\n" + kept.body, secs)
        except Exception as error:
            self._warn(error)

    async def close(self) -> None:
        """Close the file, or the connections to the Redis."""
        await self._store.close()

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(f"cached answers cannot be read or kept: {type(error).__name__}")


def _unpacked(value: bytes) -> Kept:
    head, _, body = value.partition(b"\n")
    return Kept(**json.loads(head), body=body)


class _Database:
    """SQLite, in memory or in a file, which is read and written in threads, one at a time."""

    def __init__(self, settings: CacheSettings):
        path = settings.path
        self._most = (settings.memory_mb if path is None else settings.disk_mb) * MB
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path or ":memory:", check_same_thread=False, isolation_level=None
        )
        if path is not None:
            path.chmod(0o600)  # it has answers
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS answers "
            "(key TEXT PRIMARY KEY, until REAL, size INTEGER, value BLOB)"
        )

    async def get(self, key: str) -> bytes | None:
        query = "SELECT value FROM answers WHERE key = ? AND until > ?"
        rows = await asyncio.to_thread(self._run, query, key, time.time())
        return rows[0][0] if rows else None

    async def put(self, key: str, value: bytes, secs: float) -> None:
        if len(value) <= self._most / 4:  # one answer never pushes out all others
            await asyncio.to_thread(self._put, key, value, time.time() + secs)

    async def close(self) -> None:
        self._db.close()

    def _put(self, key: str, value: bytes, until: float) -> None:
        row = (key, until, len(value), value)
        self._run("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", *row)
        self._run("DELETE FROM answers WHERE until <= ?", time.time())
        while (self._run("SELECT SUM(size) FROM answers")[0][0] or 0) > self._most:
            oldest = "SELECT key FROM answers ORDER BY until LIMIT 16"
            self._run(f"DELETE FROM answers WHERE key IN ({oldest})")

    def _run(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()


class _Redis:
    """A Redis. Its own limit, ``maxmemory``, bounds the size."""

    def __init__(self, url: str):
        try:
            from redis.asyncio import Redis
        except ModuleNotFoundError:
            raise missing_extra("cache.redis_url", "redis", "redis") from None
        self._redis: Any = Redis.from_url(
            url, socket_timeout=REDIS_SECS, socket_connect_timeout=REDIS_SECS
        )

    async def get(self, key: str) -> bytes | None:
        return await self._redis.get(REDIS_PREFIX + key)

    async def put(self, key: str, value: bytes, secs: float) -> None:
        await self._redis.set(REDIS_PREFIX + key, value, px=max(int(1000 * secs), 1))

    async def close(self) -> None:
        await self._redis.aclose()
