"""Keeps answers under keys for a time: in memory, in a file, or in a Redis."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

from pipecat_hedge.policy.arguments import require, require_number
from pipecat_hedge.race.errors import ConfigurationError, missing_extra

MB = 2**20
REDIS_SECS = 0.25
"""A Redis that takes longer is not waited for."""
REDIS_PREFIX = "pipecat-hedge:answers:"


class AnswerStore(Protocol):
    """Keeps values; a file and a Redis may raise their own errors."""

    async def get(self, key: str) -> bytes | None:
        """Return a value; None if it is not kept, or too old."""
        ...

    async def put(self, key: str, value: bytes, secs: float) -> None:
        """Keep a value for ``secs``."""
        ...

    async def close(self) -> None:
        """Close the file, or the connections."""
        ...


def open_store(
    *, most_mb: float, path: str | Path | None = None, redis_url: str | None = None
) -> AnswerStore:
    """Open a store, by default in memory.

    Args:
        most_mb: The most that is kept in memory or in the file, in MB. The values used least
            lately go first; of a file, those that end first.
        path: A file, which keeps them between runs.
        redis_url: A Redis, which machines share. Its own limit, ``maxmemory``, bounds the size.

    Raises:
        ConfigurationError: If both a file and a Redis are named, the size is not positive, or
            redis-py is not installed, or the file cannot be used.
    """
    require_number("most_mb", most_mb, "positive", "16.0 is the default", lambda x: x > 0)
    require("path", path, (str, os.PathLike), "give a file's path, or None for memory")
    require("redis_url", redis_url, str, "write redis://localhost:6379")
    if path is not None and redis_url is not None:
        raise ConfigurationError("path and redis_url exclude each other: give one of them")
    if redis_url is not None:
        return _Redis(redis_url)
    if path is None:
        return _Memory(most_mb * MB)
    try:
        return _File(Path(path), most_mb * MB)
    except sqlite3.Error as error:
        remedy = "name another file, in a folder that exists"
        raise ConfigurationError(f"path: {path} cannot be used, {error}: {remedy}") from None


class _Memory:
    def __init__(self, most_bytes: float):
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        until, value = self._kept.get(key, (0.0, None))
        if until <= time.time():
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return value

    async def put(self, key: str, value: bytes, secs: float) -> None:
        self._forget(key)
        if not _fits(value, self._most_bytes):
            return
        self._kept[key] = time.time() + secs, value
        self._bytes += _size(key, value)
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    async def close(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def _forget(self, key: str) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._bytes -= _size(key, kept[1])


class _File:
    """SQLite, which is read and written in threads, one at a time."""

    def __init__(self, path: Path, most_bytes: float):
        self._most_bytes = most_bytes
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
        if _fits(value, self._most_bytes):
            await asyncio.to_thread(self._put, key, value, time.time() + secs)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:  # a thread whose request was cancelled may still be writing
            self._db.close()

    def _put(self, key: str, value: bytes, until: float) -> None:
        row = (key, until, len(value), value)
        self._run("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", *row)
        self._run("DELETE FROM answers WHERE until <= ?", time.time())
        while (self._run("SELECT SUM(size) FROM answers")[0][0] or 0) > self._most_bytes:
            oldest = "SELECT key FROM answers ORDER BY until LIMIT 16"
            self._run(f"DELETE FROM answers WHERE key IN ({oldest})")

    def _run(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()


class _Redis:
    def __init__(self, url: str):
        try:
            from redis.asyncio import Redis
        except ModuleNotFoundError:
            raise missing_extra("redis_url", "redis", "redis") from None
        try:
            self._redis: Any = Redis.from_url(
                url, socket_timeout=REDIS_SECS, socket_connect_timeout=REDIS_SECS
            )
        except ValueError as error:
            raise ConfigurationError(f"redis_url: {error}: write redis://localhost:6379") from None

    async def get(self, key: str) -> bytes | None:
        return await self._redis.get(REDIS_PREFIX + key)

    async def put(self, key: str, value: bytes, secs: float) -> None:
        await self._redis.set(REDIS_PREFIX + key, value, px=max(int(1000 * secs), 1))

    async def close(self) -> None:
        await self._redis.aclose()


def _fits(value: bytes, most_bytes: float) -> bool:
    """Whether a value can be kept without pushing out nearly all others."""
    return len(value) <= most_bytes / 4


def _size(key: str, value: bytes) -> int:
    """What a value takes in memory."""
    return len(key) + len(value) + 200
