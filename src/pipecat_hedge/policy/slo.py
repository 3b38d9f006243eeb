"""What callers are promised: how many of them wait no longer than so long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["OBJECTIVES", "Objective", "Slo", "refuse_milliseconds"]

Objective: TypeAlias = Literal["ttft", "ttfs", "voice_to_voice"]
"""What a promise is about: the answer's first token, its first sentence, its first sound."""

MOST_SECS = 60.0
"""No caller waits for a minute: a longer time was meant in milliseconds."""

OBJECTIVES: tuple[Objective, ...] = ("ttft", "ttfs", "voice_to_voice")
"""The objectives in the order in which they are reached."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A promise to the callers of a tier.

    Parameters:
        ttft_secs: Time to the first usable token of the answer; None objectives nothing.
        ttfs_secs: Time to its first speakable sentence, also called the time to a usable answer; a
            filler is none. None objectives nothing.
        voice_to_voice_secs: From the end of the caller's speech to the beginning of the answer's
            sound; None objectives nothing.
        share: The share of turns for which each of them is to hold, above 0 and below 1.

    Raises:
        ConfigurationError: If a figure cannot be meant; the message says which, and the remedy.
    """

    ttft_secs: float | None = 0.8
    ttfs_secs: float | None = 1.2
    voice_to_voice_secs: float | None = 1.5
    share: float = 0.95

    def __post_init__(self) -> None:
        """Check the figures."""
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
            refuse_milliseconds(name, secs)
        if isinstance(self.share, bool) or not 0 < self.share < 1:
            raise ConfigurationError(
                f"share must be above 0 and below 1, as 0.95 for 19 turns in 20, got {self.share!r}"
            )

    def objectives(self) -> Iterator[tuple[Objective, float]]:
        """What is promised, and within how many seconds."""
        for objective in OBJECTIVES:
            within = self.within(objective)
            if within is not None:
                yield objective, within

    def within(self, objective: Objective) -> float | None:
        """Within how many seconds something is promised; None if it is not.

        Args:
            objective: What.
        """
        if objective == "ttft":
            return self.ttft_secs
        return self.ttfs_secs if objective == "ttfs" else self.voice_to_voice_secs


def refuse_milliseconds(field: str, secs: float) -> float:
    """Check that a time a caller is to wait was not given in milliseconds.

    Args:
        field: The argument's name.
        secs: The time, in seconds.

    Returns:
        The time.

    Raises:
        ConfigurationError: If no caller would wait so long.
    """
    if secs > MOST_SECS and not math.isinf(secs):
        raise ConfigurationError(
            f"{field} is in seconds, and {secs:g} is longer than any caller waits: if milliseconds "
            f"were meant, write {secs / 1000:g}"
        )
    return secs
