"""Runs policies over recorded latencies: the service's own objects, in virtual time.

A turn takes its first latency from the file, in the file's order, so that a provider's slow hours
are replayed as they were and the adaptive policy has to follow them. A further request's latency is
drawn from those of its provider, or, where two providers were measured side by side, from the same
turn. A short file is gone through several times.

What was cut short, because a hedge answered first, is filled in: drawn from the Kaplan-Meier curve
of that provider, beyond the time to which it was seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.facts import Launch, Seat
from pipecat_hedge.planning import learn, plan_turn
from pipecat_hedge.policies.hedge_policy import AfterSilence, HedgePolicy, LearnedRule, SingleR
from pipecat_hedge.policies.latency_model import LatencyModel
from pipecat_hedge.policies.race import Race
from pipecat_hedge.provider_stats import Backend, ProviderStats
from pipecat_hedge.survival import Survival
from pipecat_hedge.virtual_race import Latency, run_virtual
from pipecat_hedge.whatif.answer import PERCENTILES, Answer, Outcome, Source
from pipecat_hedge.whatif.reading import Measured, ReadingError, Recorded
from pipecat_hedge.whatif.recommending import recommend
from pipecat_hedge.whatif.trust import independence_of, intervals, percentile

__all__ = ["Costs", "Question", "what_if"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_TURNS, MOST_TURNS = 20_000, 100_000
BLOCK = 1000
"""Of a larger file, blocks of so many consecutive turns are replayed."""
FEW = 100
MEASURED_TOGETHER = 0.9
"""The share of the turns in which both were measured that makes them measured side by side."""
NEARBY = 10
"""How far away a request is drawn from that is as slow as the turns around it."""
UNSEEN = 0.01
BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.25)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request costs, where the files do not say.

    Parameters:
        prompt_tokens: Tokens of a prompt, or None.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens, or None.
    """

    prompt_tokens: float | None = None
    usd_per_mtok: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out.

    Parameters:
        first: Who is asked first; None is who was.
        second: Who is hedged to; None is the other one measured, or the same one again.
        attempts: The most requests a turn may make.
        after_secs: Fixed delays to compare with; none is the p95.
        budgets: Budgets of the adaptive policy to compare.
        deadline_secs: When an answer should be there; None is as soon as possible.
        worth_secs: What an extra request must save to be worth it, in seconds.
        costs: What a request costs.
        least_turns: A file of fewer turns than this is gone through several times.
        most_turns: More turns than this are sampled.
        seed: The same seed gives the same answer.
    """

    first: str | None = None
    second: str | None = None
    attempts: int = 2
    after_secs: Sequence[float] = ()
    budgets: Sequence[float] = BUDGETS
    deadline_secs: float | None = None
    worth_secs: float = 0.15
    costs: Costs = Costs()
    least_turns: int = LEAST_TURNS
    most_turns: int = MOST_TURNS
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a field cannot work; the message names it and the remedy.
        """
        if self.attempts < 2:
            raise ConfigurationError(f"attempts must be at least 2 to hedge, got {self.attempts}")
        if self.seed < 0:
            raise ConfigurationError(f"seed must not be negative, got {self.seed}")
        if self.most_turns < BLOCK:
            raise ConfigurationError(f"turns must be at least {BLOCK}, got {self.most_turns}")


@dataclass(frozen=True, slots=True)
class _Draws:
    """What each request of each turn does: rows are turns, columns are attempts."""

    secs: list[list[float]]
    fails: list[list[bool]] | None
    rows: Ints
    other_rows: Ints
    other_turns: int | None


