"""When to send the same turn to another provider, as the user states it.

``None`` is never, ``0`` is now, and a negative number is refused where it is written. A failed
attempt is replaced at once under every policy; the rules here only say when an attempt that has
not failed has been silent for too long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
    runtime_checkable,
)

from pipecat_hedge.policy.slo import Slo, refuse_milliseconds
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

if TYPE_CHECKING:
    from pipecat_hedge.policy.launch_rule import LatencyEstimate

__all__ = [
    "Adaptive",
    "AfterSilence",
    "AtOnce",
    "HedgePolicy",
    "LearnedRule",
    "OnlyOnFailure",
    "PolicyOptions",
]

Commit: TypeAlias = Literal["auto", "first_sentence", "first_token"]
Losers: TypeAlias = Literal["cancel", "drain"]
Order: TypeAlias = Literal["given", "learned"]


class _Common(TypedDict, total=False):
    commit: Commit
    losers: Losers
    stall_secs: float | None
    fallback_text: str | None
    probes: bool


class PolicyOptions(_Common, total=False):
    """The keywords that policies take; ``HedgePolicy`` says what they mean."""

    deadline_secs: float | None


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
        last_token_at = before.launched_at if before.last_token_at is None else before.last_token_at
        return LaunchDecision(
            last_token_at + self.seconds, f"{before.provider} silent {self.seconds} s"
        )


@dataclass(frozen=True, slots=True)
class OnlyOnFailure:
    """Never because of time; failures are replaced all the same."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Never launch; see ``LaunchRule``."""
        return LaunchDecision(None, "only a failure launches the next attempt")


