"""Measures the effect of an SLO in the policy: `python -m scripts.slo_attainment`, in virtual time.

The same turns under `HedgePolicy.adaptive(budget)` and `adaptive(budget, slo=...)`, from a cold
start, hedged to the same provider. Each line pools all seeds: the share of turns answered within
the SLO's limit, and the extra requests. A limit far above or below a provider's latencies shows
little, so the limits come from a list.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from tests.support.virtual import draws, run_turns

from pipecat_hedge import HedgePolicy, Slo

PROFILES = ("gemma-4-31b-baseten", "gpt-4.1", "claude-haiku-4-5", "jagged")
TARGETS_SECS = (0.8, 1.2)
BUDGETS = (0.05, 0.1, 0.2)
TURNS, SEEDS, COLD = 8_000, 2, 200


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison, pooled over the seeds.

    Parameters:
        profile: The latency profile.
        within_secs: The SLO's limit.
        budget: Extra requests per turn.
        bare: The share of turns in time without hedging.
        without: The same with hedging, without the SLO.
        aimed: The same with the SLO.
        rates: Extra requests per turn, without and with the SLO.
        p99s: The p99 without and with it, in seconds.
        turns: The number of turns.
    """

    profile: str
    within_secs: float
    budget: float
    bare: float
    without: float
    aimed: float
    rates: tuple[float, float]
    p99s: tuple[float, float]
    turns: int

    @property
    def error(self) -> float:
        """The standard error of the difference of the two shares, if independent."""
        spread = sum(share * (1 - share) for share in (self.without, self.aimed))
        return math.sqrt(spread / self.turns)


def compare(
    profile: str, within_secs: float, budget: float, *, turns: int = TURNS, seeds: int = SEEDS
) -> Line:
    """Run the same turns under both policies.

    Args:
        profile: The latency profile.
        within_secs: The SLO's limit.
        budget: Extra requests per turn.
        turns: Turns per seed; the first ones are excluded.
        seeds: The number of pooled seeds.
    """
    policies = (
        HedgePolicy.adaptive(budget),
        HedgePolicy.adaptive(budget, slo=Slo(ttft_secs=within_secs)),
    )
    secs: list[list[np.ndarray]] = [[], [], []]
    extra: list[list[np.ndarray]] = [[], []]
    for seed in range(seeds):
        latencies = {profile: draws(profile, turns, 2, seed)}
        secs[2].append(latencies[profile][0][COLD:])
        for number, policy in enumerate(policies):
            done = run_turns(policy, latencies, seats=[profile] * 2).after(COLD)
            secs[number].append(done.secs)
            extra[number].append(done.extra)
    pooled = [np.concatenate(part) for part in secs]
    without, aimed, bare = (float((part <= within_secs).mean()) for part in pooled)
    p99s = [float(np.quantile(part, 0.99)) for part in pooled]
    rates = [float(np.concatenate(part).mean()) for part in extra]
    return Line(
        profile,
        within_secs,
        budget,
        bare,
        without,
        aimed,
        (rates[0], rates[1]),
        (p99s[0], p99s[1]),
        len(pooled[0]),
    )


def table(lines: Sequence[Line]) -> Table:
    """Build a table of the comparisons."""
    shown = Table(title=f"within the SLO, of {lines[0].turns:,} turns each")
    heads = ("profile", "SLO", "budget", "bare", "adaptive", "with slo", "gain", "±")
    for name in (*heads, "requests", "with slo", "p99", "with slo"):
        shown.add_column(name, justify="left" if name == "profile" else "right")
    for line in lines:
        shown.add_row(
            line.profile,
            f"{line.within_secs:g} s",
            f"{line.budget:.0%}",
            f"{line.bare:.2%}",
            f"{line.without:.2%}",
            f"{line.aimed:.2%}",
            f"{100 * (line.aimed - line.without):+.2f}",
            f"{100 * 2 * line.error:.2f}",
            *(f"{rate:.1%}" for rate in line.rates),
            *(f"{secs:.2f} s" for secs in line.p99s),
        )
    return shown


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.slo_attainment", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of a seed (default {TURNS:,})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"to pool (default {SEEDS})")
    args = parser.parse_args()
    os.environ["PIPECAT_HEDGE_STATS"] = "off"
    lines = [
        compare(profile, within, budget, turns=args.turns, seeds=args.seeds)
        for profile in PROFILES
        for within in TARGETS_SECS
        for budget in BUDGETS
    ]
    Console(highlight=False, width=None if sys.stdout.isatty() else 130).print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
