"""Defines the hedge policies: when a turn sends a further request, as the user states it.

``None`` is never, ``0`` is now, and a negative number is invalid. Every policy
replaces a failed attempt at once; the rules only concern attempts that have not failed.
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

from pipecat_hedge.policy.arguments import (
    require,
    require_flag,
    require_number,
    require_options,
)
from pipecat_hedge.policy.slo import Slo, require_seconds
from pipecat_hedge.policy.turn_route import TurnRoute
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import CommitOn, LaunchDecision, LaunchRule, Waiting

if TYPE_CHECKING:
    from pipecat_hedge.providers.latency import LatencyEstimate

Commit: TypeAlias = Literal["auto", "first_sentence", "first_token"]
Losers: TypeAlias = Literal["cancel", "drain"]
Order: TypeAlias = Literal["given", "learned"]


class _Common(TypedDict, total=False):
    commit: Commit
    losers: Losers
    drain_share: float
    stall_secs: float | None
    silence_secs: float | None
    fallback_text: str | None
    probes: bool
    route: TurnRoute | None


class PolicyOptions(_Common, total=False):
    """The keywords of all policies except ``adaptive``; ``HedgePolicy`` documents them."""

    deadline_secs: float | None


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Launches all attempts at the turn's start."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch now; see ``LaunchRule``."""
        return LaunchDecision(waiting.started_at, "all attempts start together")


@dataclass(frozen=True, slots=True)
class AfterSilence:
    """Launches the next attempt when the last one has been silent for ``seconds``.

    Silence is the time since the launch, or since the last usable token.
    """

    seconds: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch after ``seconds`` of silence; see ``LaunchRule``."""
        before = waiting.in_flight[-1]
        last_token_at = before.launched_at if before.last_token_at is None else before.last_token_at
        return LaunchDecision(
            last_token_at + self.seconds, f"{before.provider} silent {self.seconds} s"
        )


@dataclass(frozen=True, slots=True)
class OnlyOnFailure:
    """Names no time: an attempt is replaced if it fails or is silent for ``stall_secs``."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Never launch; see ``LaunchRule``."""
        return LaunchDecision(None, "only a failure or a stall launches the next attempt")


# ---- rules from which ``planner.py`` builds a LaunchRule for each turn


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Launches an attempt when its saving reaches the price; see ``HedgePolicy.adaptive``."""

    budget: float
    min_saving_secs: float
    target_ttft_secs: float | None
    order: Order
    slo: Slo | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        what, remedy = "a share of turns, not negative", "0.1 is one extra request in ten turns"
        require_number("budget", self.budget, what, remedy, lambda x: 0 <= x < math.inf)
        remedy = "0.15 is the default, budget=0 no hedges"
        secs = _finite("min_saving_secs", self.min_saving_secs, remedy)
        require_seconds("min_saving_secs", secs)
        if self.target_ttft_secs is not None:
            remedy = "None is as soon as possible"
            secs = _finite("target_ttft_secs", self.target_ttft_secs, remedy)
            require_seconds("target_ttft_secs", secs)
        _one_of("order", self.order, get_args(Order))
        require("slo", self.slo, Slo, "write Slo(ttft_secs=0.8)")


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A turn before its first request.

    Parameters:
        order: The providers' names, in the given order.
        known: The latency estimate of each provider.
        draw: The turn's random number, from 0 to below 1.
        prompt_tokens: The estimated size of the conversation in tokens; None if unknown.
        has_tools: Whether the model may call tools.
    """

    order: Sequence[str]
    known: Mapping[str, LatencyEstimate]
    draw: float
    prompt_tokens: int | None = None
    has_tools: bool = False


