"""Which policy to take: the last extra request that is still worth its price. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipecat_hedge.tools.analysis.whatif.answer import Outcome

__all__ = ["recommend"]

LIGHT = 4.0
"""The p99 in units of the p50, below which a tail is called light."""
SLOW_TOGETHER = 0.3
"""Three times what chance makes of it."""


def recommend(
    outcomes: Sequence[Outcome],
    min_saving_secs: float,
    deadline_secs: float | None,
    slow_together: float | None = None,
) -> tuple[str, str]:
    """Choose a policy.

    Fixed delays are left out: they were chosen with the file in hand, and do not follow a provider
    that changes. The others are gone through by what they cost. The next one is taken as long as
    each extra request that it adds saves at least its worth: waiting, or waiting beyond the
    deadline if there is one.

    Args:
        outcomes: What each would have done, the one without hedging first.
        min_saving_secs: What an extra request must save, in seconds.
        deadline_secs: When an answer should be there, or None.
        slow_together: The share of the first provider's slowest turns in which the second is slow
            as well; None if it was not measured.

    Returns:
        Its name, and why.
    """
    none = outcomes[0]
    by_cost = sorted(
        (o for o in outcomes[1:] if o.is_choice),
        key=lambda o: (o.extra_requests, _waited(o, deadline_secs)),
    )
    chosen, passed = none, None
    for outcome in by_cost:
        more = outcome.extra_requests - chosen.extra_requests
        saved = _waited(chosen, deadline_secs) - _waited(outcome, deadline_secs)
        if saved <= 0:
            continue
        if more <= 0 or saved / more >= min_saving_secs:
            chosen, passed = outcome, None
        elif passed is None:
            passed = (outcome, saved / more)
    caution = _unseen(none)
    if chosen is none:
        told = _not_worth_it(by_cost, none, min_saving_secs, deadline_secs, slow_together)
        return none.policy, told + caution
    saves = (_waited(none, deadline_secs) - _waited(chosen, deadline_secs)) / max(
        chosen.extra_requests - none.extra_requests, 1e-9
    )
    p99s = [_p99(o) for o in (chosen, none)]
    told = "" if p99s[0] == p99s[1] else f"p99 {p99s[0]} instead of {p99s[1]}, for "
    why = f"{told}{chosen.extra_requests:.1%} more requests, each of which saves {_digits(saves)} s"
    if deadline_secs is not None:
        why += " beyond the deadline"
    if (
        chosen.under_deadline is not None
        and none.under_deadline is not None
        and f"{chosen.under_deadline:.2%}" != f"{none.under_deadline:.2%}"
    ):
        why += (
            f"; {chosen.under_deadline:.2%} of turns within {deadline_secs:g} s instead of "
            f"{none.under_deadline:.2%}"
        )
    if passed is not None:
        outcome, saves = passed
        why += (
            f". {outcome.policy} would save {_digits(saves)} s by each request that it adds, less "
            f"than the {min_saving_secs:g} s that one is worth"
        )
    return chosen.policy, why + caution


def _not_worth_it(
    by_cost: Sequence[Outcome],
    none: Outcome,
    min_saving_secs: float,
    deadline_secs: float | None,
    slow_together: float | None,
) -> str:
    gains = [
        (_waited(none, deadline_secs) - _waited(o, deadline_secs)) / o.extra_requests
        for o in by_cost
        if o.extra_requests > 0
    ]
    most = max(gains, default=0.0)
    return (
        f"an extra request saves {_digits(most)} s at most, less than the "
        f"{min_saving_secs:g} s that "
        f"one is worth: {_because(none, deadline_secs, slow_together)}"
    )


def _because(none: Outcome, deadline_secs: float | None, slow_together: float | None) -> str:
    """Why a further request saves little."""
    if none.under_deadline is not None and none.under_deadline > 0.99:
        return f"{none.under_deadline:.2%} of turns are within {deadline_secs:g} s without it"
    if slow_together is not None and slow_together > SLOW_TOGETHER:
        return f"in {slow_together:.0%} of its slowest turns, the second provider is slow as well"
    times = none.percentiles["p99"] / max(none.percentiles["p50"], 1e-9)
    if times < LIGHT:
        return f"the tail is too light to hedge, the p99 is {times:.1f} times the p50"
    return "the second request is too slow to overtake the first"


def _waited(outcome: Outcome, deadline_secs: float | None) -> float:
    """The mean wait, or the mean wait beyond the deadline; an unanswered turn counts a minute."""
    secs = np.minimum(outcome.secs, 60.0)
    return float(np.maximum(secs - (deadline_secs or 0.0), 0.0).mean())


def _unseen(none: Outcome) -> str:
    """What must be said where hedges have cut the tail off that hedging is about."""
    if (least := none.at_least.get("p99")) is None:
        return ""
    return (
        f". But hedges cut short what took longer than {least:.2f} s, so these turns cannot tell "
        "how long the tail is: log some under HedgePolicy.fallback() first"
    )


def _p99(outcome: Outcome) -> str:
    if (least := outcome.at_least.get("p99")) is not None:
        return f"> {least:.2f} s"
    secs = outcome.percentiles["p99"]
    return "never" if secs == float("inf") else f"{secs:.2f} s"


def _digits(secs: float) -> str:
    """With digits enough that little is not nothing."""
    return f"{secs:.2f}" if abs(secs) >= 0.1 or secs == 0 else f"{secs:.2g}"
