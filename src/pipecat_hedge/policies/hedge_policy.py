"""When to send the same turn to another provider, as the user states it.

``None`` is never, ``0`` is now, and a negative number is refused where it is written. A failed
attempt is replaced at once under every policy; the rules here only say when an attempt that has
not failed has been silent for too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict, Unpack, get_args

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.facts import LaunchDecision, LaunchRule, Waiting

__all__ = ["AfterSilence", "AtOnce", "HedgePolicy", "OnlyOnFailure", "PolicyOptions"]

Commit: TypeAlias = Literal["auto", "first_sentence", "first_token"]
Losers: TypeAlias = Literal["cancel", "drain"]


class PolicyOptions(TypedDict, total=False):
    """The keywords that all policies take; ``HedgePolicy`` says what they mean."""

    commit: Commit
    losers: Losers
    stall_secs: float | None
    deadline_secs: float | None
    fallback_text: str | None


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
    """How a turn is raced. Make one with its class methods; all take the same keywords.

    Example::

        HedgePolicy.race(2)        # two providers at once, the first usable answer wins
        HedgePolicy.after(0.6)     # a second one if the first is silent for 0.6 s
        HedgePolicy.fallback()     # the next one only when the one before failed

    Parameters:
        rule: When an attempt that has not failed is worth another request.
        name: How the policy calls itself in logs and reports.
        attempts: The most requests a turn may make, whatever happens, rescues included.
        commit: What an attempt must have to win: ``first_sentence``, a unit that can be spoken;
            ``first_token``, anything usable; ``auto``, what suits the text-to-speech downstream.
        losers: ``cancel`` closes a loser's request at once; ``drain`` lets it run to its end, for
            comparing answers (see ``on_loser_drained``), and pays for it.
        stall_secs: The silence after which a committed answer has broken off: somebody else
            continues it or, if no attempt is left, it ends. Under ``fallback`` also the silence
            after which the next one is asked. None is never. A provider may have its own. The
            arguments of a tool call are silence until they are complete.
        deadline_secs: How long a turn may go without an answer before it has failed; None is for
            ever.
        fallback_text: What the bot says when a turn has failed; None is nothing.
    """

    rule: LaunchRule
    name: str
    attempts: int = 2
    commit: Commit = "auto"
    losers: Losers = "cancel"
    stall_secs: float | None = 3.0
    deadline_secs: float | None = None
    fallback_text: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a field cannot work; the message names it and the remedy.
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
        _one_of("commit", self.commit, get_args(Commit))
        _one_of("losers", self.losers, get_args(Losers))
        for field in ("stall_secs", "deadline_secs"):
            if getattr(self, field) is not None:
                _seconds(field, getattr(self, field))
        if self.fallback_text is not None and not str(self.fallback_text).strip():
            raise ConfigurationError(
                "fallback_text is empty: give the sentence to say, or None to say nothing"
            )

    @classmethod
    def race(cls, attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """All attempts at the turn's start: the lowest latency, at ``attempts`` times the requests.

        All of them are spent at the start, so none is left to rescue an answer that breaks off.

        Args:
            attempts: How many providers to ask.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        return cls(rule=AtOnce(), attempts=attempts, name=f"race({attempts})", **options)

    @classmethod
    def after(
        cls, seconds: float | None, attempts: int = 2, **options: Unpack[PolicyOptions]
    ) -> HedgePolicy:
        """The next attempt when the one before has been silent for ``seconds``.

        Args:
            seconds: The silence that is too long. 0 is at once (the same as ``race``), None is
                never (the same as ``fallback``).
            attempts: The most requests a turn may make.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        if seconds is None or seconds == math.inf:
            return cls(rule=OnlyOnFailure(), attempts=attempts, name="after(never)", **options)
        secs = _seconds("seconds", seconds)
        name = f"after({secs:g} s)"
        return cls(rule=AfterSilence(secs), attempts=attempts, name=name, **options)

    @classmethod
    def fallback(cls, attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """The next attempt only when the one before failed, or was silent for ``stall_secs``.

        Args:
            attempts: The most requests a turn may make.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        return cls(rule=OnlyOnFailure(), attempts=attempts, name="fallback", **options)


def _one_of(field: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ConfigurationError(
            f"{field} is not known, got {value!r}: write {', '.join(repr(k) for k in known)}"
        )


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
