"""Many turns in virtual time, with the service's own policies and what they learn."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy import HedgePolicy, plan_turn
from pipecat_hedge.providers import OBSERVED_LOSER_INTERVAL, PROFILES, Backend
from pipecat_hedge.race import Latency, Launch, Race, Slot, run_virtual
from pipecat_hedge.service import ProviderStats

Floats = npt.NDArray[np.float64]


class VirtualTime:
    """Runs events in the order of their times.

    Attributes:
        now: The time, in seconds.
    """

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def _at(self, secs: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (secs, next(self._numbers), act))


@dataclass
class Turns:
    """What came of them.

    Parameters:
        secs: When each was answered; shape (n,).
        extra: Requests beyond the first; shape (n,).
        first: Whom each asked first.
        reasons: What the policy said last in each.
    """

    secs: Floats
    extra: npt.NDArray[np.int64]
    first: list[str] = field(default_factory=list[str])
    reasons: list[str | None] = field(default_factory=list[str | None])

    def after(self, turn: int, until: int | None = None) -> Turns:
        """Those from ``turn`` on."""
        part = slice(turn, until)
        return Turns(self.secs[part], self.extra[part], self.first[part], self.reasons[part])

    def p(self, share: float) -> float:
        """The time under which a share of them stayed, in seconds."""
        return float(np.sort(self.secs)[math.ceil(share * len(self.secs)) - 1])

    @property
    def rate(self) -> float:
        """Extra requests per turn."""
        return float(self.extra.mean())

    def worst_rate(self, turns: int = 2000) -> float:
        """Extra requests per turn over the worst stretch of so many turns."""
        spent = np.concatenate(([0], np.cumsum(self.extra)))
        return float((spent[turns:] - spent[:-turns]).max() / turns)


def draws(profile: str, turns: int, attempts: int = 2, seed: int = 0) -> Floats:
    """Latencies of a profile, one row for each attempt of a turn; shape (attempts, turns)."""
    return np.stack(
        [PROFILES[profile].samples(turns, seed=1000 * seed + k) for k in range(attempts)]
    )


def run_turns(
    policy: HedgePolicy,
    latencies: dict[str, Floats],
    *,
    seats: Sequence[str] | None = None,
    stats: ProviderStats | None = None,
    models: dict[str, str] | None = None,
    usd_per_mtok: dict[str, tuple[float, float]] | None = None,
) -> Turns:
    """Run one turn after the other.

    Args:
        policy: The policy.
        latencies: By provider, one row for each attempt of a turn; shape (attempts, turns).
        seats: The places in the line-up; every provider once by default.
        stats: What is known; nothing by default.
        models: The providers' models, which decide what is assumed of them.
        usd_per_mtok: The providers' prices.
    """
    stats = stats or ProviderStats()
    seats = seats or list(latencies)
    backends = [
        Backend(name, (models or {}).get(name, name), (usd_per_mtok or {}).get(name))
        for name in dict.fromkeys(seats)
    ]
    count = next(iter(latencies.values())).shape[1]
    turns = Turns(np.full(count, np.inf), np.zeros(count, np.int64))
    rng = random.Random(1)
    unlistened = OBSERVED_LOSER_INTERVAL
    for turn in range(count):
        plan = plan_turn(
            policy,
            backends,
            stats,
            stats.accounts,
            prompt_tokens=None,
            commit_on="first_token",
            rng=rng,
        )
        spare = list(seats)
        for name in plan.order:
            spare.remove(name)
        race = Race(
            [Slot(name) for name in (*plan.order, *spare)],
            plan.rule,
            max_attempts=policy.max_attempts,
        )

        def draw(launch: Launch, turn: int = turn) -> Latency:
            rows = latencies[launch.provider]
            return Latency(float(rows[min(launch.attempt, len(rows) - 1), turn]))

        answered = run_virtual(race, draw, plan.launched)
        unlistened += len(race.attempts)
        lost = [a for a in race.attempts if a.provider == plan.trial and a.outcome == "superseded"]
        if unlistened < OBSERVED_LOSER_INTERVAL:
            lost = []
        for attempt in lost:
            unlistened, rows = 0, latencies[attempt.provider]
            seen = float(rows[min(attempt.number, len(rows) - 1), turn])
            backend = next(b for b in backends if b.provider == plan.trial)
            stats.learn_observed(backend, attempt, attempt.launched_at + seen, 0.0, None)
        numbers = [attempt.number for attempt in lost]
        stats.learn(backends, race.attempts, None, observed=numbers, with_sentences=False)
        if answered is not None:
            turns.secs[turn] = answered
        turns.extra[turn] = len(race.attempts) - 1
        turns.first.append(plan.order[0])
        turns.reasons.append(race.launch_reason)
    return turns
