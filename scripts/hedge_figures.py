"""Measures `adaptive` on sets of latencies: `python -m scripts.hedge_figures`, in virtual time.

Each line is the mean of three orders of 3,000 turns from a cold start, with the guard against
silence (3 s) and rescues: bare, then at each budget. `docs/design/when-to-hedge.md` has the table.
"""

from __future__ import annotations

import sys

import numpy as np
from tests.support.guarded_turns import guarded_turns
from tests.support.virtual import Floats

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.providers import PROFILES

TURNS, ORDERS, BUDGETS = 3_000, 3, (0.05, 0.1)
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


def main() -> int:
    """Print a table."""
    print(f"{'set':37} {'budget':>6}   p95   p99  p99.9  longest   mean  hedges  silences")
    for name, (first, second, sentence, target_secs) in SETS.items():
        bare = first if sentence is None else first + sentence[:, 0]
        policies = [HedgePolicy.adaptive(b, target_ttft_secs=target_secs) for b in BUDGETS]
        rows = [("bare", [(bare, 0.0, 0.0)])]
        for budget, policy in zip(BUDGETS, policies, strict=True):
            runs = [guarded_turns(policy, first, second, sentence, seed) for seed in range(ORDERS)]
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
