"""Turns with silence guard and sentences, in virtual time; for `scripts.hedge_figures`."""

from __future__ import annotations

import random

import numpy as np

from pipecat_hedge.policy import (
    BudgetAccounts,
    HedgePolicy,
    plan_turn,
    silent_secs,
)
from pipecat_hedge.providers import Backend, ProviderRegistry
from pipecat_hedge.race import Race, Slot
from pipecat_hedge.race.events import (
    AttemptFinished,
    CommitOn,
    Launch,
    SentenceReady,
    TimerFired,
    TurnStarted,
    UsableToken,
)
from tests.support.virtual import Floats

STALL_SECS = 3.0


def guarded_turns(
    policy: HedgePolicy,
    first: Floats,
    second: Floats | None,
    sentence: Floats | None,
    seed: int,
) -> tuple[Floats, float, float]:
    """Run turns one after the other; return the waits, and hedges and silences per turn."""
    rng, count = np.random.default_rng(seed), len(first)
    first = rng.permutation(first)
    further = rng.choice(first if second is None else second, count)
    commit_on: CommitOn = "first_token" if sentence is None else "first_sentence"
    stats, accounts, draws = ProviderRegistry(), BudgetAccounts(), random.Random(seed)
    backends = [Backend(name, name) for name in (("x",) if second is None else ("x", "y"))]
    waits, reasons = np.empty(count), list[str]()
    for turn in range(count):
        plan = plan_turn(
            policy,
            backends,
            stats,
            accounts,
            prompt_tokens=None,
            commit_on=commit_on,
            rng=draws,
        )
        order = plan.order if second is not None else ("x", "x")
        slots = [Slot(n, silent_secs(policy, plan.estimates[n]), STALL_SECS) for n in order]
        race = Race(slots, plan.rule, max_attempts=policy.max_attempts, commit_on=commit_on)
        due: list[tuple[float, int, bool]] = []
        now, commands = 0.0, race.handle(TurnStarted(), 0.0)
        while race.winner is None:
            for command in commands:
                if isinstance(command, Launch):
                    number = command.attempt
                    plan.launched(command)
                    reasons.append(command.reason)
                    is_first = command.provider == "x" and (second is not None or number == 0)
                    at = now + float((first if is_first else further)[turn])
                    due.append((at, number, False))
                    if sentence is not None:
                        due.append((at + float(sentence[turn, number]), number, True))
            now, number, is_sentence = min(due)
            if race.wake_at is not None and race.wake_at < now:
                now, event = race.wake_at, TimerFired()
            else:
                due.remove((now, number, is_sentence))
                event = SentenceReady(number) if is_sentence else UsableToken(number)
            commands = race.handle(event, now)
        waits[turn] = now
        race.handle(AttemptFinished(race.winner.number), now)
        stats.learn(backends, race.attempts, None, with_sentences=sentence is not None)
    return waits, reasons.count("hedge") / count, reasons.count("silence") / count
