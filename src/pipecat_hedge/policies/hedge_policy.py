"""When to send the same turn to another provider, as the user states it.

``None`` is never, ``0`` is now, and a negative number is refused where it is written. A failed
attempt is replaced at once under every policy; the rules here only say when an attempt that has
not failed has been silent for too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.facts import LaunchDecision, LaunchRule, Waiting

__all__ = ["AfterSilence", "AtOnce", "HedgePolicy", "OnlyOnFailure"]


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Every attempt at the turn's start."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch now; see ``LaunchRule``."""
        return LaunchDecision(waiting.started_at, "all attempts start together")


@dataclass(frozen=True, slots=True)
class AfterSilence:
    """The next attempt when the one before has been silent for ``seconds``.

    Silent means: no usable token since its launch, or since its last one.
    """

    seconds: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch ``seconds`` after the latest attempt's last sign of life; see ``LaunchRule``."""
        before = waiting.in_flight[-1]
        heard_at = before.launched_at if before.last_token_at is None else before.last_token_at
        return LaunchDecision(heard_at + self.seconds, f"{before.provider} silent {self.seconds} s")


@dataclass(frozen=True, slots=True)
class OnlyOnFailure:
    """Never because of time; failures are replaced all the same."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Never launch; see ``LaunchRule``."""
        return LaunchDecision(None, "only a failure launches the next attempt")


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """How a turn's attempts are launched. Make one with its class methods.

    Example::

        HedgePolicy.race(2)        # two providers at once, the first usable answer wins
        HedgePolicy.after(0.6)     # a second one if the first is silent for 0.6 s
        HedgePolicy.fallback()     # the next one only when the one before failed

    Parameters:
        rule: When an attempt that has not failed is worth another request.
        attempts: The most requests a turn may make, whatever happens.
        name: How the policy calls itself in logs and reports.
    """

    rule: LaunchRule
    attempts: int
    name: str

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If ``attempts`` is not a whole number of at least 1.
        """
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"attempts must be a whole number, got {self.attempts!r}: "
                "it is the most requests that one turn may make"
            )
        if self.attempts < 1:
            raise ConfigurationError(
                f"attempts must be at least 1, got {self.attempts}: with none nobody is asked; "
                "attempts=1 asks one provider and never hedges"
            )

    @classmethod
    def race(cls, attempts: int = 2) -> HedgePolicy:
        """All attempts at the turn's start: the lowest latency, at ``attempts`` times the requests.

        Args:
            attempts: How many providers to ask.

        Raises:
            ConfigurationError: If ``attempts`` is under 1.
        """
        return cls(rule=AtOnce(), attempts=attempts, name=f"race({attempts})")

    @classmethod
    def after(cls, seconds: float | None, attempts: int = 2) -> HedgePolicy:
        """The next attempt when the one before has been silent for ``seconds``.

        Args:
            seconds: The silence that is too long. 0 is at once (the same as ``race``), None is
                never (the same as ``fallback``).
            attempts: The most requests a turn may make.

        Raises:
            ConfigurationError: If ``seconds`` is negative or no number, or ``attempts`` under 1.
        """
        if seconds is None or seconds == math.inf:
            return cls(rule=OnlyOnFailure(), attempts=attempts, name="after(never)")
        checked = _seconds("seconds", seconds)
        return cls(rule=AfterSilence(checked), attempts=attempts, name=f"after({checked:g} s)")

    @classmethod
    def fallback(cls, attempts: int = 2) -> HedgePolicy:
        """The next attempt only when the one before failed.

        Args:
            attempts: The most requests a turn may make.

        Raises:
            ConfigurationError: If ``attempts`` is under 1.
        """
        return cls(rule=OnlyOnFailure(), attempts=attempts, name="fallback")


def _seconds(field: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"{field} must be a number of seconds, got {value!r}: 0 is at once, None is never"
        )
    if value < 0:
        raise ConfigurationError(
            f"{field} must not be negative, got {value}: 0 is at once, None is never"
        )
    return float(value)
