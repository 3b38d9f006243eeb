"""Finds when a provider was slow or failing, and the cost to callers. Pure.

A request is bad if it failed, or took longer than 1.5 times its provider's median; one that was
cancelled sooner counts neither way. With the usual share p0 of bad requests and p1 in an incident,
a bad request scores log(p1/p0) and a good one log((1-p1)/(1-p0)). The range with the largest sum
is an incident if the probability of such a sum in n random requests, at most n·exp(-sum), is below
0.01 (Karlin and Altschul, 1990). The remaining requests are searched in the same way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipecat_hedge.race import AttemptReport
from pipecat_hedge.tools.analysis.statistics import Quantile, Waits
from pipecat_hedge.tools.analysis.turn_log import LoggedTurn

SLOW = 1.5
BY_CHANCE = 0.01
MIN_BAD = 5
"""The fewest bad requests of an incident."""
MIN_REQUESTS = 20
"""The fewest requests in which incidents are looked for."""
NO_ANSWER_SECS = 60.0
"""The cost of a turn without an answer, for ranking."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A range of requests in which a provider was bad more often than by chance.

    Parameters:
        provider: The provider's name.
        kind: ``failing`` if most of its bad requests failed, else ``slow``.
        begin_at: The beginning of its first turn, in seconds since the epoch; None if unknown.
        end_at: The end of its last bad request.
        first_turn: The position of its first turn in the log, from 1.
        last_turn: The same of its last turn.
        requests: The provider's requests in that time.
        bad: The bad ones.
        failures: The failed ones, by category.
        p50: The median time to first token in that time.
        usual_p50: The same outside of incidents.
        turns: Turns with a request to the provider in that time.
        extra_wait_secs: The callers' total wait above the usual; None if unknown.
        unanswered: The turns without a complete answer.
        given_up: The turns in which callers gave up before the first token.
        extra_requests: Hedges and replacements above the usual.
        extra_usd: Their cost above the usual, in US dollars; None if unknown.
    """

    provider: str
    kind: Literal["slow", "failing"]
    begin_at: float | None
    end_at: float | None
    first_turn: int
    last_turn: int
    requests: int
    bad: int
    failures: dict[str, int]
    p50: Quantile | None
    usual_p50: Quantile | None
    turns: int
    extra_wait_secs: float | None
    unanswered: int
    given_up: int
    extra_requests: float
    extra_usd: float | None

    @property
    def cost_secs(self) -> float:
        """The cost in seconds of waiting; a turn without an answer counts a minute."""
        lost = self.unanswered + self.given_up
        return (self.extra_wait_secs or 0.0) + NO_ANSWER_SECS * lost


def attempt_waits(attempts: Sequence[AttemptReport]) -> Waits:
    """Return the times to first token, cancelled requests as right-censored waits."""
    answered = [a.ttft_secs for a in attempts if a.ttft_secs is not None]
    cut = [_waited(a) for a in attempts if a.ttft_secs is None and not _is_error(a)]
    return Waits.of(answered, cut)


def bad_stretches(bad: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the ranges, from and to, with more bad requests than by chance.

    Args:
        bad: Whether each request was bad, in the order of time.
    """
    found = list[tuple[int, int]]()
    for _ in range(2):  # the second pass takes the usual share from outside the first finds
        inside = sum(sum(bad[start:stop]) for start, stop in found)
        outside = len(bad) - sum(stop - start for start, stop in found)
        usual = max((sum(bad) - inside + 0.5) / (outside + 1), 0.01)
        if usual >= 0.9:
            return found
        raised = (1 + usual) / 2
        up, down = math.log(raised / usual), math.log((1 - raised) / (1 - usual))
        least = math.log(max(len(bad), 1) / BY_CHANCE)
        found, parts = [], [(0, len(bad))]
        while parts:
            start, stop = parts.pop()
            score, low, high = _best(bad[start:stop], up, down)
            if score >= least and sum(bad[start + low : start + high]) >= MIN_BAD:
                found.append((start + low, start + high))
                parts += [(start, start + low), (start + high, stop)]
    return sorted(found)


def _best(bad: Sequence[bool], up: float, down: float) -> tuple[float, int, int]:
    """Return the largest sum of scores, and its range."""
    if not bad:
        return 0.0, 0, 0
    sums = np.concatenate(([0.0], np.cumsum(np.where(np.asarray(bad), up, down))))
    gains = sums - np.minimum.accumulate(sums)
    stop = int(np.argmax(gains))
    return float(gains[stop]), int(np.argmin(sums[: stop + 1])), stop


