"""Providers' bad spells: who, from when to when, and what it cost callers and the purse. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.errors import SHED
from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.promises import Attainment, was_kept
from pipecat_hedge.tools.analysis.report.providers import WAITED_FOR, ProviderFigures, usual
from pipecat_hedge.tools.analysis.report.spells import SLOW, bad_stretches
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn, waited_secs, was_sent
from pipecat_hedge.tools.analysis.report.waits import Estimate, Waits

__all__ = ["Spell", "spells_of"]

LEAST_REQUESTS = 20
"""Of a provider that was asked less often nothing is usual."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of time in which a provider was slow, or failed, more often than chance makes it.

    Parameters:
        provider: Its name.
        kind: ``slow``, or ``failing`` if most of its bad requests failed.
        failures: Its failures then, by why.
        begin_at: When the first bad request was made, in seconds since the epoch; None if the log
            does not say.
        end_at: When the last one was over.
        first_turn: The place in the log, from 1, of the first turn of it.
        last_turn: The same of the last.
        requests: Requests to it then.
        bad: Those that failed or took longer than ``slow_secs``.
        slow_secs: What counts as slow: one and a half times its usual median.
        usual_p50: What half of its requests answer within otherwise.
        p50: The same in the spell; None if it never answered.
        turns: Turns in which it was asked then.
        waits: How long callers waited in them for the first token.
        usual_waits: How long they wait in other turns.
        extra_wait_secs: How much longer callers waited in all, at the usual mean; None if nobody
            waited for an answer then, or otherwise.
        unanswered: Turns that failed or were degraded.
        given_up: How long callers waited in those that they gave up before the first token.
        kept: Of the promise for the first token, what became of it then.
        usual_kept: What becomes of it in other turns.
        extra_requests: Hedges and replacements beyond the usual, in all.
        extra_usd: What these turns cost beyond the usual, in US dollars; None if that is not known.
    """

    provider: str
    kind: Literal["slow", "failing"]
    failures: dict[str, int]
    begin_at: float | None
    end_at: float | None
    first_turn: int
    last_turn: int
    requests: int
    bad: int
    slow_secs: float
    usual_p50: Estimate | None
    p50: Estimate | None
    turns: int
    waits: Waits
    usual_waits: Waits
    extra_wait_secs: float | None
    unanswered: int
    given_up: Waits
    kept: Attainment
    usual_kept: Attainment
    extra_requests: float
    extra_usd: float | None


def spells_of(
    turns: Sequence[LoggedTurn], providers: Sequence[ProviderFigures], slo: Slo
) -> tuple[Spell, ...]:
    """Every provider's bad spells, in the order of time.

    Args:
        turns: The turns, in the order of time.
        providers: What is known of each provider.
        slo: What callers are promised.
    """
    asked: dict[str, list[tuple[int, AttemptReport]]] = {}
    for place, turn in enumerate(turns):
        for attempt in turn.report.attempts:
            if was_sent(attempt, turn.lacks):
                asked.setdefault(attempt.provider, []).append((place, attempt))
    stretches: list[tuple[str, float, list[tuple[int, AttemptReport]]]] = []
    for provider in providers:
        if provider.requests < LEAST_REQUESTS or provider.p50 is None:
            continue
        slow_secs = SLOW * provider.p50.secs
        told = [
            (place, attempt, bad)
            for place, attempt in asked[provider.provider]
            if (bad := _is_bad(attempt, slow_secs)) is not None
        ]
        for stretch in bad_stretches([bad for *_, bad in told]):
            first, last = told[stretch.start][0], told[stretch.stop - 1][0]
            mine = [(p, a) for p, a in asked[provider.provider] if first <= p <= last]
            stretches.append((provider.provider, slow_secs, mine))
    in_trouble = {place for _, _, mine in stretches for place, _ in mine}
    calm = [turn for place, turn in enumerate(turns) if place not in in_trouble]
    usual_p50 = {
        name: _p50([a for place, a in asked[name] if place not in in_trouble])
        for name in {name for name, _, _ in stretches}
    }
    found = [
        _spell(name, slow_secs, mine, usual_p50[name], turns, calm, slo)
        for name, slow_secs, mine in stretches
    ]
    return tuple(sorted(found, key=lambda spell: spell.first_turn))


def _is_bad(attempt: AttemptReport, slow_secs: float) -> bool | None:
    """Whether a request was slow or failed; None if it was cancelled too soon to tell."""
    if attempt.error_category == SHED:
        return None  # it gave its place to a more urgent one
    if attempt.outcome == "failed" and attempt.ttft_secs is None:
        return True
    waited, is_cut = waited_secs(attempt)
    if waited > slow_secs:
        return True
    return None if is_cut else attempt.outcome == "failed"


def _spell(
    name: str,
    slow_secs: float,
    mine: Sequence[tuple[int, AttemptReport]],
    usual_p50: Estimate | None,
    turns: Sequence[LoggedTurn],
    calm: Sequence[LoggedTurn],
    slo: Slo,
) -> Spell:
    places = sorted({place for place, _ in mine})
    hit = [turns[place] for place in places]
    attempts = [attempt for _, attempt in mine]
    failed = [a for a in attempts if a.outcome == "failed" and a.error_category != SHED]
    bad = [a for a in attempts if _is_bad(a, slow_secs)]
    waits = Waits.of(_waits(hit))
    usual_waits = Waits.of(_waits(calm))
    extra_wait = None
    if waits.mean_secs is not None and usual_waits.mean_secs is not None:
        extra_wait = waits.count * (waits.mean_secs - usual_waits.mean_secs)
    begin, end = turns[places[0]].began_at, turns[places[-1]].began_at
    limit = slo.ttft_secs
    return Spell(
        name,
        "failing" if 2 * len(failed) > len(bad) else "slow",
        dict(Counter(a.error_category or "unknown" for a in failed)),
        begin,
        None if end is None else end + mine[-1][1].ended_secs,
        places[0] + 1,
        places[-1] + 1,
        len(mine),
        len(bad),
        slow_secs,
        usual_p50,
        _p50(attempts),
        len(hit),
        waits,
        usual_waits,
        extra_wait,
        sum(turn.is_unanswered for turn in hit),
        Waits.of([turn.report.duration_secs for turn in hit if turn.was_given_up]),
        Attainment.of([] if limit is None else [was_kept(t, "ttft", limit) for t in hit]),
        Attainment.of([] if limit is None else [was_kept(t, "ttft", limit) for t in calm]),
        _extra(hit) - len(hit) * (_extra(calm) / len(calm) if calm else 0.0),
        _extra_usd(hit, calm),
    )


def _waits(turns: Sequence[LoggedTurn]) -> list[float]:
    return [t.report.ttft_secs for t in turns if t.report.ttft_secs is not None]


def _p50(attempts: Sequence[AttemptReport]) -> Estimate | None:
    known = usual(attempts)
    if known is None:  # nobody answered: it is longer than they were waited for
        silent = sorted(waited_secs(a)[0] for a in attempts if a.outcome != "failed")
        return Estimate(silent[-min(WAITED_FOR, len(silent))], is_least=True) if silent else None
    secs, known_to = known[0].quantile(0.5), known[1]
    is_cut = any(a.ttft_secs is None for a in attempts)
    return Estimate(known_to, is_least=True) if is_cut and secs > known_to else Estimate(secs)


def _extra(turns: Sequence[LoggedTurn]) -> int:
    return sum(max(sum(was_sent(a, t.lacks) for a in t.report.attempts) - 1, 0) for t in turns)


def _extra_usd(hit: Sequence[LoggedTurn], calm: Sequence[LoggedTurn]) -> float | None:
    """What turns cost beyond the usual; None unless the price of every request is known."""
    sums = list[float]()
    for turns in (hit, calm):
        prices = [a.usd for t in turns for a in t.report.attempts if was_sent(a, t.lacks)]
        known = [usd for usd in prices if usd is not None]
        if not turns or len(known) < len(prices):
            return None
        sums.append(sum(known))
    return sums[0] - len(hit) * sums[1] / len(calm)
