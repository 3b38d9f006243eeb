"""Where the processes of a fleet meet in Redis.

There are two kinds of hashes, each for a slice of time by Redis's own clock, and with a TTL:

- ``{prefix}:processes:<slice>``: a process's document under its name;
- ``{prefix}:latency:<slice>``: a process's packed counts under its name and the provider's key.

A process writes only fields of its own, and always its totals. So a write whose reply was lost may
be repeated, and a Redis that was emptied is filled again. A change of the buckets in
``latency_model.py`` needs another name for the second kind: packed counts do not name them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from pipecat_hedge.providers.shared_store import Received, Slice, StoreUnavailable
from pipecat_hedge.race.errors import ConfigurationError, missing_extra

PREFIX = "pipecat-hedge"
TIMEOUT_SECS = 0.5
"""How long connecting may take, and how long an answer."""
CLOSE_SECS = 0.1
DOCUMENT_SECS = 5
"""How long a slice of documents is; the present one and the one before are read."""
KEPT_SECS = 3 * 86_400
"""How long latencies are kept."""
MOST_DOCUMENTS, MOST_FIELDS, MOST_OLDER = 64, 256, 16
"""How many fields of a hash are read, the last for slices older than the latest two; of a
larger hash a random sample."""
REASONS = (
    (r"NOAUTH|WRONGPASS|Authentication", "it refuses the user or password: check the URL"),
    (r"NOPERM|permissions", "this user may not run the commands there, or not on these keys"),
    (r"READONLY|read only", "it is a read-only replica: name the primary"),
    (r"OOM|maxmemory", "it is out of memory"),
    (r"LOADING|loading", "it is still loading its data"),
    (r"WRONGTYPE", "a key under the prefix is of another type: choose another prefix"),
)
"""What Redis says when it refuses a command, and what it means."""


class RedisStore:
    """Shares what is learned between all processes that name the same Redis and prefix.

    Needs the extra ``pipecat-hedge[redis]``, and Redis 6.2 or later.

    Example::

        stats = ProviderStats(RedisStore("redis://localhost:6379", prefix="support-bot"))
        llm = HedgedLLMService([...], stats=stats)
    """

    def __init__(self, url: str | None = None, *, prefix: str = PREFIX):
        """Configure the store; nothing is connected yet.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``. Defaults to ``REDIS_URL``.
            prefix: Prefix of all keys. Fleets with different prefixes share nothing.

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
        if not isinstance(prefix, str) or not re.fullmatch(r"[^\s{}]{1,100}", prefix):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"prefix must be 1 to 100 characters without blanks and braces, got {prefix!r}"
            )
        try:
            self._redis = import_module("redis.asyncio")
            self._errors = import_module("redis.exceptions")
        except ImportError:
            raise missing_extra("RedisStore", "redis-py", "redis") from None
        self._url, self._root = url, f"{{{prefix}}}"
        self._client: Any = None
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

    async def now(self) -> float:
        """Redis's clock, in seconds; see ``SharedStore``."""
        secs, micros = await self._run(lambda client: client.time())
        return float(secs + micros / 1e6)

    async def exchange(
        self, process: str, now: float, document: str, written: Slice | None, read: Sequence[int]
    ) -> Received:
        """Write what this process has, and read what the others have; see ``SharedStore``."""
        slot = int(now // DOCUMENT_SECS)
        slots = [f"{self._root}:processes:{number}" for number in (slot - 1, slot)]
        hashes = {number: f"{self._root}:latency:{number}" for number in read}

        def commands(client: Any) -> Coroutine[Any, Any, list[Any]]:
            pipe = client.pipeline(transaction=False)
            for key in slots:
                pipe.hlen(key).hrandfield(key, MOST_DOCUMENTS, withvalues=True)
            for index, key in enumerate(hashes.values()):
                pipe.hrandfield(key, MOST_FIELDS if index < 2 else MOST_OLDER, withvalues=True)
            pipe.hset(slots[1], process, document).expire(slots[1], 3 * DOCUMENT_SECS)
            if written is not None:
                key = f"{self._root}:latency:{written.number}"
                fields = {f"{process} {name}": each for name, each in written.counts.items()}
                if fields:
                    pipe.hset(key, mapping=fields).expire(key, KEPT_SECS)
                pipe.hlen(key)
            return pipe.execute(raise_on_error=False)  # else errors quote the command

        results = await self._run(commands)
        for result in results:
            if isinstance(result, self._errors.RedisError):
                raise StoreUnavailable(self._why(result))
        documents = {
            name.decode("utf-8", "replace"): text.decode("utf-8", "replace")
            for fields in (results[1], results[3])
            for name, text in _pairs(fields)
        }
        documents.pop(process, None)
        slices = {
            number: [
                (provider, counts)
                for name, counts in _pairs(fields)
                for owner, _, provider in [name.decode("utf-8", "replace").partition(" ")]
                if owner != process
            ]
            for number, fields in zip(hashes, results[4:], strict=False)
        }
        processes = max(len(documents) + 1, results[0], results[2])
        fields = results[-1] if written is not None else 0
        return Received(documents, processes, slices, fields)

    async def _run(self, command: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:  # another loop's cannot be used here
            self._loop = loop
            self._client = self._redis.Redis(connection_pool=self._pool())
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECS):
                return await command(self._client)
        except (self._errors.RedisError, OSError, TimeoutError, UnicodeError) as e:
            await self.close()
            raise StoreUnavailable(self._why(e)) from None
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
                await client.connection_pool.disconnect(inuse_connections=True)

    def _pool(self) -> Any:
        retry = import_module("redis.asyncio.retry").Retry
        never = import_module("redis.backoff").NoBackoff()
        return self._redis.ConnectionPool.from_url(
            self._url,
            max_connections=1,
            socket_connect_timeout=TIMEOUT_SECS,
            socket_timeout=TIMEOUT_SECS,
            retry=retry(never, 0),
            health_check_interval=0,
        )

    def _why(self, error: BaseException) -> str:
        """What is wrong, in words that cannot hold a password."""
        text = f"{type(error).__name__} {error}"
        for pattern, meaning in REASONS:
            if re.search(pattern, text):
                return meaning
        if isinstance(error, (TimeoutError, self._errors.TimeoutError)):
            return f"no answer within {TIMEOUT_SECS:g} s"
        if isinstance(error, (OSError, self._errors.ConnectionError)):
            return "no connection"
        return type(error).__name__


def _pairs(fields: Any) -> Iterator[tuple[bytes, bytes]]:
    """The fields of a hash with their values."""
    return zip(fields[::2], fields[1::2], strict=True)
