"""What processes learn, shared through Redis."""

from pipecat_hedge.fleet.counts import saved_of
from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import EVERY_SECS, FleetSync

__all__ = [
    "EVERY_SECS",
    "FleetSync",
    "RedisStore",
    "saved_of",
]
