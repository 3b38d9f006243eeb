"""Checks the service's arguments on admission, and combines them into a session's terms."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from pipecat_hedge.providers.concurrency_limit import OPEN_BOUNDS, SHED_BOUNDS, LimitBounds
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import Tier

AdmissionMode: TypeAlias = Literal["open", "shed"]


def admission_terms(
    mode: AdmissionMode, tier: Tier, min_in_flight: int | None, max_in_flight: int | None
) -> Terms:
    """Check a service's arguments and combine them into the terms of a new session.

    Args:
        mode: ``open`` or ``shed``.
        tier: The session's tier.
        min_in_flight: The floor of the inferred limit; None is the mode's default.
        max_in_flight: Its ceiling; None is the mode's default.

    Raises:
        ConfigurationError: If an argument is invalid; the message names it and the remedy.
    """
    if mode not in get_args(AdmissionMode):
        raise ConfigurationError(f"admission is not known, got {mode!r}: write 'open' or 'shed'")
    bounds = SHED_BOUNDS if mode == "shed" else OPEN_BOUNDS
    floor = bounds.floor if min_in_flight is None else min_in_flight
    ceiling = bounds.ceiling if max_in_flight is None else max_in_flight
    if min_in_flight is None and type(max_in_flight) is int:
        floor = max(min(floor, max_in_flight), 1)
    return Terms(tier, object(), LimitBounds(floor, ceiling, bounds.start), sheds=mode == "shed")
