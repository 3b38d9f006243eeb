"""Measures `adaptive` on sets of latencies: `python -m scripts.hedge_figures`, in virtual time.

Each line is the mean of three orders of 3,000 turns from a cold start, with the guard against
silence (3 s) and rescues: bare, then at each budget. `docs/design/when-to-hedge.md` has the table.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from tests.support.virtual import Floats

from pipecat_hedge.policy import (
    PROFILES,
    Backend,
    HedgePolicy,
    LatencyRegistry,
    learn,
    plan_turn,
    silent_secs,
)
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

TURNS, ORDERS, BUDGETS, STALL_SECS = 3_000, 3, (0.05, 0.1), 3.0
RNG = np.random.default_rng(5)
HOSTED = PROFILES["gemma-4-31b-baseten"].samples(TURNS, seed=5)
NEAR = RNG.lognormal(np.log(0.11), 0.4, TURNS)
JAGGED = RNG.choice([0.2, 2.3, 8.0], TURNS, p=[0.945, 0.04, 0.015]) * RNG.lognormal(0, 0.15, TURNS)
LIGHT = RNG.lognormal(np.log(0.8), 0.12, TURNS)
THINKS = np.where(
    RNG.random(TURNS) < 0.25,
    RNG.uniform(3.5, 6.5, TURNS),
    RNG.lognormal(np.log(0.5), 0.2, TURNS),
)
PARETO = 0.3 + RNG.pareto(1.5, TURNS) * 0.15


def to_sentence(stalls: float) -> Floats:
    """Return times from the first token to the sentence; a share of them stalls for 5 s more."""
    secs = RNG.lognormal(np.log(0.2), 0.5, (TURNS, 2))
    return np.where(RNG.random(secs.shape) < stalls, secs + RNG.exponential(5, secs.shape), secs)


SETS: dict[str, tuple[Floats, Floats | None, Floats | None, float | None]] = {
    "hosted": (HOSTED, None, None, None),
    "hosted, quicker second": (HOSTED, NEAR, None, None),
    "jagged": (JAGGED, None, None, None),
    "light tail": (LIGHT, None, None, None),
    "thinks in a quarter": (THINKS, None, None, None),
    "Pareto 1.5": (PARETO, None, None, None),
    "hosted, to the sentence": (HOSTED, None, to_sentence(0.0), None),
    "hosted, 3 % of sentences stall": (HOSTED, None, to_sentence(0.03), None),
    "light tail, 3 % stall": (LIGHT, None, to_sentence(0.03), None),
    "jagged, to the sentence": (JAGGED, None, to_sentence(0.0), None),
    "jagged, target 1.5 s": (JAGGED, None, None, 1.5),
    "jagged, quicker second, target 1.5 s": (JAGGED, NEAR, None, 1.5),
    "Pareto, sentences, target 2 s": (PARETO, None, to_sentence(0.01), 2.0),
}
"""First provider, second one (None is the same), times to the sentence, and target."""


def run(
    policy: HedgePolicy,
    first: Floats,
    second: Floats | None,
    sentence: Floats | None,
    seed: int,
) -> tuple[Floats, float, float]:
    """Run turns one after the other; return the waits, and hedges and silences per turn."""
    rng = np.random.default_rng(seed)
    first = rng.permutation(first)
    further = rng.choice(first if second is None else second, TURNS)
    commit_on: CommitOn = "first_token" if sentence is None else "first_sentence"
    stats, draws = LatencyRegistry(), random.Random(seed)
    backends = [Backend(name, name) for name in (("x",) if second is None else ("x", "y"))]
    waits, reasons = np.empty(TURNS), list[str]()
    for turn in range(TURNS):
        plan = plan_turn(
            policy, backends, stats, prompt_tokens=None, commit_on=commit_on, rng=draws
        )
        order = plan.order if second is not None else ("x", "x")
        slots = [Slot(n, silent_secs(policy, plan.known[n]), STALL_SECS) for n in order]
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
        learn(stats, backends, race.attempts, None, with_sentences=sentence is not None)
    return waits, reasons.count("hedge") / TURNS, reasons.count("silence") / TURNS


def main() -> int:
    """Print a table."""
    print(f"{'set':37} {'budget':>6}   p95   p99  p99.9  longest   mean  hedges  silences")
    for name, (first, second, sentence, target_secs) in SETS.items():
        bare = first if sentence is None else first + sentence[:, 0]
        policies = [HedgePolicy.adaptive(b, target_ttft_secs=target_secs) for b in BUDGETS]
        rows = [("bare", [(bare, 0.0, 0.0)])]
        for budget, policy in zip(BUDGETS, policies, strict=True):
            runs = [run(policy, first, second, sentence, seed) for seed in range(ORDERS)]
            rows.append((f"{budget:.0%}", runs))
        for label, runs in rows:
            figures = [
                [*np.quantile(waits, (0.95, 0.99, 0.999, 1.0)), waits.mean(), hedges, silences]
                for waits, hedges, silences in runs
            ]
            p95, p99, p999, longest, mean, hedges, silences = np.mean(figures, axis=0)
            print(
                f"{name:37} {label:>6} {p95:5.2f} {p99:5.2f} {p999:6.2f} {longest:8.1f} {mean:6.3f}"
                f" {hedges:7.2%} {silences:9.2%}",
                flush=True,
            )
            name = ""
    return 0


if __name__ == "__main__":
    sys.exit(main())
