"""Keeps whole answers and serves them again: in memory, in a file, or in a Redis."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

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


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole answer.

    Parameters:
        status: Its status code.
        headers: Its headers.
        chunks: Its body, event by event if it was streamed.
    """

    status: int
    headers: Mapping[str, str]
    chunks: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(map(len, self.chunks)) + 1000


def request_key(tenant: str, path: str, body: bytes, headers: Mapping[str, str]) -> str:
    """Return the key of a request: equal only for the same tenant and the whole same request.

    Args:
        tenant: The client's name.
        path: The path with the query.
        body: The body.
        headers: The headers, of which the API's version and beta features count.
    """
    kind = [f"{n}={headers.get(n, '')}" for n in ("anthropic-version", "anthropic-beta")]
    parts = [tenant.encode(), path.encode(), *(part.encode() for part in kind), body]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def cache_counter(
    registry: CollectorRegistry | None,
) -> Callable[[Literal["hits", "misses"]], None]:
    """Return what counts the cache's hits and misses as metrics; without a registry, nothing."""
    if registry is None:
        return lambda _: None
    from prometheus_client import Counter

    counters: dict[Found, Counter] = {
        name: Counter(f"pipecat_hedge_cache_{name}", f"The cache's {name}.", registry=registry)
        for name in get_args(Found)
    }
    return lambda name: counters[name].inc()


class _Store(Protocol):
    """Keeps bytes under a key for a time."""

    async def get(self, key: str) -> bytes | None: ...

    async def put(self, key: str, value: bytes, secs: float) -> None: ...

    async def close(self) -> None: ...


class AnswerCache:
    """The answers of all models."""

    def __init__(self, settings: CacheSettings):
        """Open the cache.

        Raises:
            ConfigurationError: If a Redis is named and redis-py is not installed.
        """
        self._memory: OrderedDict[str, tuple[float, Kept]] = OrderedDict()
        self._bytes, self._most = 0, settings.memory_mb * MB
        self._store: _Store | None = None
        if settings.redis_url is not None:
            self._store = _Redis(settings.redis_url)
        elif settings.path is not None:
            self._store = _File(settings.path, settings.disk_mb * MB)
        self._has_warned = False

    async def get(self, key: str) -> Kept | None:
        """Return the answer to a request, if it is kept and not too old."""
        if (found := self._memory.get(key)) is not None:
            if found[0] > time.time():
                self._memory.move_to_end(key)
                return found[1]
            self._drop(key)
        if self._store is None:
            return None
        try:
            value = await self._store.get(key)
            return None if value is None else _unpacked(value)
        except Exception as error:
            self._warn(error)
            return None

    async def put(self, key: str, kept: Kept, secs: float) -> None:
        """Keep an answer for ``secs``."""
        self._drop(key)
        if kept.size <= self._most / 4:  # one answer never pushes out all others
            self._memory[key] = time.time() + secs, kept
            self._bytes += kept.size
            while self._bytes > self._most:
                self._drop(next(iter(self._memory)))
        if self._store is not None:
            try:
                await self._store.put(key, _packed(kept), secs)
            except Exception as error:
                self._warn(error)

    async def close(self) -> None:
        """Close the file, or the connections to the Redis."""
        if self._store is not None:
            await self._store.close()

    def _drop(self, key: str) -> None:
        if (found := self._memory.pop(key, None)) is not None:
            self._bytes -= found[1].size

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(f"cached answers cannot be read or kept: {type(error).__name__}")


def _packed(kept: Kept) -> bytes:
    sizes = [len(chunk) for chunk in kept.chunks]
    head = {"status": kept.status, "headers": dict(kept.headers), "sizes": sizes}
    return json.dumps(head).encode() + b"\n" + b"".join(kept.chunks)


def _unpacked(value: bytes) -> Kept:
    line, _, body = value.partition(b"\n")
    head, chunks, at = json.loads(line), list[bytes](), 0
    for size in head["sizes"]:
        chunks.append(body[at : at + size])
        at += size
    return Kept(head["status"], head["headers"], tuple(chunks))


class _File:
    """An SQLite file. It is read and written in threads, one at a time."""

    def __init__(self, path: Path, most: float):
        self._most = most
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
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
