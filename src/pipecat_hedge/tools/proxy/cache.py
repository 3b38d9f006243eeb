"""Keeps whole answers and serves them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from loguru import logger

from pipecat_hedge.answers import open_store
from pipecat_hedge.tools.proxy.settings import CacheSettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Found: TypeAlias = Literal["hits", "misses"]
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


def request_key(tenant: str, path: str, body: bytes | bytearray, headers: Mapping[str, str]) -> str:
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
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
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
        most_mb = settings.memory_mb if settings.path is None else settings.disk_mb
        self._store = open_store(most_mb=most_mb, path=settings.path, redis_url=settings.redis_url)
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
