"""Puts the library together: connects a service with telemetry and the fleet.

Only this module below ``voice`` knows them. Its functions import them locally, so that they can
import ``service``.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger
from platformdirs import user_state_path

from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.shared_store import SharedStore
from pipecat_hedge.providers.stats_store import FileStore, Snapshot, StatsStore
from pipecat_hedge.race.errors import ConfigurationError, missing_extra
from pipecat_hedge.race.reports import Tier
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.tracer import Tracer

if TYPE_CHECKING:
    from pipecat_hedge.fleet.sync import FleetSync
    from pipecat_hedge.telemetry.slo_tracker import SloStatus as SloStatus  # of slo_status()
    from pipecat_hedge.telemetry.slo_tracker import SloTracker

ENVIRONMENT = "PIPECAT_HEDGE_STATS"
"""A path for the statistics, the URL of a Redis to share them or of a snapshot, or ``off``."""
SCHEMES = ("redis:", "rediss:", "unix:")


def default_store() -> StatsStore | SharedStore | None:
    """The store that ``PIPECAT_HEDGE_STATS`` names: a file, a Redis, a snapshot, or none.

    If it is not set: the Redis in ``REDIS_URL`` if redis-py is installed, and otherwise a file in
    the user's state folder.

    Raises:
        ConfigurationError: If ``PIPECAT_HEDGE_STATS`` names a Redis that cannot be used, or an
            existing path that is not a regular file.
    """
    from pipecat_hedge.fleet.redis_store import RedisStore

    named = os.environ.get(ENVIRONMENT, "").strip()
    if named.lower() in ("off", "none", "0"):
        return None
    if named:
        return store_named(named, ENVIRONMENT, f"; or {ENVIRONMENT}=off")
    if os.environ.get("REDIS_URL", "").strip() and find_spec("redis") is not None:
        try:
            store = RedisStore()
        except ConfigurationError as e:
            logger.warning(f"REDIS_URL is not used for statistics: {e}")
        else:
            logger.info(
                f"provider statistics are shared through {store} (from REDIS_URL); "
                f"{ENVIRONMENT}=off disables this"
            )
            return store
    return FileStore(user_state_path("pipecat-hedge", appauthor=False) / "stats.json")


def store_named(
    named: str, argument: str = "the store", remedy: str = ""
) -> StatsStore | SharedStore:
    """The store of a name: the URL of a Redis or of a snapshot, or a path.

    Args:
        named: The name.
        argument: What gives the name, for the message of an error.
        remedy: What else may be done.

    Raises:
        ConfigurationError: If it cannot be used; the message does not quote it.
    """
    from pipecat_hedge.fleet.redis_store import RedisStore

    if named.lower().startswith(SCHEMES):
        return RedisStore(named)
    if "://" in named and not named.lower().startswith(("https:", "http:")):
        raise ConfigurationError(  # not quoted: it may have a password
            f"{argument} is a URL of another scheme: write redis://, rediss://, unix://, https:// "
            "or a path"
        )
    try:
        return Snapshot(named) if "://" in named else FileStore(named)
    except ConfigurationError as e:
        raise ConfigurationError(f"{argument}: {e}{remedy}") from None


def join_fleet(
    store: SharedStore, registry: ProviderRegistry, accounts: BudgetAccounts
) -> FleetSync:
    """Share what a process knows through a store."""
    from pipecat_hedge.fleet.sync import FleetSync

    return FleetSync(store, registry, accounts)


def slo_tracker(events: EventHub) -> SloTracker:
    """Create the counts of all SLOs of a process."""
    from pipecat_hedge.telemetry.slo_tracker import SloTracker

    return SloTracker(events)


def track_slo(events: EventHub, slo: Slo, tier: Tier, tracker: SloTracker) -> None:
    """Count a service's turns towards its SLO."""
    from pipecat_hedge.telemetry.slo_tracker import track

    track(events, slo, tier, tracker)


def race_tracer(*, own_spans: bool) -> Tracer:
    """Create the OpenTelemetry tracer of a service's races.

    Raises:
        ConfigurationError: With ``own_spans``, if OpenTelemetry is not installed.
    """
    try:
        from pipecat_hedge.telemetry.race_span import RaceTracer
    except ModuleNotFoundError:  # OpenTelemetry is part of the extra "tracing"
        if own_spans:
            raise missing_extra("own_spans", "OpenTelemetry", "tracing") from None
        return Tracer()
    return RaceTracer(own_spans=own_spans)


def write_logs(
    events: EventHub,
    policy: HedgePolicy,
    turn_log: str | Path | None,
    drained_log: str | Path | None,
) -> None:
    """Append a service's turns and drained answers to files.

    Raises:
        ConfigurationError: If a file's folder does not exist, or both are one file.
    """
    from pipecat_hedge.telemetry.turn_log import write_drained_log, write_turn_log

    if turn_log and drained_log and Path(turn_log) == Path(drained_log):
        raise ConfigurationError(f"drained_log is the turn_log, {turn_log}: name another file")
    if turn_log is not None:
        write_turn_log(events, policy, turn_log)
    if drained_log is not None:
        write_drained_log(events, drained_log)
