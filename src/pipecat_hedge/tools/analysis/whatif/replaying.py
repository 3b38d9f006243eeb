"""Runs policies over recorded latencies: the service's own objects, in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipecat_hedge.limits.admission_controller import LISTENS_TO_ONE_IN
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.hedge_policy import (
    Adaptive,
    AfterSilence,
    HedgePolicy,
    LearnedRule,
    SingleR,
)
from pipecat_hedge.policy.planner import learn, plan_turn
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import Launch, Slot
from pipecat_hedge.race.race import Race
from pipecat_hedge.race.virtual import Latency, run_virtual
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.tools.analysis.whatif.answer import PERCENTILES, Answer, Outcome, Source
from pipecat_hedge.tools.analysis.whatif.drawing import Draws, Material
from pipecat_hedge.tools.analysis.whatif.notes import notes_on
from pipecat_hedge.tools.analysis.whatif.question import Question, compared
from pipecat_hedge.tools.analysis.whatif.reading import Measured, ReadingError, Recorded
from pipecat_hedge.tools.analysis.whatif.recommending import recommend
from pipecat_hedge.tools.analysis.whatif.trust import independence_of, intervals, percentile

__all__ = ["what_if"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SAME = 1.02
"""A figure that cannot be more than that times its least is known."""


@dataclass(frozen=True, slots=True)
class _Replayed:
    """When each turn was answered, infinite for never, and its requests beyond the first one.

    ``least`` is when, at the least, where the answer is one that was cut short and filled in; else
    not a number.
    """

    secs: Floats
    least: Floats
    extra: Ints
    replaced: Ints


def what_if(
    recorded: Recorded,
    question: Question | None = None,
    *,
    progress: Callable[[str, float], None] = lambda policy, share: None,
) -> Answer:
    """Replay recorded turns under one policy after the other.

    Args:
        recorded: What was measured.
        question: What to find out; None is all that there is.
        progress: Told the policy that is being replayed, and how much of everything is done.

    Returns:
        The answer.

    Raises:
        ReadingError: If a provider is named that was not measured, or has never answered.
        ConfigurationError: If prices are given, and nobody says how large a prompt is.
    """
    question = question or Question()
    cost_of_one = _cost_of_one(question, recorded)
    first, second = _who(recorded, question)
    for measured in (first, second):
        if not (~measured.censored & ~measured.failed).any():
            raise ReadingError(
                f"no request of {measured.name} was answered: there is no latency to replay"
            )
    material = Material(first, second, question)
    draws = material.draws()
    independence = independence_of(material.secs, material.pairs, to_itself=first is second)
    answered = material.secs[~material.first.failed]
    backends = [
        Backend(name, name, recorded.usd_per_mtok.get(name))
        for name in dict.fromkeys((first.name, second.name))
    ]
    policies = compared(question, answered, with_failures=material.with_failures)
    is_in_doubt = not independence.holds and first is second
    rounds = len(policies) + is_in_doubt
    outcomes: list[Outcome] = []
    for number, (name, policy) in enumerate(policies):

        def told(share: float, name: str = name, number: int = number) -> None:
            progress(name, (number + share) / rounds)

        replayed = _replay(policy, backends, draws, told)
        outcomes.append(
            _outcome(
                name,
                policy,
                replayed,
                draws,
                question,
                cost_of_one,
                len(material.secs),
                independence.rank_correlation,
            )
        )
    # Where requests fail, what is compared is what hedging does beyond replacing those.
    candidates = outcomes[1:] if material.with_failures else outcomes
    recommended, why = recommend(
        candidates,
        question.min_saving_secs,
        question.due_secs,
        independence.slow_together,
    )
    chosen = next(n for n, outcome in enumerate(outcomes) if outcome.policy == recommended)
    if is_in_doubt and policies[chosen][1].max_attempts > 1:
        together = _replay(
            policies[chosen][1],
            backends,
            material.slow_together(),
            lambda share: progress("slow together", (len(policies) + share) / rounds),
        )
        p99 = percentile(np.sort(together.secs), 0.99)
        outcomes[chosen] = replace(outcomes[chosen], if_slow_together=p99)
    progress("", 1.0)
    return Answer(
        turns=recorded.turns,
        replayed=len(draws.rows),
        sampled=len(material.secs) > question.most_turns,
        first=first.name,
        second=second.name,
        sources=tuple(
            Source(m.name, len(m.secs), int(m.censored.sum()), int(m.failed.sum()))
            for m in recorded.providers.values()
        ),
        deadline_secs=question.due_secs,
        independence=independence,
        outcomes=tuple(outcomes),
        recommended=recommended,
        why=why,
        notes=tuple(notes_on(recorded, material, question, len(draws.rows))),
        draws=draws,
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


def _replay(
    policy: HedgePolicy,
    backends: Sequence[Backend],
    draws: Draws,
    progress: Callable[[float], None],
) -> _Replayed:
    stats, rng = ProviderStats(), random.Random(1)
    first, second = backends[0].provider, backends[-1].provider
    learns = isinstance(policy.rule, LearnedRule)
    is_routed = isinstance(policy.rule, Adaptive) and policy.rule.order == "learned"
    is_routed &= first != second
    count = len(draws.secs)
    every = max(count // 50, 1)
    replayed = _Replayed(
        np.full(count, np.inf),
        np.full(count, np.nan),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    candidates = [Slot(first), *(Slot(second) for _ in range(policy.max_attempts - 1))]
    plan, unlistened = None, LISTENS_TO_ONE_IN
    for turn, latencies in enumerate(draws.secs):
        if plan is None or learns:
            plan = plan_turn(
                policy, backends, stats, prompt_tokens=None, commit_on="first_token", rng=rng
            )
        if is_routed:
            candidates[:2] = [Slot(name) for name in plan.order]
        columns = _columns(candidates, first) if is_routed else range(policy.max_attempts)
        race = Race(candidates, plan.rule, max_attempts=policy.max_attempts)
        fails = None if draws.fails is None else draws.fails[turn]

        def draw(
            launch: Launch,
            latencies: list[float] = latencies,
            fails: list[bool] | None = fails,
            columns: Sequence[int] = columns,
        ) -> Latency:
            column = columns[launch.attempt]
            return Latency(latencies[column], fails is not None and fails[column])

        answered = run_virtual(race, draw, plan.launched)
        unlistened += len(race.attempts)
        lost = [a for a in race.attempts if a.provider == plan.probe and a.outcome == "superseded"]
        if unlistened < LISTENS_TO_ONE_IN:
            lost = []
        for probe in lost:  # let run to its first token, as the service does it
            unlistened, seen = 0, latencies[columns[probe.number]]
            backend = next(b for b in backends if b.provider == plan.probe)
            stats.record_listened(backend, probe, probe.launched_at + seen, 0.0, None)
        if learns:
            listened_to = [attempt.number for attempt in lost]
            attempts = race.attempts
            learn(stats, backends, attempts, None, listened_to=listened_to, with_sentences=False)
        if answered is not None:
            replayed.secs[turn] = answered
            if draws.cut is not None and (winner := race.winner) is not None:
                cut = draws.cut[turn][columns[winner.number]]
                if cut < math.inf:
                    replayed.least[turn] = winner.launched_at + cut
        replaced = sum(attempt.reason == "failure" for attempt in race.attempts)
        replayed.replaced[turn] = replaced
        replayed.extra[turn] = len(race.attempts) - 1 - replaced
        if turn % every == 0:
            progress(turn / count)
    return replayed


def _columns(candidates: Sequence[Slot], first: str) -> list[int]:
    """Whose latency each request has, where others than the first may come first."""
    further = iter(range(1, len(candidates)))
    return [0 if seat.provider == first else next(further) for seat in candidates]


def _outcome(
    name: str,
    policy: HedgePolicy,
    replayed: _Replayed,
    draws: Draws,
    question: Question,
    cost_of_one: tuple[float | None, float | None],
    turns: int,
    rank_correlation: float,
) -> Outcome:
    secs = replayed.secs
    ascending = np.sort(secs)
    extra, replaced = float(replayed.extra.mean()), float(replayed.replaced.mean())
    more = extra + replaced
    answered = secs[np.isfinite(secs)]
    tokens, usd = cost_of_one
    deadline = question.due_secs
    return Outcome(
        policy=name,
        percentiles={key: percentile(ascending, p) for key, p in PERCENTILES.items()},
        intervals=intervals(
            secs,
            draws.rows,
            draws.other_rows,
            turns,
            draws.other_count,
            1.0 + more,
            question.seed,
            rank_correlation,
        ),
        max_secs=float(ascending[-1]),
        at_least=_at_least(replayed),
        mean_secs=float(answered.mean()) if answered.size else float("inf"),
        under_deadline=None if deadline is None else float((secs <= deadline).mean()),
        unanswered=1.0 - answered.size / len(secs),
        extra_requests=extra,
        replacements=replaced,
        extra_tokens=None if tokens is None else more * tokens,
        extra_usd=None if usd is None else 1000 * more * usd,
        secs=secs,
        is_choice=not isinstance(policy.rule, (AfterSilence, SingleR)),
    )


def _at_least(replayed: _Replayed) -> dict[str, float]:
    """Which percentiles rest on what was filled in, and what they are at the least."""
    unsure = ~np.isnan(replayed.least)
    if not unsure.any():
        return {}
    low = np.sort(np.where(unsure, replayed.least, replayed.secs))
    high = np.sort(np.where(unsure, np.inf, replayed.secs))
    bounds = {key: (percentile(low, p), percentile(high, p)) for key, p in PERCENTILES.items()}
    bounds["max"] = float(low[-1]), float(high[-1])
    return {key: least for key, (least, most) in bounds.items() if most > SAME * least}


def _cost_of_one(question: Question, recorded: Recorded) -> tuple[float | None, float | None]:
    """What an extra request costs: its prompt, and what it says before it is cancelled."""
    prompt = question.costs.prompt_tokens or recorded.prompt_tokens
    said = recorded.lost_tokens or 0.0
    tokens = None if prompt is None else prompt + said
    price = question.costs.usd_per_mtok
    if price is not None:
        if prompt is None:
            raise ConfigurationError(
                "usd_per_mtok needs prompt_tokens, the size of a prompt: the files do not tell it"
            )
        return tokens, (prompt * price[0] + said * price[1]) / 1e6
    return tokens, recorded.lost_usd
