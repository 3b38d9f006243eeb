"""Replays turns under other policies, and recommends one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pipecat_hedge.policy import AfterSilence, HedgePolicy, TurnRule
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.comparison_rules import single_r
from pipecat_hedge.tools.analysis.latency_files import Measured, Recorded, Unit
from pipecat_hedge.tools.analysis.learned_delays import Day, compare_days
from pipecat_hedge.tools.analysis.replay_policies import BLOCK, Draws, draws_of, replay
from pipecat_hedge.tools.analysis.routes import Route, compare_routes
from pipecat_hedge.tools.analysis.statistics import (
    FEW,
    PERCENTILES,
    Floats,
    Independence,
    Interval,
    Ints,
    independence_of,
    percentile,
    replay_intervals,
)
from pipecat_hedge.tools.analysis.turn_log import ReadingError

BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.25)
MIN_TURNS = 6_000
"""The fewest turns that are replayed."""
MAX_TURNS = 100_000
"""The most turns that are replayed."""
MAX_REPEATS = 100
"""How often a file is replayed at most to get ``MIN_TURNS``."""
LIGHT_TAIL = 4.0
"""A p99 below this many times the p50 is a light tail."""
SLOW_TOGETHER = 0.3
"""Three times the expected share under independence."""
SAME = 1.02
"""A figure up to this factor above its lower bound counts as known."""
NO_ANSWER_SECS = 60.0
"""The wait of a turn without an answer, in means."""


@dataclass(frozen=True, slots=True)
class Question:
    """The options of a replay.

    Parameters:
        first: The first provider; None is the recorded one.
        second: The provider hedged to; None is the other one, or the first again.
        attempts: The most requests per turn.
        after_secs: Fixed delays to compare with; empty is the p95.
        budgets: Budgets of the adaptive policy to compare.
        deadline_secs: The latest time of a first token; None is as soon as possible.
        slo_secs: The SLO for the first token: adaptive policies are compared with and without it
            as their target, and turns within it are counted.
        min_saving_secs: The least saving of a recommended extra request, in seconds.
        prompt_tokens: Tokens of a prompt, if not in the files.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens, if not in the files.
        min_turns: Files with fewer turns are repeated, at most 100 times.
        max_turns: Files with more turns are sampled.
        seed: The same seed gives the same answer.
        others: Further policies to compare, by name.

    Raises:
        ConfigurationError: If a field is invalid; the message names it and the remedy.
    """

    first: str | None = None
    second: str | None = None
    attempts: int = 2
    after_secs: Sequence[float] = ()
    budgets: Sequence[float] = BUDGETS
    deadline_secs: float | None = None
    slo_secs: float | None = None
    min_saving_secs: float = 0.15
    prompt_tokens: float | None = None
    usd_per_mtok: tuple[float, float] | None = None
    min_turns: int = MIN_TURNS
    max_turns: int = MAX_TURNS
    seed: int = 1
    others: Sequence[tuple[str, HedgePolicy]] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        times = {"deadline_secs": self.deadline_secs, "slo_secs": self.slo_secs}
        checks = [
            *(
                (
                    secs is not None and not 0 < secs <= 60,
                    f"{name} must be above 0 and at most 60 s, got {secs}",
                )
                for name, secs in times.items()
            ),
            (
                not self.min_saving_secs >= 0,
                f"min_saving_secs must not be negative, got {self.min_saving_secs}",
            ),
            (self.attempts < 2, f"attempts must be at least 2 to hedge, got {self.attempts}"),
            (
                self.slo_secs is not None and self.deadline_secs is not None,
                "deadline_secs and slo_secs both set the time of an answer: give one of them",
            ),
            (
                self.prompt_tokens is not None and not 0 < self.prompt_tokens < math.inf,
                f"prompt_tokens must be positive, got {self.prompt_tokens}",
            ),
            (
                not all(0 <= price < math.inf for price in self.usd_per_mtok or ()),
                f"usd_per_mtok must be two prices, not negative, got {self.usd_per_mtok}",
            ),
            (self.max_turns < BLOCK, f"turns must be at least {BLOCK}, got {self.max_turns}"),
            (self.seed < 0, f"seed must not be negative, got {self.seed}"),
            (
                any(policy.max_attempts > self.attempts for _, policy in self.others),
                f"attempts is {self.attempts}, but one of the other policies makes more: raise it",
            ),
        ]
        for is_wrong, message in checks:
            if is_wrong:
                raise ConfigurationError(message)

    @property
    def due_secs(self) -> float | None:
        """The latest time of a first token, by the deadline or the SLO; None without one."""
        return self.deadline_secs if self.slo_secs is None else self.slo_secs


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one policy.

    Parameters:
        policy: The policy's name.
        percentiles: ``p50``, ``p95``, ``p99``, ``p99.9`` in seconds; infinite is no answer.
        intervals: Their 95 % intervals for files of this size.
        max_secs: The slowest turn.
        at_least: Lower bounds in seconds of those percentiles, and of ``max``, that depend on
            requests which were cut short.
        mean_secs: The mean wait; a turn without an answer counts a minute.
        late_secs: The mean wait beyond the deadline; without one the mean wait.
        under_deadline: The share of turns answered by the deadline; None without a deadline.
        unanswered: The share of turns without an answer.
        extra_requests: Requests per turn beyond the first, without replacements.
        replacements: Requests per turn that replaced a failed one.
        extra_usd: The US dollars per 1,000 turns that they add; None if prices are unknown.
        is_choice: Whether the policy can be recommended, or is only a comparison.
    """

    policy: str
    percentiles: Mapping[str, float]
    intervals: Mapping[str, Interval]
    max_secs: float
    at_least: Mapping[str, float]
    mean_secs: float
    late_secs: float
    under_deadline: float | None
    unanswered: float
    extra_requests: float
    replacements: float
    extra_usd: float | None
    is_choice: bool


