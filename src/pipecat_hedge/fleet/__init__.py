"""What processes learn, shared between machines through Redis."""

from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import FleetSync

__all__ = [
    "FleetSync",
    "RedisStore",
]
