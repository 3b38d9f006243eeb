"""A fleet's meeting place in Redis.

Law: one exchange is one round trip, in which Redis does everything at once or nothing; and no word
of a URL's user or password gets out.

The whole exchange is one script, so that no process ever sees half of another's, and so that a
batch is known by its number: a reply that is lost, a connection that breaks, a Redis that hangs and
then runs what nobody waits for any more, none of them has a batch added twice.

Everything is under one prefix, in one hash slot. Sums are under the version of their layout;
processes' documents say theirs themselves, so that one of another release is noticed. All that
nobody touches any more goes by itself, by Redis's own clock.

An account is evened out with a pot: each exchange leaves half of the difference between the two in
the other one, so what is in all accounts and the pot together stays the same whoever comes when.
Taking each process to the mean of what the others have *told* would not: what was told is a second
old, and two who correct the same difference correct it twice.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from pipecat_hedge.fleet.fleet_latency import GENERATION
from pipecat_hedge.fleet.redis_script import SCRIPT, SCRIPT_SHA
from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.policy.shared_store import (
    Batch,
    Place,
    Received,
    StoreUnavailable,
    Sum,
    Wanted,
)
from pipecat_hedge.race.errors import ConfigurationError, missing_extra

__all__ = ["RedisStore"]

PREFIX = "pipecat-hedge"
TIMEOUT_SECS = 0.5
"""How long connecting may take, and how long an answer."""
CLOSE_SECS = 0.1
"""How long closing a connection may take."""
DOCUMENT_SECS = 10
"""How long a process that is heard no more still counts."""
SUM_SECS, POT_SECS, BATCH_SECS = 7 * 86_400, 3_600, 86_400
"""How long what nobody touches is kept: latencies, what is left in a pot, and the number of a
process's last batch."""
MOST_DOCUMENTS = 64
"""Of a larger fleet so many processes, drawn anew each time, speak for all."""
MOST_BYTES = 65_536
"""Sums beyond that come with the next exchange."""


