"""What a replay came to, for callers and for the purse. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.tools.analysis.whatif.answer import Outcome

__all__ = ["Prediction", "Prices", "predict", "requests_of", "waits_of"]

NO_ANSWER_SECS = 60.0
"""What a turn without an answer counts for; as in `whatif`."""
_SHOWN = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a replay came to.

    Parameters:
        policy: What was replayed.
        p50_secs: The median time to the first token, in seconds; so on for the others; infinite
            where so many turns have no answer.
        p95_secs: The 95th percentile.
        p99_secs: The 99th percentile.
        p95_low_secs: Where the p95 would lie in 19 of 20 logs of this size: from here,
        p95_high_secs: to here.
        at_least: Of those percentiles that rest on requests which were cut short, what they are at
            the least, by ``p50``, ``p95``, ``p99``.
        mean_secs: The mean wait, a turn without an answer counted as a minute.
        kept_share: The share of turns whose first token came as promised; None without a promise.
        unanswered: The share of turns without an answer.
        requests: Requests a turn.
        usd_per_1000: What 1,000 turns cost, in US dollars, as far as answers and cancelled requests
            of this log tell; None if they do not.
    """

    policy: str
    p50_secs: float
    p95_secs: float
    p99_secs: float
    p95_low_secs: float
    p95_high_secs: float
    at_least: dict[str, float]
    mean_secs: float
    kept_share: float | None
    unanswered: float
    requests: float
    usd_per_1000: float | None


class Prices:
    """What answers and cancelled requests of a log cost, by provider."""

    def __init__(self, reports: Sequence[TurnReport]):
        """Take the means.

        Args:
            reports: The turns.
        """
        self._answer, self._lost = _mean_usd(reports, "won"), _mean_usd(reports, "superseded")

    def of_1000(self, requests: float, first: str, second: str) -> float | None:
        """What 1,000 turns cost: an answer of the first one, and what is sent beside it.

        Args:
            requests: Requests a turn.
            first: Who is asked first.
            second: Who is asked next; its requests count as cancelled ones, or as whole answers,
                which cost more, where none was ever cancelled.

        Returns:
            US dollars; None if the log does not tell.
        """
        answer, more = self._answer.get(first), requests - 1
        lost = self._lost.get(second, self._answer.get(second))
        if answer is None or (lost is None and more > 0):
            return None
        return 1000 * (answer + more * (lost or 0.0))


def predict(policy: str, outcome: Outcome, prices: Prices, first: str, second: str) -> Prediction:
    """Sum a replay up.

    Args:
        policy: What was replayed.
        outcome: What came of it.
        prices: What requests cost.
        first: Who is asked first.
        second: Who is asked next.
    """
    interval, requests = outcome.intervals["p95"], requests_of(outcome)
    return Prediction(
        policy,
        outcome.percentiles["p50"],
        outcome.percentiles["p95"],
        outcome.percentiles["p99"],
        interval.low,
        interval.high,
        {name: least for name, least in outcome.at_least.items() if name in _SHOWN},
        float(waits_of(outcome).mean()),
        outcome.under_deadline,
        outcome.unanswered,
        requests,
        prices.of_1000(requests, first, second),
    )


def waits_of(outcome: Outcome) -> npt.NDArray[np.float64]:
    """How long each turn of a replay waits, in seconds; a turn without an answer a minute.

    Args:
        outcome: What came of it.
    """
    return np.minimum(outcome.secs, NO_ANSWER_SECS)


def requests_of(outcome: Outcome) -> float:
    """Requests a turn of a replay.

    Args:
        outcome: What came of it.
    """
    return 1.0 + outcome.extra_requests + outcome.replacements


def _mean_usd(reports: Sequence[TurnReport], outcome: str) -> dict[str, float]:
    """What a request of each provider with such an outcome cost, where all of them tell."""
    sums: dict[str, list[float | None]] = {}
    for report in reports:
        for attempt in report.attempts:
            if attempt.outcome == outcome:
                sums.setdefault(attempt.provider, []).append(attempt.usd)
    known = {name: [usd for usd in all_ if usd is not None] for name, all_ in sums.items()}
    return {
        n: math.fsum(usds) / len(usds) for n, usds in known.items() if len(usds) == len(sums[n])
    }