@runtime_checkable
class TurnRule(Protocol):
    """Chooses the rule of each turn: a policy of one's own that depends on the turn.

    Example, with names from ``pipecat_hedge.policy``::

        class OnlyWithTools:
            adaptive = HedgePolicy.adaptive().rule

            def rule_for(self, facts: TurnFacts) -> Rule:
                return self.adaptive if facts.has_tools else OnlyOnFailure()

        policy = HedgePolicy(OnlyWithTools(), "only with tools")
    """

    def rule_for(self, facts: TurnFacts) -> Rule:
        """Return the rule of one turn: a ``LaunchRule``, or the rule of an ``adaptive`` policy.

        If it raises or returns something else, the turn is not hedged, and a warning is logged.
        """
        ...


Rule: TypeAlias = LaunchRule | Adaptive | TurnRule
"""When an attempt that has not failed gets a further request beside it."""


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """How a turn is raced. Create one with a class method; all of them take the shared keywords.

    Example::

        HedgePolicy.adaptive()     # a hedge when it saves enough, in one turn of ten
        HedgePolicy.race(2)        # two providers at once, the first usable answer wins
        HedgePolicy.after(0.6)     # a hedge when the first provider is silent for 0.6 s
        HedgePolicy.fallback()     # the next provider only when an attempt has failed

    Parameters:
        rule: When an attempt that has not failed gets a further request beside it.
        name: The policy's name in logs and reports.
        max_attempts: The most requests of a turn, rescues included; at least 1. Requests that fail
            before their first token, or are silent, do not count, so that each provider can be
            asked: a turn makes at most its providers + ``max_attempts`` - 1 requests, and what the
            SDKs would retry. A recovery request is one more. When an answer breaks off or is
            silent, further providers may be asked, and then those that had lost again; one that was
            silent, when the answer that continued its own breaks off.
        commit: What makes an attempt win: ``first_sentence``, a speakable unit; ``first_token``,
            anything usable; ``auto``, the choice that suits the text-to-speech downstream.
        losers: ``cancel`` closes a loser's request at once, except for ``probes``. ``drain`` lets
            it run to its end, to compare answers (see ``on_loser_drained``), at its full price.
        drain_share: The share of turns whose losers are drained under ``drain``, from 0 to 1.
        stall_secs: The silence in seconds after which a further attempt may continue a committed
            answer, which stays open beside it. If neither goes on for as long again, the answer
            ends. Without another provider the turn waits, as the bare service would. Under
            ``fallback`` it stands in for ``silence_secs``. None is never. A provider may have its
            own.
        silence_secs: The wait in seconds for the first usable token after which another provider
            is asked as well, whatever the rule says: the provider's p98 if that is longer; 1.5 s
            once a provider was silent and has not answered since. Under ``after(x)`` at least
            ``x``; with ``deadline_secs`` at most half of it. These requests are launched for
            ``silence``, and no budget counts them. None is never.
        deadline_secs: Time in seconds after which a turn without an answer fails, above 0; None is
            never. Under ``after(x)`` more than ``x``. Not an option of ``adaptive``, under which no
            turn fails because it is late.
        fallback_text: What the bot says when a turn has failed, in place of the answer, or of its
            rest if it broke off and no attempt continues it. None is nothing.
        probes: Whether at most one request in 70 of the process may run on to its first token after
            it has lost. This shows whether a provider that always loses is slow or silent, and
            whether it has recovered. The turn is reported when this request has ended.
        route: Which providers come first in a turn, by what it asks for: a ``ComplexityRouter`` or
            a function. None keeps the given order.

    Raises:
        ConfigurationError: If a field is out of range; the message names it and the remedy.
    """

    rule: Rule
    name: str
    max_attempts: int = 2
    commit: Commit = "auto"
    losers: Losers = "cancel"
    drain_share: float = 1.0
    stall_secs: float | None = 3.0
    silence_secs: float | None = 3.0
    deadline_secs: float | None = None
    fallback_text: str | None = None
    probes: bool = True
    route: TurnRoute | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if not is_rule(self.rule):
            raise ConfigurationError(
                f"rule must have next_launch(waiting) or rule_for(facts), got {self.rule!r}: "
                "write HedgePolicy.adaptive(), or give an object of a class of your own"
            )
        is_count = isinstance(self.max_attempts, int) and not isinstance(self.max_attempts, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_count or self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts must be a whole number of at least 1, got {self.max_attempts!r}: "
                "it is the most requests that one turn may make; "
                "max_attempts=1 asks one provider and never hedges"
            )
        _one_of("commit", self.commit, get_args(Commit))
        _one_of("losers", self.losers, get_args(Losers))
        remedy = "0.02 drains the losers of one turn in fifty"
        share = self.drain_share
        require_number("drain_share", share, "from 0 to 1", remedy, lambda x: 0 <= x <= 1)
        require_flag("probes", self.probes)
        for field in ("stall_secs", "silence_secs"):
            if getattr(self, field) is not None:
                _seconds(field, getattr(self, field))
        if self.deadline_secs is not None:
            secs = _finite("deadline_secs", self.deadline_secs, "None is never")
            if not secs:
                raise ConfigurationError("deadline_secs is 0, when every turn fails: None is never")
        if self.route is not None and not callable(self.route):
            raise ConfigurationError(
                f"route must be a function of a turn, got {self.route!r}: write "
                'ComplexityRouter(simple="small", complex="large")'
            )
        remedy = "give the sentence to say, or None to say nothing"
        require("fallback_text", self.fallback_text, str, remedy)
        if self.fallback_text is not None and not self.fallback_text.strip():
            raise ConfigurationError(f"fallback_text is empty: {remedy}")

    def commits_on(self, output: CommitOn) -> CommitOn:
        """What an attempt must have to win.

        Args:
            output: What suits the text-to-speech, which ``auto`` follows.
        """
        return output if self.commit == "auto" else self.commit

    @property
    def has_given_order(self) -> bool:
        """Whether the providers are asked in the given order although the first is slow."""
        return isinstance(self.rule, Adaptive) and self.rule.order == "given"

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
        """Send a further request when its expected saving reaches a price.

        The price follows from the budget: hedges are sent where they save most. The expected
        saving at time t is V(t) = ∫ₜ^∞ S(u)/S(t) · P(Y ≤ u − t) du. S is the learned survival
        function of the requests in flight, and Y the learned latency of the next provider; see
        ``docs/design/when-to-hedge.md``. All services of the process share what is learned, and it
        is kept between runs.

        Args:
            budget: Extra requests per turn, on average, over all turns of the process with this
                budget; 0 or more. Any 1,000 turns send at most 1.25 times as many. Replacements of
                failed attempts are not counted. Where providers have prices (``usd_per_mtok``), the
                unit is the cost of a request to the first provider.
            max_attempts: The most requests of a turn; at least 1.
            target_ttft_secs: Target for the first token, in seconds, at most 60. Hedges are timed
                to meet it, and waiting before it costs nothing. A turn that misses it goes on.
                None is as soon as possible.
            slo: The callers' SLO, if the service is given none; it is reported, and moves no
                hedge. To hedge in time for it, give its limit as ``target_ttft_secs``.
            min_saving_secs: The least expected saving of an extra request, in seconds; 0 to 60.
            order: ``learned`` uses the given order, except while the first provider is slower than
                before, or was silent in two turns in a row, and another is well: that one is then
                first until the first has recovered. ``given`` always uses the given order, because
                the faster model may be the more expensive or the less accurate one.
            **options: The shared keywords, see the class; without ``deadline_secs``.

        Raises:
            ConfigurationError: If an argument is out of range; the message names it and the remedy.
        """
        rule = Adaptive(budget, min_saving_secs, target_ttft_secs, order, slo)
        if isinstance(max_attempts, int) and budget > max(max_attempts - 1, 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"budget is {budget:g} extra requests a turn, more than "
                f"max_attempts={max_attempts} allow. "
                f"If per cent was meant, write {budget / 100:g}"
            )
        if "deadline_secs" in options:
            raise ConfigurationError(
                "deadline_secs is not an argument of adaptive, under which no turn fails for being "
                "late: write target_ttft_secs for when the first token should be there"
            )
        require_options(options, owner=cls.adaptive, options=_Common)
        return cls(
            rule=rule, max_attempts=max_attempts, name=f"adaptive({100 * budget:g} %)", **options
        )

    @classmethod
    def race(cls, max_attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """Launch all attempts at the turn's start: the lowest latency, and the most requests.

        An answer that stalls is waited for; one that breaks off is continued by one that lost.

        Args:
            max_attempts: The number of providers to ask; at least 1.
            **options: The shared keywords, see the class.

        Raises:
            ConfigurationError: If an argument is out of range; the message names it and the remedy.
        """
        require_options(options, owner=cls.race, options=PolicyOptions)
        return cls(
            rule=AtOnce(), max_attempts=max_attempts, name=f"race({max_attempts})", **options
        )

    @classmethod
    def after(
        cls, seconds: float | None, max_attempts: int = 2, **options: Unpack[PolicyOptions]
    ) -> HedgePolicy:
        """Launch the next attempt when the last one has been silent for ``seconds``.

        Args:
            seconds: The silence in seconds, at most 60. 0 is at once (as ``race``), None is never
                (as ``fallback``).
            max_attempts: The most requests of a turn; at least 1.
            **options: The shared keywords, see the class.

        Raises:
            ConfigurationError: If an argument is out of range; the message names it and the remedy.
        """
        require_options(options, owner=cls.after, options=PolicyOptions)
        if seconds is None or seconds == math.inf:
            return cls(
                rule=OnlyOnFailure(), max_attempts=max_attempts, name="after(never)", **options
            )
        secs = require_seconds("seconds", _seconds("seconds", seconds))
        name = f"after({secs:g} s)"
        policy = cls(rule=AfterSilence(secs), max_attempts=max_attempts, name=name, **options)
        if max_attempts > 1 and policy.deadline_secs is not None and policy.deadline_secs <= secs:
            raise ConfigurationError(
                f"deadline_secs is {policy.deadline_secs:g}, when the turn has failed before the "
                f"hedge after seconds={secs:g}: raise deadline_secs, or lower seconds"
            )
        return policy

    @classmethod
    def fallback(cls, max_attempts: int = 2, **options: Unpack[PolicyOptions]) -> HedgePolicy:
        """Launch the next attempt only when the last one failed, or was silent for ``stall_secs``.

        Args:
            max_attempts: The most requests of a turn; at least 1.
            **options: The shared keywords, see the class.

        Raises:
            ConfigurationError: If an argument is out of range; the message names it and the remedy.
        """
        require_options(options, owner=cls.fallback, options=PolicyOptions)
        return cls(rule=OnlyOnFailure(), max_attempts=max_attempts, name="fallback", **options)


def is_rule(rule: object) -> bool:
    """Whether an object can be a policy's rule."""
    if isinstance(rule, type):
        return False
    return isinstance(rule, Adaptive) or any(
        callable(getattr(rule, name, None)) for name in ("next_launch", "rule_for")
    )


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


def _finite(field: str, value: float, remedy: str) -> float:
    if math.isinf(_seconds(field, value)):
        raise ConfigurationError(f"{field} is infinite: {remedy}")
    return float(value)


def slo_of(slo: Slo | None, policy: HedgePolicy) -> Slo | None:
    """Return the SLO of a service: its own, or the one that its policy states.

    Raises:
        ConfigurationError: If ``slo`` is not an ``Slo``, or differs from the policy's.
    """
    require("slo", slo, Slo, "write Slo(ttft_secs=0.8)")
    policy_slo = policy.rule.slo if isinstance(policy.rule, Adaptive) else None
    if None not in (slo, policy_slo) and slo != policy_slo:
        raise ConfigurationError(
            f"slo is {slo}, but the policy states {policy_slo}: give both the same, or only one"
        )
    return slo or policy_slo
