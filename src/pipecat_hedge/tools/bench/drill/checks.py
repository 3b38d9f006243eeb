"""What has to hold of the hedged service in a drill, and what did not. Pure."""

from __future__ import annotations

import math

from pipecat_hedge.policy.budget import PEAK
from pipecat_hedge.tools.bench.drill.figures import ENOUGH, Figures
from pipecat_hedge.tools.bench.drill.plans import Drill
from pipecat_hedge.tools.bench.drill.variants import Variant

__all__ = ["failed_checks", "failed_goal"]

BROKEN_SHARE = 0.02
RECOVER_SECS = 90.0
LOAD_AFTER = 1.5
PREMIUM_FACTOR = 3.5
"""A plain limit cannot withdraw what a provider has queued already, see docs/drills.md."""
AT_ONCE = 12
"""Extra requests that up to twelve processes may send at once, one each."""
OVER_BUDGET = 1.25
"""Over some thousand turns credit from before may be spent, or a debt be left."""
BUSY_SHARE = 0.85
CHANCE = 3.0
"""So many standard deviations of a share of so many turns are taken for chance."""
JAGGED_P95_SECS, JAGGED_P99_SECS, JAGGED_FAILED = 0.8, 1.5, 0.001


def failed_checks(drill: Drill, variant: Variant, told: Figures) -> list[str]:
    """What does not hold, a line each, with the figure and what it is to be.

    Args:
        drill: The drill.
        variant: What stood in the pipelines; only of hedged ones anything is demanded.
        told: The figures.
    """
    if variant.kind != "hedged":
        return []
    failed: list[str] = []
    if told.lost:
        why = ", ".join(f"{count} {reason}" for reason, count in told.lost_why.items())
        failed.append(f"{told.lost} turns lost ({why}), of {told.turns}")
    if told.unended and drill.name != "process":  # who is killed hears nothing more
        failed.append(f"{told.unended} turns had not ended 30 s after the drill, of {told.turns}")
    failed += _requests(variant, told)
    is_anybody_left = len(drill.broken) < len(drill.profiles)
    if is_anybody_left and told.broken_share is not None and told.broken_share >= BROKEN_SHARE:
        failed.append(
            f"the broken provider got {told.broken_share:.1%} of its usual requests from 10 s on; "
            f"under {BROKEN_SHARE:.0%}"
        )
    failed += _return(drill, told)
    if variant.admission == "shed":
        failed += _premium(told)
    busy = told.cpu_share[0]
    if busy is not None and busy > BUSY_SHARE:
        failed.append(f"this machine was {busy:.0%} busy: the figures may be its own; use --think")
    return [f"{drill.name}, {variant.name}: {line}" for line in failed]


def failed_goal(told: list[Figures]) -> list[str]:
    """Whether any of the budgets has reached what the jagged edges' platform reports.

    Args:
        told: The figures of the drill's variants.
    """
    if any(_is_reached(each) for each in told):
        return []
    return ["jagged: no budget reaches p95 800 ms, p99 1500 ms and 0.1 % failures"]


def _is_reached(told: Figures) -> bool:
    waits = told.p95_secs, told.p99_secs
    failed = (told.degraded + told.lost) / max(told.turns, 1)
    bounds = JAGGED_P95_SECS, JAGGED_P99_SECS
    return failed <= JAGGED_FAILED and all(
        wait is not None and wait <= bound for wait, bound in zip(waits, bounds, strict=True)
    )


def _requests(variant: Variant, told: Figures) -> list[str]:
    """On average the budget holds, but for credit and chance.

    Of a stretch twice of it, and what may be sent at once: when it begins, and owed at its end.
    """
    if told.requests_per_turn is None or told.worst_requests_per_turn is None:
        return ["no turn began"]
    failed: list[str] = []
    on_average = told.requests_per_turn - told.replacements_per_turn
    extra = OVER_BUDGET * variant.budget
    chance = CHANCE * math.sqrt(min(extra * (1 - extra), 0.25) / max(told.turns, 1))
    if on_average > 1 + extra + chance:
        failed.append(
            f"{on_average:.2f} requests a turn on average; at most {1 + extra:g}, "
            f"and {chance:.2f} by chance"
        )
    most = 1 + PEAK * variant.budget + 2 * AT_ONCE / ENOUGH
    if told.worst_requests_per_turn > most:
        failed.append(
            f"{told.worst_requests_per_turn:.2f} requests a turn in the worst "
            f"{told.stretch_secs} s; at most {most:.2f}"
        )
    return failed


def _return(drill: Drill, told: Figures) -> list[str]:
    if not drill.broken or drill.return_secs is None:
        return []
    failed: list[str] = []
    if told.recover_secs is None:
        failed.append("the full share was not back when the drill ended")
    elif told.recover_secs > RECOVER_SECS:
        failed.append(f"the full share took {told.recover_secs:.0f} s; at most {RECOVER_SECS:.0f}")
    if told.load_after is not None and told.load_after > LOAD_AFTER:
        failed.append(f"{told.load_after:.2f} times the usual load; at most {LOAD_AFTER:g}")
    return failed


def _premium(told: Figures) -> list[str]:
    if told.premium_p95_secs is None or told.calm_p95_secs is None:
        return ["no premium callers to speak of"]
    factor = told.premium_p95_secs / told.calm_p95_secs
    failed: list[str] = []
    if factor > PREMIUM_FACTOR:
        failed.append(f"premium p95 is {factor:.2f} times that of calm; at most {PREMIUM_FACTOR:g}")
    if not told.degraded:
        failed.append("nobody was shed: this was no crowd")
    return failed
