"""Permits for requests in flight, and the terms of a turn."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from pipecat_hedge.providers.concurrency_limit import OPEN_BOUNDS, LimitBounds
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.race.reports import Tier

OPTIONAL: dict[WorkClass, float] = {"hedge": 0.1, "warm_up": 0.25}
"""Work that may be dropped, and the share of a provider's limit that it leaves to callers."""
BY_TIER: dict[Tier, float] = {"premium": 0.0, "standard": 1 / 3, "economy": 1 / 2}
"""The share of a provider's limit that a tier leaves to better ones that have asked of late, with
``admission="shed"``. At twice the capacity premium then loses 0 to 6 % of its turns, without 42 %
(``pytest tests/fleet/test_fleet_load.py -k premium``)."""


class NotSent(HedgeError):
    """A request that is not sent; the message says why."""


@dataclass(slots=True, eq=False)
class Permit:
    """One request in flight.

    Parameters:
        key: The provider.
        acquired_at: When it was acquired.
        is_recovery: Whether it is a half-open provider's recovery request.
        is_active: Whether it has not been released yet.
        has_token: Whether the answer has begun.
    """

    key: str
    acquired_at: float
    is_recovery: bool = False
    is_active: bool = True
    has_token: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a turn's requests get permits.

    Parameters:
        tier: The session's tier.
        session: Identifies the session.
        bounds: Bounds of a provider's limit, in requests in flight of this process.
        sheds: Whether limits and open breakers end a turn (``admission="shed"``).
        ignores_breakers: Whether the turn was planned as if every breaker were closed.
        has_first_token: Whether an answer gives a time to first token, so that it can be late.
    """

    tier: Tier = "standard"
    session: Hashable = None
    bounds: LimitBounds = OPEN_BOUNDS
    sheds: bool = False
    ignores_breakers: bool = False
    has_first_token: bool = True