Obstacle: TypeAlias = Literal["in time", "slow together", "light tail", "slow second"]
"""Why no extra request is worth it: the turns are fast enough, both providers are slow in the same
turns, few turns are slow, or the second request comes too late."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The recommended policy, and the reason.

    Parameters:
        policy: Its name.
        baseline: The policy that it is compared with, which only replaces failed requests.
        saving_secs: What an extra request saves at most, under any policy.
        passed_over: The next policy, and what each further request of it would save: too little.
        obstacle: Why no extra request is worth it; None if some are.
        tail: The baseline's p99 over its p50; with few turns the slowest turn.
    """

    policy: str
    baseline: str
    saving_secs: float
    passed_over: tuple[str, float] | None
    obstacle: Obstacle | None
    tail: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What an answer rests on.

    Parameters:
        latencies: The first provider's, answered or not.
        second_answers: Answers of the provider hedged to.
        cut_short: By provider, requests that were cancelled; their latencies are estimated.
        others: Further providers in the files.
        is_prompt_only: Whether the price of an extra request counts only its prompt.
        is_timed: Whether it is known when turns were asked.
        unit: As in ``Recorded``, like ``skipped`` and ``named_skips``.
    """

    latencies: int
    second_answers: int
    cut_short: Mapping[str, int]
    others: tuple[str, ...]
    is_prompt_only: bool
    is_timed: bool
    unit: Unit
    skipped: int
    named_skips: tuple[str, ...]

    @property
    def is_small(self) -> bool:
        """Whether there are too few turns for a p99."""
        return self.latencies < FEW


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of all policies, and the recommended one.

    Parameters:
        choice: The recommended policy.
        sample: What it rests on.
        turns: Turns in the files.
        replayed: Turns that were replayed.
        first: The first provider.
        second: The provider hedged to.
        deadline_secs: The latest time of a first token, or None.
        min_saving_secs: The least saving of a recommended extra request.
        independence: Whether slow turns cluster.
        policies: The result of each policy, ``no hedging`` first.
        routes: What each threshold of a complexity route gives, if the turns have its scores.
        days: What a fixed delay does that was learned the day before, if turns have times.
    """

    choice: Choice
    sample: Sample
    turns: int
    replayed: int
    first: str
    second: str
    deadline_secs: float | None
    min_saving_secs: float
    independence: Independence
    policies: tuple[Outcome, ...]
    routes: tuple[Route, ...]
    days: tuple[Day, ...]

    def outcome(self, name: str) -> Outcome:
        """Return the result of the policy of that name."""
        return next(outcome for outcome in self.policies if outcome.policy == name)


