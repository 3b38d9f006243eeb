"""Many callers of several processes at once, in virtual time: what hedging does in a bad moment.

The race, the policy, the budget accounts and the learning are the service's own. A provider is a
distribution of latencies with unlimited room; there are no breakers and no limits. The processes
know nothing of each other.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from functools import partial

from pipecat_hedge.policy import (
    HedgePolicy,
    plan_turn,
    silent_secs,
)
from pipecat_hedge.policy.planner import Plan
from pipecat_hedge.providers import PROFILES, Backend
from pipecat_hedge.race import Launch, LaunchReason, Race, Slot
from pipecat_hedge.race.events import (
    AttemptFinished,
    Commit,
    Event,
    HedgeEligibilityChanged,
    TimerFired,
    TurnStarted,
    UsableToken,
)
from pipecat_hedge.service import ProviderStats
from tests.support.virtual import VirtualTime

PROVIDERS = {"first": "gpt-4.1", "second": "claude-haiku-4-5", "third": "gemini-3.6-flash"}
ANSWER_SECS = 1.0
STALL_SECS = 3.0


@dataclass(frozen=True)
class Asked:
    """A turn that is under way.

    Parameters:
        stats: What its process has learned.
        plan: How it is raced.
        race: The race.
    """

    stats: ProviderStats
    plan: Plan
    race: Race


class Crowd(VirtualTime):
    """Eight processes of forty callers, as in the drills: some 42 turns a second.

    Attributes:
        slow: How many times as long each provider takes; infinite is one that hangs.
        queue_secs: How long each delays every request before that.
        began: When each turn began.
        sent: When each request was sent, and why.
        waits: When each answered turn began, and how long it waited.
    """

    def __init__(
        self,
        policy: HedgePolicy,
        *,
        processes: int = 8,
        sessions: int = 40,
        think_secs: float = 6.0,
        seed: int = 1,
    ):
        super().__init__()
        self._policy, self._think_secs = policy, think_secs
        self._rng = random.Random(seed)
        self._backends = [Backend(name, model) for name, model in PROVIDERS.items()]
        self._processes = [ProviderStats() for _ in range(processes)]
        self.slow = dict.fromkeys(PROVIDERS, 1.0)
        self.queue_secs = dict.fromkeys(PROVIDERS, 0.0)
        self.began: list[float] = []
        self.sent: list[tuple[float, LaunchReason]] = []
        self.waits: list[tuple[float, float]] = []
        for stats, _ in itertools.product(self._processes, range(sessions)):
            self._at(self._rng.uniform(0, think_secs), partial(self._begin, stats))

    def worst(self, since: float, until: float, *, turns: int = 150) -> float:
        """Requests per turn in the stretch where they were most, replacements left out.

        Args:
            since: Of stretches that begin from here on, with each whole second,
            until: and end here at the latest.
            turns: How many turns a stretch holds at least.
        """
        sent = sorted(at for at, reason in self.sent if reason in ("primary", "hedge"))
        worst = 0.0
        for second in range(math.ceil(since), math.floor(until)):
            ends = range(second, math.floor(until) + 1)
            end = next((e for e in ends if self._count(second, e) >= turns), None)
            if end is not None:
                asked = sum(second <= at < end for at in sent)
                worst = max(worst, asked / self._count(second, end))
        return worst

    def beside_silent(self, since: float, until: float) -> float:
        """Requests per turn that were sent beside silent ones in a time."""
        sent = sum(reason == "silence" and since <= at < until for at, reason in self.sent)
        return sent / self._count(since, until)

    def p(self, share: float, since: float, until: float) -> float:
        """The wait under which a share of the turns stayed that began in between, in seconds."""
        waits = sorted(secs for at, secs in self.waits if since <= at < until)
        return waits[math.ceil(share * len(waits)) - 1]

    def _count(self, since: float, until: float) -> int:
        return sum(since <= at < until for at in self.began)

    def _begin(self, stats: ProviderStats) -> None:
        self.began.append(self.now)
        plan = plan_turn(
            self._policy,
            self._backends,
            stats,
            stats.accounts,
            prompt_tokens=None,
            commit_on="first_token",
            rng=self._rng,
            now=self.now,
        )
        slots = [
            Slot(name, silent_secs(self._policy, plan.estimates[name]), STALL_SECS)
            for name in plan.order
        ]
        race = Race(slots, plan.rule, max_attempts=self._policy.max_attempts)
        self._handle(Asked(stats, plan, race), TurnStarted())

    def _handle(self, turn: Asked, event: Event) -> None:
        turn.race.handle(HedgeEligibilityChanged({}, slow=self._slow(turn)), self.now)
        for order in turn.race.handle(event, self.now):
            if isinstance(order, Launch):
                turn.plan.launched(order, self.now)
                self.sent.append((self.now, order.reason))
                backend = next(b for b in self._backends if b.provider == order.provider)
                turn.stats.sent(backend, turn.race.attempts[order.attempt], None)
                secs = PROFILES[PROVIDERS[order.provider]].sample(self._rng)
                secs = secs * self.slow[order.provider] + self.queue_secs[order.provider]
                if secs < math.inf:
                    self._at(self.now + secs, partial(self._answer, turn, order.attempt))
            elif isinstance(order, Commit):
                self._end(turn, order.attempt)
                return
        if turn.race.wake_at is not None:
            self._at(turn.race.wake_at, partial(self._wake, turn))

    def _slow(self, turn: Asked) -> frozenset[str]:
        """As in ``ProviderRace``."""
        keys = {backend.provider: backend.record_key for backend in self._backends}
        waiting = [a for a in turn.race.attempts if a.outcome is None]
        others = [keys[n] for n in keys if all(a.provider != n for a in turn.race.attempts)]
        return frozenset(
            a.provider
            for a in waiting
            if a.first_token_at is None
            and turn.stats.is_slow(keys[a.provider], others, a, self.now)
        )

    def _answer(self, turn: Asked, attempt: int) -> None:
        if turn.race.winner is None and turn.race.attempts[attempt].outcome is None:
            keys = {backend.provider: backend.record_key for backend in self._backends}
            answered = turn.race.attempts[attempt]
            health = turn.stats.record(keys[answered.provider])
            health.answered_since = max(health.answered_since, answered.launched_at)
            health.last_token_at = self.now
            health.last_ttft_secs = self.now - answered.launched_at
            self._handle(turn, UsableToken(attempt))

    def _wake(self, turn: Asked) -> None:
        wake_at = turn.race.wake_at
        if turn.race.winner is None and wake_at is not None and wake_at <= self.now:
            self._handle(turn, TimerFired())

    def _end(self, turn: Asked, attempt: int) -> None:
        began = turn.race.started_at
        self.waits.append((began, self.now - began))
        turn.race.handle(AttemptFinished(attempt), self.now)
        turn.stats.learn(self._backends, turn.race.attempts, None, with_sentences=False)
        think_secs = self._rng.uniform(0.5, 1.5) * self._think_secs
        self._next(turn.stats, self.now + ANSWER_SECS + think_secs)

    def _next(self, stats: ProviderStats, at: float) -> None:
        """The caller's next turn begins then."""
        self._at(at, partial(self._begin, stats))