def incidents_of(turns: Sequence[LoggedTurn]) -> tuple[Incident, ...]:
    """Return every provider's incidents, costliest first.

    Args:
        turns: The turns, in the order of time.
    """
    by_provider: dict[str, list[tuple[int, AttemptReport]]] = {}
    for place, turn in enumerate(turns):
        for attempt in turn.sent:
            by_provider.setdefault(attempt.provider, []).append((place, attempt))
    found: list[tuple[str, list[tuple[int, AttemptReport]], int]] = []
    for name, requests in by_provider.items():
        p50 = attempt_waits([attempt for _, attempt in requests]).p50
        if len(requests) < MIN_REQUESTS or p50 is None:
            continue
        rated = [(place, _is_bad(attempt, SLOW * p50.secs)) for place, attempt in requests]
        rated = [(place, bad) for place, bad in rated if bad is not None]
        for start, stop in bad_stretches([bool(bad) for _, bad in rated]):
            first, last = rated[start][0], rated[stop - 1][0]
            bad = sum(bool(bad) for _, bad in rated[start:stop])
            found.append((name, [each for each in requests if first <= each[0] <= last], bad))
    hit = {place for _, requests, _ in found for place, _ in requests}
    calm = [turn for place, turn in enumerate(turns) if place not in hit]
    incidents = [
        _incident(
            name,
            requests,
            bad,
            attempt_waits([a for place, a in by_provider[name] if place not in hit]).p50,
            turns,
            calm,
        )
        for name, requests, bad in found
    ]
    return tuple(sorted(incidents, key=lambda incident: -incident.cost_secs))


def _incident(
    name: str,
    requests: Sequence[tuple[int, AttemptReport]],
    bad: int,
    usual_p50: Quantile | None,
    turns: Sequence[LoggedTurn],
    calm: Sequence[LoggedTurn],
) -> Incident:
    places = sorted({place for place, _ in requests})
    hit = [turns[place] for place in places]
    failed = [a for _, a in requests if a.outcome == "failed"]
    waits = [t.report.ttft_secs for t in hit if t.report.ttft_secs is not None]
    usual = [t.report.ttft_secs for t in calm if t.report.ttft_secs is not None]
    begin, last = hit[0].began_at, hit[-1].began_at
    extra = [sum(max(len(t.sent) - 1, 0) for t in part) for part in (hit, calm)]
    usd = [_usd(part) for part in (hit, calm)]
    scale = len(hit) / max(len(calm), 1)
    return Incident(
        name,
        "failing" if 2 * len(failed) > bad else "slow",
        begin,
        None if last is None else last + requests[-1][1].ended_secs,
        places[0] + 1,
        places[-1] + 1,
        len(requests),
        bad,
        dict(Counter(a.error_category or "unknown" for a in failed)),
        attempt_waits([attempt for _, attempt in requests]).p50,
        usual_p50,
        len(hit),
        sum(waits) - len(waits) * math.fsum(usual) / len(usual) if waits and usual else None,
        sum(turn.unanswered for turn in hit),
        sum(turn.given_up for turn in hit),
        extra[0] - scale * extra[1],
        None if usd[0] is None or usd[1] is None else usd[0] - scale * usd[1],
    )


def _usd(turns: Sequence[LoggedTurn]) -> float | None:
    """Sum the cost of turns; None unless every price is known."""
    prices = [attempt.usd for turn in turns for attempt in turn.sent]
    known = [price for price in prices if price is not None]
    return math.fsum(known) if turns and len(known) == len(prices) else None


def _is_bad(attempt: AttemptReport, slow_secs: float) -> bool | None:
    """Whether a request was slow or failed; None if it ended too early to decide."""
    if attempt.ttft_secs is not None:
        return attempt.ttft_secs > slow_secs or attempt.outcome == "failed"
    return True if attempt.outcome == "failed" or _waited(attempt) > slow_secs else None


def _waited(attempt: AttemptReport) -> float:
    return max(attempt.ended_secs - attempt.launched_secs, 0.0)


def _is_error(attempt: AttemptReport) -> bool:
    """Whether it ended with an error, not a timeout."""
    return attempt.error_category not in (None, "timeout", "stalled", "deadline")