def what_if(
    recorded: Recorded,
    question: Question | None = None,
    *,
    progress: Callable[[str, float], None] = lambda policy, share: None,
) -> Answer:
    """Replay recorded turns under several policies.

    Args:
        recorded: The recorded latencies.
        question: The options; None uses the defaults.
        progress: Called with the current policy, and the completed share of all.

    Raises:
        ReadingError: If a named provider was not measured, or never answered.
        ConfigurationError: If prices are given without the size of a prompt.
    """
    question = question or Question()
    cost = _usd_of_a_request(question, recorded)
    first, second = _providers(recorded, question)
    least = min(question.min_turns, MAX_REPEATS * len(first.secs))
    draws = draws_of(
        first,
        second,
        question.attempts,
        least,
        question.max_turns,
        question.seed,
        is_timed=recorded.asked_at is not None,
    )
    first, second = draws.first, draws.second
    independence = independence_of(draws.filled, draws.pairs)
    policies = _compared(question, draws)
    outcomes, turns = list[Outcome](), dict[str, tuple[Floats, Ints]]()
    for n, (name, policy) in enumerate(policies):
        progress(name, n / len(policies))
        secs, least, hedges, replaced = replay(policy, draws, recorded.usd_per_mtok)
        extra, turns[name] = float(hedges.mean()), (secs, hedges)
        ascending, more, due = np.sort(secs), extra + replaced, question.due_secs
        waits = np.minimum(secs, NO_ANSWER_SECS)
        outcomes.append(
            Outcome(
                name,
                {key: percentile(ascending, p) for key, p in PERCENTILES.items()},
                replay_intervals(secs, draws.rows, draws.sizes, 1.0 + more, question.seed),
                float(ascending[-1]),
                _at_least(secs, least),
                float(waits.mean()),
                float(np.maximum(waits - (due or 0.0), 0.0).mean()),
                None if due is None else float((secs <= due).mean()),
                float(np.isinf(secs).mean()),
                extra,
                replaced,
                None if cost is None else 1000 * more * cost,
                not isinstance(policy.rule, (AfterSilence, TurnRule)),
            )
        )
    progress("", 1.0)
    # If requests fail, the baseline is a policy that only replaces them.
    start = int(draws.fails is not None)
    return Answer(
        _recommend(outcomes[start:], question, len(first.secs), independence),
        _sample(recorded, draws, question),
        recorded.turns,
        len(draws.secs),
        first.name,
        second.name,
        question.due_secs,
        question.min_saving_secs,
        independence,
        tuple(outcomes),
        compare_routes(recorded, question.seed),
        compare_days(recorded, draws, turns, question.budgets, question.attempts),
    )


def _at_least(secs: Floats, least: Floats) -> dict[str, float]:
    """Return the percentiles that depend on unknown latencies, with their lower bounds."""
    unknown = ~np.isnan(least)
    if not unknown.any():
        return {}
    low = np.sort(np.where(unknown, least, secs))
    high = np.sort(np.where(unknown, np.inf, secs))
    bounds = {key: (percentile(low, p), percentile(high, p)) for key, p in PERCENTILES.items()}
    bounds["max"] = float(low[-1]), float(high[-1])
    return {key: least for key, (least, most) in bounds.items() if most > SAME * least}


def _providers(recorded: Recorded, question: Question) -> tuple[Measured, Measured]:
    names = list(recorded.providers)
    for option, name in (("first", question.first), ("second", question.second)):
        if name is not None and name not in names:
            raise ReadingError(f"{option}: {name!r} was not measured; measured: {', '.join(names)}")
    first = question.first or names[0]
    second = question.second or next((name for name in names if name != first), first)
    for name in (first, second):
        if not recorded.providers[name].answers:
            raise ReadingError(f"no request of {name} was answered: there is no latency to replay")
    return recorded.providers[first], recorded.providers[second]