class RedisStore:
    """Shares what is learned between all processes that name the same Redis and prefix.

    Needs the extra ``pipecat-hedge[redis]``.

    Example::

        stats = ProviderStats(RedisStore("redis://localhost:6379", prefix="support-bot"))
        llm = HedgedLLMService([...], stats=stats)
    """

    def __init__(self, url: str | None = None, *, prefix: str = PREFIX):
        """Name the meeting place; nothing is connected yet.

        Args:
            url: ``redis://``, ``rediss://`` (TLS) or ``unix://``. Defaults to ``REDIS_URL``.
            prefix: Under which all keys are. Fleets with different ones do not meet.

        Raises:
            ConfigurationError: If an argument cannot work, or redis-py is not installed; the
                message says what to do.
        """
        url = url if url is not None else os.environ.get("REDIS_URL", "").strip()
        if not url:
            raise ConfigurationError(
                "url is not given and REDIS_URL is not set: write RedisStore('redis://host:6379')"
            )
        if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"url must be a str such as 'redis://host:6379', got {url!r}")
        if not isinstance(prefix, str) or not re.fullmatch(r"[^\s{}]{1,100}", prefix):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"prefix must be 1 to 100 characters without blanks and braces, got {prefix!r}"
            )
        try:
            self._redis = import_module("redis.asyncio")
            self._errors = import_module("redis.exceptions")
        except ImportError:
            raise missing_extra("RedisStore", "redis-py", "redis") from None
        self._url, self._prefix = url, prefix
        self._name = f"{_without_credentials(url)} ({prefix})"
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._pool().make_connection()
        except (ValueError, TypeError) as e:
            told = "" if _holds_secret(url, str(e)) else f" ({e})"
            raise ConfigurationError(
                f"url is none of a Redis{told}: write redis://, rediss:// or unix://, a host and a "
                "port, as redis://localhost:6379"
            ) from None

    def __str__(self) -> str:
        """The address and the prefix, without credentials."""
        return self._name

    async def exchange(
        self, process: str, batch: Batch, document: str, wanted: Mapping[str, Wanted]
    ) -> Received:
        """Add a batch, tell of this process, and learn what is news; see ``SharedStore``.

        Raises:
            StoreUnavailable: If that cannot be done now; it may have been done all the same.
        """
        asked = json.dumps(
            {
                "process": process,
                "number": batch.number,
                "counts": {
                    key: {**counts.fields(), "n": _first_tokens(counts)}
                    for key, counts in batch.counts.items()
                },
                "balances": dict(batch.balances),
                "document": document,
                "wanted": {
                    key: [each.place.epoch, each.place.number, each.count]
                    if each.place is not None
                    else ["", 0, 0]
                    for key, each in wanted.items()
                },
                "order": list(wanted),
                "generation": GENERATION,
                "secs": [DOCUMENT_SECS, SUM_SECS, POT_SECS, BATCH_SECS],
                "most": [MOST_DOCUMENTS, MOST_BYTES],
            }
        )
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECS):
                reply = await self._run(asked)
        except (self._errors.RedisError, OSError, TimeoutError) as e:
            await self.close()
            raise StoreUnavailable(self._why(e)) from None
        except BaseException:
            await self.close()
            raise
        return _read(reply)

    async def _run(self, asked: str) -> bytes:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:  # another loop's cannot be used here
            self._loop = loop
            self._client = self._redis.Redis(connection_pool=self._pool())
        keys = (1, f"{{{self._prefix}}}")
        try:
            return await self._client.execute_command("EVALSHA", SCRIPT_SHA, *keys, asked)
        except self._errors.NoScriptError:
            return await self._client.execute_command("EVAL", SCRIPT, *keys, asked)

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
        """What is wrong, in words that cannot hold a secret."""
        known = {
            "AuthenticationError": "it refuses the user or password: check the URL",
            "AuthenticationWrongNumberOfArgsError": "it refuses the user or password",
            "NoPermissionError": "this user may not run scripts there: grant it EVALSHA and EVAL",
            "ReadOnlyError": "it is a read-only replica: name the primary",
            "OutOfMemoryError": "it is out of memory",
            "BusyLoadingError": "it is still loading its data",
            "ConnectionError": "no connection",
            "OSError": "no connection",
            "TimeoutError": f"no answer within {TIMEOUT_SECS:g} s",
        }
        told = str(error)
        for code, name in (("READONLY", "ReadOnlyError"), ("OOM", "OutOfMemoryError")):
            if told.startswith(code) or f"{code} " in told:
                return known[name]
        if "NOAUTH" in told or "Authentication required" in told:
            return known["AuthenticationError"]
        names = (kind.__name__ for kind in type(error).__mro__)
        found = next((known[name] for name in names if name in known), None)
        return found or type(error).__name__


def _read(reply: bytes | str) -> Received:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    try:
        told: dict[str, Any] = json.loads(text)
        unusable = {str(each) for each in told["unusable"] or ()}
        places: dict[str, Place] = {}
        moved: dict[str, float] = {}
        for name, value in (told["mark"] or {}).items():
            if name[0] == "c":
                epoch, number = value.rsplit(" ", 1)
                places[name[1:]] = Place(epoch, int(number))
            elif name[0] == "p" and math.isfinite(float(value)):
                moved[name[1:]] = float(value)
        sums: dict[str, Sum] = {}
        for key, (epoch, number, count, present, before) in (told["sums"] or {}).items():
            read = [_counts(each) for each in (present, before)]
            if any(wrong for _, wrong in read):
                unusable.add(f"some counts of {key}")
            place = Place(str(epoch), int(number))
            sums[key] = Sum(place, int(count), read[0][0], read[1][0])
        documents = {str(name): str(each) for name, each in (told["documents"] or {}).items()}
        lost = frozenset(str(key) for key in told["lost"] or ())
        return Received(places, moved, sums, lost, documents, frozenset(unusable))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise StoreUnavailable(f"its answer cannot be read ({type(e).__name__})") from None


def _counts(text: str) -> tuple[LatencyCounts, int]:
    words = text.split(" ")
    fields = dict(zip(words[::2], words[1::2], strict=False))
    for own in ("e", "g", "n"):
        fields.pop(own, None)
    fields.pop("", None)
    return LatencyCounts.of_fields(fields)


def _first_tokens(counts: LatencyCounts) -> int:
    return sum(sketch.count for part, sketch in counts.parts.items() if part != "s")


def _without_credentials(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"
    except ValueError:
        return "Redis"


def _holds_secret(url: str, told: str) -> bool:
    try:
        parts = urlsplit(url)
        return any(each and each in told for each in (parts.password, parts.username, parts.netloc))
    except ValueError:
        return True