def what_if(
    recorded: Recorded,
    question: Question = Question(),
    *,
    progress: Callable[[str, float], None] = lambda policy, share: None,
) -> Answer:
    """Replay recorded turns under one policy after the other.

    Args:
        recorded: What was measured.
        question: What to find out.
        progress: Told the policy that is being replayed, and how much of everything is done.

    Returns:
        The answer.

    Raises:
        ReadingError: If a provider is named that was not measured.
    """
    first, second = _who(recorded, question)
    for measured in (first, second):
        if not (~measured.censored & ~measured.failed).any():
            raise ReadingError(
                f"no request of {measured.name} was answered: there is no latency to replay"
            )
    first, second = _side_by_side(first, second)
    dice = np.random.default_rng(question.seed)
    mine, others = _filled_in(first, dice), _filled_in(second, dice)
    pairs = _paired(first, second)
    count = len(first.secs)
    rows = _rows(count, question.least_turns, question.most_turns)
    draws = _draw(first, mine, second, others, pairs is not None, rows, question.attempts, dice)
    independence = independence_of(mine, pairs)
    together = None
    if not independence.holds and first is second:
        together = _nearby(draws, first, mine, question.attempts, dice)
    policies = _policies(question, mine[~first.failed])
    outcomes: list[Outcome] = []
    for number, (name, policy) in enumerate(policies):

        def told(share: float, name: str = name, number: int = number) -> None:
            progress(name, (number + share) / len(policies))

        secs, extra = _replay(policy, first.name, second.name, draws, told)
        is_choice = not isinstance(policy.rule, (AfterSilence, SingleR))
        outcome = _outcome(name, secs, extra, draws, question, recorded, count, is_choice)
        if together is not None and policy.attempts > 1:
            pessimistic, _ = _replay(policy, first.name, second.name, together, told)
            outcome = replace(outcome, if_slow_together=percentile(np.sort(pessimistic), 0.99))
        outcomes.append(outcome)
    progress("", 1.0)
    recommended, why = recommend(outcomes, question.worth_secs, question.deadline_secs)
    unseen = float(first.censored.mean())
    if unseen > UNSEEN and recommended == outcomes[0].policy:
        why += (
            f". But {unseen:.1%} of the requests to {first.name} were cut short, so these turns "
            "cannot tell how long its tail is: log some under HedgePolicy.fallback() first"
        )
    return Answer(
        turns=recorded.turns,
        replayed=len(rows),
        sampled=count > question.most_turns,
        first=first.name,
        second=second.name,
        sources=tuple(
            Source(m.name, len(m.secs), int(m.censored.sum()), int(m.failed.sum()))
            for m in recorded.providers.values()
        ),
        deadline_secs=question.deadline_secs,
        independence=independence,
        outcomes=tuple(outcomes),
        recommended=recommended,
        why=why,
        notes=tuple(_notes(recorded, first, second, rows, count, question)),
    )


def _who(recorded: Recorded, question: Question) -> tuple[Measured, Measured]:
    names = list(recorded.providers)
    for field in ("first", "second"):
        name = getattr(question, field)
        if name is not None and name not in names:
            raise ReadingError(f"{field}: {name!r} was not measured; measured: {', '.join(names)}")
    first = question.first or names[0]
    others = [name for name in names if name != first]
    second = question.second or (others[0] if others else first)
    return recorded.providers[first], recorded.providers[second]


def _policies(question: Question, secs: Floats) -> list[tuple[str, HedgePolicy]]:
    attempts = question.attempts
    p95 = round(float(np.quantile(secs, 0.95)), 3)
    plain = [
        ("no hedging", HedgePolicy.fallback(1, stall_secs=None)),
        (f"race({attempts})", HedgePolicy.race(attempts, stall_secs=None)),
    ]
    for delay in question.after_secs or (p95,):
        plain.append((f"after({delay:g} s)", HedgePolicy.after(delay, attempts, stall_secs=None)))
    plain.append(("SingleR(p99, 5 %)", HedgePolicy.single_r(0.99, 0.05, stall_secs=None)))
    adaptive = [
        HedgePolicy.adaptive(
            budget,
            attempts,
            deadline_secs=question.deadline_secs,
            worth_secs=question.worth_secs,
            stall_secs=None,
        )
        for budget in question.budgets
    ]
    return [*plain, *((policy.name, policy) for policy in adaptive)]


# ---- what requests do


def _filled_in(measured: Measured, dice: np.random.Generator) -> Floats:
    """The latencies, those that were cut short drawn from beyond what was seen of them."""
    secs = measured.secs.copy()
    cut = np.flatnonzero(measured.censored)
    if not cut.size:
        return secs
    model = LatencyModel(
        Survival.of([0.0], [1.0], float(np.mean(secs)) or 1.0),
        prior_weight=0,
        window=max(len(secs), 1),
        half_life=1e12,
    )
    for value, censored, failed in zip(secs, measured.censored, measured.failed, strict=True):
        if not failed:
            model.record(float(value), censored=bool(censored))
    curve = model.curve
    for index in cut:
        left = max(float(curve.share_after(secs[index])), 1e-9)
        secs[index] = max(curve.quantile(1.0 - left * float(dice.uniform(1e-6, 1.0))), secs[index])
    return secs


