"""What processes learn, shared through Redis."""

from pipecat_hedge.fleet.counts import saved_of
from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import FleetSync

__all__ = [
    "FleetSync",
    "RedisStore",
    "saved_of",
]