def _compared(question: Question, draws: Draws) -> list[tuple[str, HedgePolicy]]:
    """Return the compared policies by name; the first one makes one request per turn."""
    attempts, answered = question.attempts, draws.filled[~draws.first.failed]
    policies = [("no hedging", HedgePolicy.fallback(1, stall_secs=None))]
    if draws.fails is not None:
        fallback = HedgePolicy.fallback(attempts, stall_secs=None)
        policies.append((f"fallback({attempts})", fallback))
    policies.append((f"race({attempts})", HedgePolicy.race(attempts, stall_secs=None)))
    for delay in question.after_secs or (round(float(np.quantile(answered, 0.95)), 3),):
        policy = HedgePolicy.after(delay, attempts, stall_secs=None)
        policies.append((policy.name, policy))
    single = single_r(0.99, 0.05, stall_secs=None)
    policies.append((single.name, single))
    for target_secs in dict.fromkeys((question.deadline_secs, question.due_secs)):
        for budget in question.budgets:
            policy = HedgePolicy.adaptive(
                budget,
                attempts,
                target_ttft_secs=target_secs,
                min_saving_secs=question.min_saving_secs,
                stall_secs=None,
            )
            aim = "" if target_secs == question.deadline_secs else f" for {target_secs:g} s"
            policies.append((f"{policy.name}{aim}", policy))
    return [*policies, *question.others]


def _usd_of_a_request(question: Question, recorded: Recorded) -> float | None:
    """Return the cost of an extra request: its prompt, and its output until it is closed."""
    if question.usd_per_mtok is None:
        if question.prompt_tokens is not None:
            raise ConfigurationError(
                "prompt_tokens needs usd_per_mtok: without prices there are no dollars to count"
            )
        return recorded.lost_usd
    prompt = question.prompt_tokens or recorded.prompt_tokens
    if prompt is None:
        raise ConfigurationError(
            "usd_per_mtok needs prompt_tokens, the size of a prompt: the files do not have it"
        )
    prices = question.usd_per_mtok
    return (prompt * prices[0] + (recorded.lost_tokens or 0.0) * prices[1]) / 1e6


def _recommend(
    outcomes: Sequence[Outcome], question: Question, turns: int, independence: Independence
) -> Choice:
    """Choose a policy: the last one of which each further request saves enough.

    Fixed delays are excluded: they were fitted to the file, and do not adapt to provider changes.
    """
    none, chosen, passed = outcomes[0], outcomes[0], None
    choices = [outcome for outcome in outcomes[1:] if outcome.is_choice]
    most = 0.0
    for outcome in sorted(choices, key=lambda o: (o.extra_requests, o.late_secs)):
        if outcome.extra_requests > none.extra_requests:
            saved = none.late_secs - outcome.late_secs
            most = max(most, saved / (outcome.extra_requests - none.extra_requests))
        more = outcome.extra_requests - chosen.extra_requests
        saved = chosen.late_secs - outcome.late_secs
        if saved > 0 and (more <= 0 or saved / more >= question.min_saving_secs):
            chosen, passed = outcome, None
        elif saved > 0 and passed is None:
            passed = outcome.policy, saved / more
    tail = none.percentiles["p99"] if turns >= FEW else none.max_secs
    tail /= max(none.percentiles["p50"], 1e-9)
    obstacle = _obstacle(none, independence, tail) if chosen is none else None
    return Choice(chosen.policy, none.policy, most, passed, obstacle, tail)


def _obstacle(none: Outcome, independence: Independence, tail: float) -> Obstacle:
    if none.under_deadline is not None and none.under_deadline > 0.99:
        return "in time"
    if (independence.slow_together or 0.0) > SLOW_TOGETHER:
        return "slow together"
    return "light tail" if tail < LIGHT_TAIL else "slow second"


def _sample(recorded: Recorded, draws: Draws, question: Question) -> Sample:
    names = dict.fromkeys((draws.first.name, draws.second.name))
    cut_short = {name: int(recorded.providers[name].censored.sum()) for name in names}
    return Sample(
        len(draws.filled),
        draws.second.answers,
        {name: number for name, number in cut_short.items() if number},
        tuple(name for name in recorded.providers if name not in names),
        question.usd_per_mtok is not None and recorded.lost_tokens is None,
        recorded.asked_at is not None,
        recorded.unit,
        recorded.skipped,
        recorded.named_skips,
    )
