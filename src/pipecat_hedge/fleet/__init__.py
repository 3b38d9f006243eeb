"""What processes learn, shared between machines through Redis."""

from pipecat_hedge.fleet.redis_store import RedisStore

__all__ = [
    "RedisStore",
]