def _side_by_side(first: Measured, second: Measured) -> tuple[Measured, Measured]:
    """Both, without the few turns in which only one was measured."""
    if first is second or first.censored.any() or second.censored.any():
        return first, second
    common, mine, others = np.intersect1d(
        first.row, second.row, assume_unique=True, return_indices=True
    )
    if len(common) < MEASURED_TOGETHER * max(len(first.row), len(second.row)):
        return first, second
    return _only(first, mine), _only(second, others)


def _only(measured: Measured, index: Ints) -> Measured:
    return Measured(
        measured.name,
        measured.secs[index],
        measured.censored[index],
        measured.failed[index],
        measured.row[index],
    )


def _paired(first: Measured, second: Measured) -> tuple[Floats, Floats] | None:
    """Both latencies of each turn, if both were measured, uncut, in every turn that is left."""
    if first is second or first.censored.any() or second.censored.any():
        return None
    if len(first.secs) != len(second.secs) or not np.array_equal(first.row, second.row):
        return None
    return first.secs, second.secs


def _rows(count: int, least: int, most: int) -> Ints:
    """Which turns of the file are replayed, in their order."""
    if count <= most:
        return np.tile(np.arange(count), max(-(-least // count), 1))
    blocks = max(most // BLOCK, 1)
    size = min(BLOCK, most)
    begins = np.linspace(0, count - size, blocks).astype(np.int64)
    return (begins[:, None] + np.arange(size)).ravel()


def _draw(
    first: Measured,
    mine: Floats,
    second: Measured,
    others: Floats,
    paired: bool,
    rows: Ints,
    attempts: int,
    dice: np.random.Generator,
) -> _Draws:
    drawn = [dice.integers(0, len(others), len(rows)) for _ in range(attempts - 1)]
    if paired and drawn:
        drawn[0] = rows
    other_rows = drawn[0] if drawn else rows
    own = None if paired or first is second else len(others)
    return _drawn(first, mine, second, others, rows, drawn, other_rows, own)


def _nearby(
    draws: _Draws, first: Measured, mine: Floats, attempts: int, dice: np.random.Generator
) -> _Draws:
    """The same turns, their further requests as slow as the turns around them."""
    count = len(mine)
    drawn = []
    for _ in range(attempts - 1):
        steps = dice.integers(1, NEARBY + 1, len(draws.rows)) * dice.choice(
            np.array([-1, 1]), len(draws.rows)
        )
        drawn.append((draws.rows + steps) % count)
    return _drawn(first, mine, first, mine, draws.rows, drawn, drawn[0], None)


def _drawn(
    first: Measured,
    mine: Floats,
    second: Measured,
    others: Floats,
    rows: Ints,
    drawn: list[Ints],
    other_rows: Ints,
    other_turns: int | None,
) -> _Draws:
    secs = np.stack([mine[rows], *(others[index] for index in drawn)], axis=1)
    fails = None
    if first.failed.any() or second.failed.any():
        fails = np.stack([first.failed[rows], *(second.failed[i] for i in drawn)], axis=1).tolist()
    return _Draws(secs.tolist(), fails, rows, other_rows, other_turns)


# ---- the replay


def _replay(
    policy: HedgePolicy,
    first: str,
    second: str,
    draws: _Draws,
    progress: Callable[[float], None],
) -> tuple[Floats, Ints]:
    """When each turn was answered, infinite for never, and its requests beyond the first."""
    stats, dice = ProviderStats(), random.Random(1)
    backends = [Backend(name, name) for name in dict.fromkeys((first, second))]
    learns = isinstance(policy.rule, LearnedRule)
    count = len(draws.secs)
    every = max(count // 50, 1)
    secs, extra = np.full(count, np.inf), np.zeros(count, np.int64)
    lineup = [Seat(first), *(Seat(second) for _ in range(policy.attempts - 1))]
    plan = None
    for turn, latencies in enumerate(draws.secs):
        if plan is None or learns:
            plan = plan_turn(
                policy, backends, stats, prompt_tokens=None, commit_on="first_token", dice=dice
            )
        race = Race(lineup, plan.rule, attempts=policy.attempts)
        fails = None if draws.fails is None else draws.fails[turn]

        def draw(
            launch: Launch,
            latencies: list[float] = latencies,
            fails: list[bool] | None = fails,
        ) -> Latency:
            number = launch.attempt
            return Latency(latencies[number], fails is not None and fails[number])

        answered = run_virtual(race, draw, plan.launched)
        if learns:
            learn(stats, backends, race.attempts, None, with_sentences=False)
        if answered is not None:
            secs[turn] = answered
        extra[turn] = len(race.attempts) - 1
        if turn % every == 0:
            progress(turn / count)
    return secs, extra


def _outcome(
    name: str,
    secs: Floats,
    extra: Ints,
    draws: _Draws,
    question: Question,
    recorded: Recorded,
    turns: int,
    is_choice: bool,
) -> Outcome:
    ascending = np.sort(secs)
    rate = float(extra.mean())
    answered = secs[np.isfinite(secs)]
    tokens, usd = _cost_of_one(question, recorded)
    deadline = question.deadline_secs
    return Outcome(
        policy=name,
        percentiles={key: percentile(ascending, p) for key, p in PERCENTILES.items()},
        intervals=intervals(
            secs,
            draws.rows,
            draws.other_rows,
            turns,
            draws.other_turns,
            1.0 + rate,
            question.seed,
        ),
        max_secs=float(ascending[-1]),
        mean_secs=float(answered.mean()) if answered.size else float("inf"),
        under_deadline=None if deadline is None else float((secs <= deadline).mean()),
        unanswered=1.0 - answered.size / len(secs),
        extra_requests=rate,
        extra_tokens=None if tokens is None else rate * tokens,
        extra_usd=None if usd is None else 1000 * rate * usd,
        secs=secs,
        is_choice=is_choice,
    )


def _cost_of_one(question: Question, recorded: Recorded) -> tuple[float | None, float | None]:
    """What an extra request costs: its prompt, and what it says before it is cancelled."""
    prompt = question.costs.prompt_tokens or recorded.prompt_tokens
    said = recorded.lost_tokens or 0.0
    tokens = None if prompt is None else prompt + said
    price = question.costs.usd_per_mtok
    if price is not None and prompt is not None:
        return tokens, (prompt * price[0] + said * price[1]) / 1e6
    return tokens, recorded.lost_usd


def _notes(
    recorded: Recorded,
    first: Measured,
    second: Measured,
    rows: Ints,
    count: int,
    question: Question,
) -> list[str]:
    notes: list[str] = []
    if recorded.bad_lines:
        named = "; ".join(recorded.named_bad_lines)
        more = recorded.bad_lines - len(recorded.named_bad_lines)
        rest = f"; and {more} more" if more else ""
        notes.append(f"{recorded.bad_lines} bad lines skipped: {named}{rest}")
    if recorded.ignored:
        notes.append(f"columns that were not taken for latencies: {', '.join(recorded.ignored)}")
    if count > question.most_turns:
        notes.append(f"{len(rows):,} of {count:,} turns were replayed, in blocks of {BLOCK:,}")
    elif len(rows) > count:
        notes.append(f"the {count:,} turns were gone through {len(rows) // count} times")
    for measured in dict.fromkeys((first.name, second.name)):
        known = recorded.providers[measured]
        cut = int(known.censored.sum())
        if cut:
            came = np.sort(known.secs[~known.censored & ~known.failed])
            seen_to = float(came[-min(10, len(came))])
            notes.append(
                f"{cut} latencies of {measured} were cut short, and drawn from what is known of "
                f"the rest (Kaplan-Meier); beyond {seen_to:.2f} s little is known of it"
            )
    if count < FEW:
        notes.append(f"{count} turns say nothing of a tail: take this for no more than a hint")
    elif count < 1000:
        notes.append(f"{count} turns say little beyond the p{100 * (1 - 10 / count):.0f}")
    if recorded.unit == "ms":
        notes.append("the figures were taken for milliseconds")
    return notes