# ---- rules that need to know what has been learned; ``planning.py`` makes a LaunchRule of them


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Another request when it is worth its price; see ``HedgePolicy.adaptive``."""

    budget: float
    min_saving_secs: float
    target_ttft_secs: float | None
    order: Order
    slo: Slo | None = None


@runtime_checkable
class LearnedRule(Protocol):
    """A rule that is made anew for each turn from the latencies learned so far."""

    def launch_rule(
        self, known: Mapping[str, LatencyEstimate], order: Sequence[str], draw: float
    ) -> LaunchRule:
        """The rule of one turn.

        Args:
            known: What is known of each provider's latency.
            order: The providers' names, in the order in which they are asked.
            draw: The turn's random number, from 0 to below 1.
        """
        ...


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """How a turn is raced. Make one with its class methods; all take the same keywords.

    Example::

        HedgePolicy.adaptive()     # a second one when it is worth it, for one turn in ten
        HedgePolicy.race(2)        # two providers at once, the first usable answer wins
        HedgePolicy.after(0.6)     # a second one if the first is silent for 0.6 s
        HedgePolicy.fallback()     # the next one only when the one before failed

    Parameters:
        rule: When an attempt that has not failed is worth another request.
        name: How the policy calls itself in logs and reports.
        max_attempts: The most requests a turn may make, rescues included. The test of a provider
            whose breaker is half-open is one more. When all have failed, those that an SDK would
            have retried are made again.
        commit: What an attempt must have to win: ``first_sentence``, a unit that can be spoken;
            ``first_token``, anything usable; ``auto``, what suits the text-to-speech downstream.
        losers: ``cancel`` closes a loser's request at once, but see ``probes``; ``drain`` lets it
            run to its end, for comparing answers (see ``on_loser_drained``), and pays for it.
        stall_secs: The silence after which another attempt continues a committed answer. If none is
            left, the answer is waited for, as the bare service would. Under ``fallback`` also the
            silence after which the next one is asked, or twice the provider's p99 where that is
            longer, four times this at most. None is never. A provider may have its own.
        deadline_secs: How long a turn may go without an answer before it has failed; None is for
            ever. Not of ``adaptive``, under which no turn
            fails for being late.
        fallback_text: What the bot says when a turn has failed, in place of the answer or, where
            one has broken off and nobody continues it, of the rest of it; None is nothing.
        probes: Whether at most one request in seventy of the process may run on to its first token
            when it has lost. Only that tells whether a provider that always loses is slow or
            silent, and whether it has recovered. Its turn is reported when it has ended.
    """

    rule: LaunchRule | Adaptive | LearnedRule
    name: str
    max_attempts: int = 2
    commit: Commit = "auto"
    losers: Losers = "cancel"
    stall_secs: float | None = 3.0
    deadline_secs: float | None = None
    fallback_text: str | None = None
    probes: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a field cannot work; the message names it and the remedy.
        """
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"max_attempts must be a whole number, got {self.max_attempts!r}: "
                "it is the most requests that one turn may make"
            )
        if self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts must be at least 1, got {self.max_attempts}: "
                "with none no request is made; "
                "max_attempts=1 asks one provider and never hedges"
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
    def adaptive(
        cls,
        budget: float = 0.1,
        max_attempts: int = 2,
        *,
        target_ttft_secs: float | None = None,
        slo: Slo | None = None,
        min_saving_secs: float = 0.15,
        order: Order = "learned",
        **options: Unpack[_Common],
    ) -> HedgePolicy:
        """The next attempt when it is worth its price, by what has been learned of the providers.

        The price follows from the budget: hedges are sent where they save most. What is learned is
        shared by all services of the process and kept between runs.

        Args:
            budget: Extra requests per turn, on average, over all turns of the process with this
                budget; over any 1,000 turns at most 1.25 times as many. Attempts that replace a
                failed one are not counted. Where providers
                have prices (``usd_per_mtok``), in units of the first provider's cost.
            max_attempts: The most requests a turn may make.
            target_ttft_secs: When the first token should be there. Hedges are then sent so that it
                is, and waiting before it counts for nothing. A turn that misses it goes on. None
                is as soon as possible.
            slo: What callers are promised, in place of ``target_ttft_secs``: the target is that of
                what makes an attempt win: ``ttfs_secs`` where it is a sentence, and
                ``ttft_secs`` where it is the first token; the other one where only that is given.
            min_saving_secs: What an extra request must save on average to be sent, in seconds.
            order: ``learned`` asks the providers in the order in which they were given, but for a
                slow spell: when the first has become slower than it used to be, and another is
                well, that one is asked first until the first has recovered. ``given`` never
                does that: the quicker model may be the dearer or the less accurate one.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not 0 <= budget < math.inf:
            raise ConfigurationError(
                f"budget must be a share of turns, not negative, got {budget!r}: "
                "0.1 is one extra request in ten turns, 0 is none"
            )
        if isinstance(max_attempts, int) and budget > max(max_attempts - 1, 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"budget is {budget:g} extra requests a turn, more than "
                f"max_attempts={max_attempts} allow. "
                f"If per cent was meant, write {budget / 100:g}"
            )
        _one_of("order", order, get_args(Order))
        if "deadline_secs" in options:
            raise ConfigurationError(
                "deadline_secs is not an argument of adaptive, under which no turn fails for being "
                "late: write target_ttft_secs for when the first token should be there"
            )
        target = None
        if target_ttft_secs is not None:
            target = refuse_milliseconds(
                "target_ttft_secs", _seconds("target_ttft_secs", target_ttft_secs)
            )
        if slo is not None:
            _check_slo(slo, target)
        rule = Adaptive(
            float(budget), _seconds("min_saving_secs", min_saving_secs), target, order, slo
        )
        name = f"adaptive({100 * budget:g} %{'' if slo is None else ', slo'})"
        return cls(rule=rule, max_attempts=max_attempts, name=name, **options)

    @classmethod
    def race(cls, max_attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """All attempts at the turn's start: the lowest latency, and the most requests.

        All of them are spent at the start, so none is left to rescue an answer that breaks off.

        Args:
            max_attempts: How many providers to ask.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        return cls(
            rule=AtOnce(), max_attempts=max_attempts, name=f"race({max_attempts})", **options
        )

    @classmethod
    def after(
        cls, seconds: float | None, max_attempts: int = 2, **options: Unpack[PolicyOptions]
    ) -> HedgePolicy:
        """The next attempt when the one before has been silent for ``seconds``.

        Args:
            seconds: The silence that is too long. 0 is at once (the same as ``race``), None is
                never (the same as ``fallback``).
            max_attempts: The most requests a turn may make.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        if seconds is None or seconds == math.inf:
            return cls(
                rule=OnlyOnFailure(), max_attempts=max_attempts, name="after(never)", **options
            )
        secs = refuse_milliseconds("seconds", _seconds("seconds", seconds))
        name = f"after({secs:g} s)"
        return cls(rule=AfterSilence(secs), max_attempts=max_attempts, name=name, **options)

    @classmethod
    def fallback(cls, max_attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """The next attempt only when the one before failed, or was silent for ``stall_secs``.

        Args:
            max_attempts: The most requests a turn may make.
            **options: The keywords of all policies, see the class.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        return cls(rule=OnlyOnFailure(), max_attempts=max_attempts, name="fallback", **options)


def _one_of(field: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ConfigurationError(
            f"{field} is not known, got {value!r}: write {', '.join(repr(k) for k in known)}"
        )


def _check_slo(slo: Slo, target_ttft_secs: float | None) -> None:
    if not isinstance(slo, Slo):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"slo must be a Slo, got {slo!r}: write Slo(ttft_secs=0.8)")
    if target_ttft_secs is not None:
        raise ConfigurationError(
            f"target_ttft_secs={target_ttft_secs:g} and slo both say when an answer should be "
            "there: give one of them"
        )
    if slo.ttft_secs is None and slo.ttfs_secs is None:
        raise ConfigurationError(
            "slo promises no time of the LLM's, so there is no target in it: give it a ttft_secs "
            "or a ttfs_secs, or leave it out here"
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


def slo_of(slo: Slo | None, policy: HedgePolicy) -> Slo | None:
    """The SLO of a service: its own, or the one that its policy aims at.

    Raises:
        ConfigurationError: If ``slo`` is not an ``Slo``, or the policy aims at another one.
    """
    if slo is not None and not isinstance(slo, Slo):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"slo must be a Slo, got {slo!r}: write Slo(ttft_secs=0.8)")
    policy_slo = policy.rule.slo if isinstance(policy.rule, Adaptive) else None
    if None not in (slo, policy_slo) and slo != policy_slo:
        raise ConfigurationError(
            f"slo is {slo}, but the policy aims at {policy_slo}: give both the same, or only "
            "the policy"
        )
    return slo or policy_slo
