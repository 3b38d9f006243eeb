"""How many extra requests may be sent at once. Pure; time is an argument.

Law: what the budget is on average, it nearly is in every few seconds, too, of all processes
together. Who is put off is helped when there is room again, or when the silence has been such that
nobody would take it for slowness.

The problem: an account (``hedge_budget.py``) sees to the average of some hundred turns, and the
time of a turn's hedge is set when the turn begins. When a provider turns slow or silent, every turn
that waits for it comes to that time, and all are hedged: before a debt is felt, eight processes
have sent as many extra requests in three seconds as usually in twenty, to those providers that are
still well. It is a small storm, and it comes when it does most harm.

The naive answer, to stop all hedges for a while once there have been too many, lets the next storm
begin everywhere at the same instant. Ours is the usual bucket: each turn puts its budget in, an
extra request takes one out, and none is sent while there is not one in it. A fleet's processes meet
the trouble together and have no time to tell each other, so what is saved is divided among them
beforehand: ``saved`` in all, but no more than ``MOST_PER_PROCESS`` each, and no less than one. The account
makes the demand what its budget is; if no more than that came in, the bucket would be half empty in
calm, and hedges would wait for the next token for as long as hedging is to save. So twice as much
comes in (``SLACK``), which the account never lets be used up for long. Who is put off asks again
(``race.py``). A little comes in by time alone, for processes with few turns.

What replaces the silent is paid for, too, but never refused, and owed no further than the bucket is
deep: hedging is not to be off for long after. A provider that answers others who came later is slow
and not silent, and so is one with a queue, which goes on answering those who came before: there the
silence has to be twice as long. Where all are slow a rule may find that
nothing is to be saved for a long time; after twice the silence somebody is asked in any case.

``saved`` is three times the standard deviation of the extra requests of ``TURNS`` turns that are
hedged each with the probability ``budget``: what is sent at once is no more than chance would bring
to the few seconds in which a fleet has so many turns. With a budget of 0.1 it is 12. Compare gRPC's
retry throttling, a bucket that stops retries and hedges alike; its tokens come from requests that
succeed. ``SLACK`` is the most with which eight processes stay within chance in
``tests/support/crowd.py`` when one provider turns slow or hangs; without it the p99 of the "jagged
edges" is a third longer.

Left out: processes with very different loads, whose parts should differ; and more than ``saved``
processes, where one request each is more than that in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

__all__ = ["BurstBound", "HedgeBurst", "saved"]

TURNS = 180
CHANCE = 3.0
MOST_PER_PROCESS = 4.0
"""The most that one process may, which knows of no others."""
SLACK = 2.0
"""What a turn puts in, in units of its budget: what was saved goes out at twice the usual rate."""
REFILL_SECS = 4.0
"""How often one comes in by time alone, for all processes together."""
ONE_TOKEN = 1.0 - 1e-9
SLOW_TIMES = 2.0
"""So many times as long has somebody to be silent who answers others, or where another request is
expected to save little: who has waited for so long is about to hang up."""
RECENT_PART = 0.5
"""A word to others is of now if it is younger than that part of a silence. Somebody who hangs since
the silence began has still answered those who came before, but for their tail not in its second
half."""


def saved(budget: float) -> float:
    """How many extra requests all processes together may send at once.

    Args:
        budget: Extra requests per turn, on average.
    """
    share = min(budget, 0.5)
    return CHANCE * math.sqrt(TURNS * share * (1 - share))


class HedgeBurst:
    """The bucket of everybody in a process who has the same budget."""

    def __init__(self, budget: float):
        """Begin with a full bucket.

        Args:
            budget: Extra requests per turn, on average.
        """
        self._budget = budget
        self._saved = saved(budget)
        self._processes = 1
        self._tokens = MOST_PER_PROCESS
        self._now: float | None = None

    @property
    def most(self) -> float:
        """How much the bucket holds, in requests."""
        return min(max(self._saved / self._processes, 1.0), MOST_PER_PROCESS)

    def begin_turn(self, now: float) -> None:
        """Put a turn's budget in.

        Args:
            now: The time, in seconds.
        """
        self._fill(now)
        self._tokens = min(self._tokens + SLACK * self._budget, self.most)

    def spend(self, cost: float, now: float) -> None:
        """Take an extra request out, or owe it.

        Args:
            cost: What it costs, in usual requests.
            now: The time, in seconds.
        """
        self._fill(now)
        self._tokens = max(self._tokens - cost, -self.most)

    def pay_back(self, cost: float) -> None:
        """Put an extra request back in that was taken out and never sent.

        Args:
            cost: What it cost, in usual requests.
        """
        self._tokens = min(self._tokens + cost, self.most)

    def permits(self, cost: float, now: float, processes: int = 1) -> bool:
        """Whether an extra request may be sent now.

        Args:
            cost: What it costs, in usual requests. What is free may always be sent, and what costs
                more than the bucket holds when it is full.
            now: The time, in seconds.
            processes: How many share the budget, this one included.
        """
        self._processes = processes
        self._fill(now)
        return cost <= 0 or self._tokens >= ONE_TOKEN * min(cost, self.most)

    def _fill(self, now: float) -> None:
        """Let time pass; loops may tell it a little out of order, or have clocks of their own."""
        secs = 0.0 if self._now is None else max(now - self._now, 0.0)
        self._tokens = min(self._tokens + secs / REFILL_SECS / self._processes, self.most)
        self._now = now


class BurstBound:
    """Puts a turn's hedges off that would be too many at once; a ``LaunchRule``.

    What is due is paid for when it is decided, not when it is sent: callers that have waited for
    the same provider are often due in the same instant. What is never sent is to be paid back at
    the turn's end (``close``).
    """

    def __init__(
        self,
        usual: LaunchRule,
        claim: Callable[[str, float], bool],
        pay_back: Callable[[str], None],
        silent_secs: Mapping[str, float],
        answered_since: Callable[[str], float] = lambda provider: -math.inf,
        last_token_at_of: Callable[[str], float] = lambda provider: -math.inf,
    ):
        """Bound a rule, for one turn.

        Args:
            usual: When to hedge, if there is room in the budget then.
            claim: Takes an extra request out of the budget if there is room for it, by its provider
                and the time, and says whether there was.
            pay_back: Puts an extra request that was never sent back into the budget, by its
                provider.
            silent_secs: By provider, the silence after which a request is not slow but lost, and is
                replaced whatever the budget says.
            answered_since: By provider, when the latest request was sent, of anybody's, that it has
                begun to answer. Where that is later than the silent one's it is slow, and its
                silence has to be ``SLOW_TIMES`` as long.
            last_token_at_of: By provider, when it has begun to answer the last time, to anybody. Where that
                is lately the same holds.
        """
        self._usual = usual
        self._claim = claim
        self._pay_back = pay_back
        self._silent_secs = silent_secs
        self._answered_since = answered_since
        self._last_token_at_of = last_token_at_of
        self._claimed: str | None = None

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch as usual, or as soon as may be; see ``LaunchRule``."""
        decision = self._usual.next_launch(waiting)
        last = waiting.in_flight[-1]
        last_token_at = last.launched_at if last.last_token_at is None else last.last_token_at
        silent_secs = self._silent_secs[last.provider]
        lost_at = last_token_at + SLOW_TIMES * silent_secs
        if decision.at is None:
            return decision
        if decision.at > waiting.now:
            if lost_at > waiting.now:
                return replace(decision, at=min(decision.at, lost_at))
            reason = f"silent for {waiting.now - last_token_at:.2g} s, whatever it saves"
            return LaunchDecision(lost_at, reason, is_put_off=True)
        if self._claimed is not None or self._claim(waiting.next_provider, waiting.now):
            # Also if nobody takes it yet: it is sent as soon as somebody does.
            self._claimed = self._claimed or waiting.next_provider
            return decision
        lately = waiting.now - RECENT_PART * silent_secs
        if (
            self._answered_since(last.provider) > last_token_at
            or self._last_token_at_of(last.provider) > lately
        ):
            silent_secs *= SLOW_TIMES
        silent_at = max(last_token_at + silent_secs, decision.at)
        reason = f"put off, the budget has no room for more at once: {decision.reason}"
        return LaunchDecision(silent_at, reason, is_put_off=True)

    def take_claim(self) -> bool:
        """Whether a request that is launched now has been paid for; only one is."""
        was_claimed, self._claimed = self._claimed is not None, None
        return was_claimed

    def close(self) -> None:
        """Pay back what was paid for and not sent; the turn is over."""
        if self._claimed is not None:
            self._pay_back(self._claimed)
            self._claimed = None
