"""Defines a service level objective: the share of turns that answer within a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.policy.arguments import require_number
from pipecat_hedge.race.errors import ConfigurationError

Objective: TypeAlias = Literal["ttft", "ttfs", "voice_to_voice"]
"""What is timed: the answer's first token, its first sentence, or its first audio."""

MOST_SECS = 60.0
"""Upper bound of a time: callers hang up within a minute, so a larger number is in milliseconds."""

OBJECTIVES: tuple[Objective, ...] = ("ttft", "ttfs", "voice_to_voice")
"""The objectives, in the order in which a turn reaches them."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective for the callers of a tier.

    Parameters:
        ttft_secs: Limit for the time to the answer's first usable token, in seconds. None sets no
            objective. At most 60 s, as the other limits.
        ttfs_secs: Limit for the time to the first speakable sentence, in seconds. A filler does not
            count. None sets no objective.
        voice_to_voice_secs: Limit from the end of the caller's speech to the start of the answer's
            audio, in seconds. None sets no objective.
        share: The share of turns that must meet each limit, above 0 and below 1.

    Raises:
        ConfigurationError: If a value is out of range; the message names the argument and the
        remedy.
    """

    ttft_secs: float | None = 0.8
    ttfs_secs: float | None = 1.2
    voice_to_voice_secs: float | None = 1.5
    share: float = 0.95

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("ttft_secs", "ttfs_secs", "voice_to_voice_secs"):
            secs = getattr(self, name)
            if secs is None:
                continue
            if isinstance(secs, bool) or not isinstance(secs, int | float) or not secs > 0:
                raise ConfigurationError(
                    f"{name} must be a positive number of seconds, or None for no promise, "
                    f"got {secs!r}"
                )
            if math.isinf(secs):
                raise ConfigurationError(f"{name} is infinite: write None for no promise")
            require_seconds(name, secs)
        remedy = "0.95 is 19 turns in 20"
        require_number("share", self.share, "above 0 and below 1", remedy, lambda x: 0 < x < 1)

    def objectives(self) -> Iterator[tuple[Objective, float]]:
        """Yield each objective with its limit in seconds."""
        for objective in OBJECTIVES:
            within = self.within(objective)
            if within is not None:
                yield objective, within

    def within(self, objective: Objective) -> float | None:
        """Return an objective's limit in seconds; None if it has none."""
        return getattr(self, f"{objective}_secs")


def require_seconds(field: str, secs: float) -> float:
    """Check that a time is in seconds, not milliseconds; return it.

    Args:
        field: The argument's name, for the message.
        secs: The time in seconds; infinite is allowed.

    Raises:
        ConfigurationError: If the time is longer than ``MOST_SECS``.
    """
    if secs > MOST_SECS and not math.isinf(secs):
        raise ConfigurationError(
            f"{field} is in seconds, and {secs:g} is longer than any caller waits: if milliseconds "
            f"were meant, write {secs / 1000:g}"
        )
    return secs
