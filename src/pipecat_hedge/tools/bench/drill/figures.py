"""What a drill's record says, in figures. Pure.

A second holds some fifty turns, so its figures jump by chance: a share of 2 % of fifty is one. Each
question is therefore asked of the shortest stretch that can answer it. Whether a provider is left
alone, or has its share again, is asked of `STRETCH_SECS`; requests per turn of as many seconds as
it takes until `ENOUGH` turns have begun, and the highest load of as many as it usually takes.

Callers who hang on the line ask nobody. So that a provider is not taken to be left alone because
its callers are, what it is sent is counted per turn that begins; what is too much for it, per
second.

Two ways to notice. Where a provider is broken, it is noticed when callers have stopped asking it:
from that second on it gets under 2 % of its usual requests. Where nobody can be left alone, trouble
is noticed when callers notice it no more: the p95 is back within 1.5 times the usual.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.tools.bench.drill.plans import Drill
from pipecat_hedge.tools.bench.drill.records import Answered, Counts, Record, Turn

__all__ = [
    "Figures",
    "broken_share",
    "enough_secs",
    "figures",
    "highest",
    "left_alone_secs",
    "recovered_secs",
    "requests_per_turn",
    "waits_recovered_secs",
]

STRETCH_SECS = 10
ENOUGH = 150
LEFT_ALONE_SHARE = 0.02
RECOVERED_SHARE = 0.9
P95_FACTOR = 1.5
RELIED_ON = 0.25
"""A provider that usually gets less than this share of the requests has no usual load."""
GRACE_SECS = 10
"""How long a broken provider may be asked yet, and a crowd may go unnoticed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One drill with one variant, in figures. None is never, or not to be asked here.

    Parameters:
        drill: The drill.
        variant: The variant.
        turns: Turns that began while it was measured and have ended.
        unended: Those that never did: their process was killed, or they still waited at the end.
        answered: Those whose answer was heard to its end.
        degraded: Those that heard the fallback text, alone or after a part of an answer.
        lost: The others.
        lost_why: How many of them for which reason.
        calm_p95_secs: The 95th percentile of the time to first token before the trouble.
        p50_secs: The median of the answered turns while the trouble lasted; so on for the others.
        p95_secs: The 95th percentile.
        p99_secs: The 99th percentile.
        degraded_p95_secs: The 95th percentile until the first text, of the degraded turns.
        premium_p95_secs: The 95th percentile of the premium callers' turns from `GRACE_SECS` after
            the event on; infinite if over one in twenty was not answered.
        premium_at_once_p95_secs: The same from the event on.
        requests_per_turn: Requests sent per turn.
        replacements_per_turn: Those of them that replaced a failure, where turns tell.
        worst_requests_per_turn: Requests per turn in the stretch where they were most, without
            those that replaced a failure.
        stretch_secs: How long that stretch was.
        broken_share: What the broken provider got from `GRACE_SECS` after the event on until its
            return, as a share of its usual requests.
        notice_secs: From the event until it was noticed.
        recover_secs: From the return until the broken provider had its share again.
        load_after: The highest load of the providers that returned, after that, in units of the
            usual: of all of them together, and of each that usually gets `RELIED_ON` of all.
        cpu_share: The median and the highest share of the machine's processors in use.
        own_share: The same of what the drill itself used.
        lag_secs: The 95th percentile and the longest of the workers' lags.
    """

    drill: str
    variant: str
    turns: int
    unended: int
    answered: int
    degraded: int
    lost: int
    lost_why: dict[str, int]
    calm_p95_secs: float | None
    p50_secs: float | None
    p95_secs: float | None
    p99_secs: float | None
    degraded_p95_secs: float | None
    premium_p95_secs: float | None
    premium_at_once_p95_secs: float | None
    requests_per_turn: float | None
    replacements_per_turn: float
    worst_requests_per_turn: float | None
    stretch_secs: int
    broken_share: float | None
    notice_secs: float | None
    recover_secs: float | None
    load_after: float | None
    cpu_share: tuple[float | None, float | None]
    own_share: tuple[float | None, float | None]
    lag_secs: tuple[float | None, float | None]


def figures(drill: Drill, record: Record) -> Figures:
    """The figures of one run.

    Args:
        drill: The drill.
        record: What came of it.
    """
    turns, began = record.turns, record.began
    secs, begun = len(began), int(began.sum())
    event = drill.event_secs if drill.event_secs is not None else 0.0
    until = drill.return_secs if drill.return_secs is not None else math.inf
    during = [turn for turn in turns if event <= turn.at < until]
    before = [turn for turn in turns if turn.at < event] or turns
    calm_p95 = percentile(_waits(before, ("answered", "lost")), 0.95)
    answered = _waits(during, ("answered",))
    replaced = _by_second((a.at for t in turns for a in t.replacements), secs)
    sent = _total(record.asked.values(), secs)
    worst, worst_secs = requests_per_turn(sent - replaced, _set_out(record), ENOUGH)
    broken = _total((record.asked[name] for name in drill.broken), secs)
    notice = recover = load_after = share = None
    if drill.broken:
        notice = left_alone_secs(broken, began, event, drill.return_secs)
        share = broken_share(broken, began, event, drill.return_secs)
        if drill.return_secs is not None:
            recover = recovered_secs(broken, began, event, drill.return_secs)
            relied_on = [
                record.arrived[name]
                for name in drill.broken
                if _rate(record.asked[name], 0, event) >= RELIED_ON * _rate(sent, 0, event)
            ]
            arrived = _total((record.arrived[name] for name in drill.broken), secs)
            loads = (
                highest(each, event, drill.return_secs, enough_secs(began))
                for each in (arrived, *relied_on)
            )
            load_after = max((load for load in loads if load is not None), default=None)
    elif drill.event_secs is not None and calm_p95 is not None:
        notice = waits_recovered_secs(turns, event, until, P95_FACTOR * calm_p95, secs)
    return Figures(
        drill=drill.name,
        variant=record.variant,
        turns=len(turns),
        unended=begun - len(turns),
        answered=_count(turns, "answered"),
        degraded=_count(turns, "degraded"),
        lost=_count(turns, "lost"),
        lost_why=dict(Counter(turn.why or "unknown" for turn in turns if turn.kind == "lost")),
        calm_p95_secs=calm_p95,
        p50_secs=percentile(answered, 0.5),
        p95_secs=percentile(answered, 0.95),
        p99_secs=percentile(answered, 0.99),
        degraded_p95_secs=percentile(_waits(during, ("degraded",)), 0.95),
        premium_p95_secs=percentile(_premium_waits(during, event + GRACE_SECS), 0.95),
        premium_at_once_p95_secs=percentile(_premium_waits(during, event), 0.95),
        requests_per_turn=float(sent.sum()) / begun if begun else None,
        replacements_per_turn=float(replaced.sum()) / begun if begun else 0.0,
        worst_requests_per_turn=worst,
        stretch_secs=worst_secs,
        broken_share=share,
        notice_secs=notice,
        recover_secs=recover,
        load_after=load_after,
        cpu_share=_middle_and_most(record.load.cpu_share, 0.5),
        own_share=_middle_and_most(record.load.own_share, 0.5),
        lag_secs=_middle_and_most(record.load.lag_secs, 0.95),
    )


def enough_secs(began: Counts) -> int:
    """How many seconds usually hold enough turns to speak of a share of them; at least one.

    Args:
        began: Turns that began, by second.
    """
    rate = float(began.mean()) if len(began) else 0.0
    return max(1, math.ceil(ENOUGH / rate)) if rate else max(1, len(began))


def requests_per_turn(sent: Counts, began: Counts, enough: int) -> tuple[float | None, int]:
    """Requests per turn in the stretch where they were most.

    Args:
        sent: Requests, by second.
        began: Turns, by second.
        enough: How many turns a stretch holds at least. It begins with any second, and is as short
            as that allows; with fewer turns in all, it is all of it.

    Returns:
        The figure, None if no turn began; and how many seconds that stretch has.
    """
    all_sent = np.concatenate(([0], np.cumsum(sent)))
    all_began = np.concatenate(([0], np.cumsum(began)))
    ends = np.searchsorted(all_began, all_began[:-1] + enough)
    stretches = [(b, e) for b, e in enumerate(ends) if e < len(all_began)] or [(0, len(began))]
    found = [
        (float((all_sent[e] - all_sent[b]) / (all_began[e] - all_began[b])), int(e - b))
        for b, e in stretches
        if all_began[e] > all_began[b]
    ]
    return max(found, default=(None, len(began)), key=lambda each: each[0])


def left_alone_secs(
    counts: Counts, began: Counts, event: float, until: float | None
) -> float | None:
    """From the event until a broken provider is left alone.

    Args:
        counts: Its requests, by second.
        began: Turns that began, by second.
        event: When it broke.
        until: When it returned; None if it did not.

    Returns:
        Seconds until the first one from which on it gets under `LEFT_ALONE_SHARE` of its usual
        requests a turn, over `STRETCH_SECS` or what is left of its absence; None if there is none.
    """
    usual = _per_turn(counts, began, 0, event)
    end = math.floor(until) if until is not None else len(counts)
    for second in range(math.ceil(event), end):
        share = _per_turn(counts, began, second, min(second + STRETCH_SECS, end))
        if share is not None and usual and share < LEFT_ALONE_SHARE * usual:
            return second - event
    return None


def broken_share(counts: Counts, began: Counts, event: float, until: float | None) -> float | None:
    """What a broken provider got once `GRACE_SECS` were over, as a share of its usual requests.

    Args:
        counts: Its requests, by second.
        began: Turns that began, by second.
        event: When it broke.
        until: When it returned; None if it did not.

    Returns:
        The share; None if it was not usually asked, or not broken for so long.
    """
    usual = _per_turn(counts, began, 0, event)
    got = _per_turn(counts, began, event + GRACE_SECS, until if until is not None else len(counts))
    return got / usual if usual and got is not None else None


def recovered_secs(counts: Counts, began: Counts, event: float, back: float) -> float | None:
    """From its return until a provider has its share again.

    Args:
        counts: Its requests, by second.
        began: Turns that began, by second.
        event: When it broke; what it got before is its usual share.
        back: When it returned.

    Returns:
        Seconds until the first one from which on it gets `RECOVERED_SHARE` of its usual requests
        a turn over `STRETCH_SECS`; None if there is none.
    """
    usual = _per_turn(counts, began, 0, event)
    for second in range(math.ceil(back), len(counts) - STRETCH_SECS + 1):
        share = _per_turn(counts, began, second, second + STRETCH_SECS)
        if share is not None and usual and share >= RECOVERED_SHARE * usual:
            return second - back
    return None


def highest(counts: Counts, event: float, since: float, stretch: int) -> float | None:
    """The highest load in a stretch of time, in units of the usual.

    Args:
        counts: Requests, by second.
        event: What came before it is the usual load.
        since: From when on it is looked for.
        stretch: How many seconds are taken together.
    """
    usual = _rate(counts, 0, event)
    after = counts[math.floor(since) :]
    if not usual or not len(after):
        return None
    stretch = min(stretch, len(after))
    return float(_moving(after, stretch).max() / stretch / usual)


def waits_recovered_secs(
    turns: Sequence[Turn], event: float, until: float, bound_secs: float, secs: int
) -> float | None:
    """From the event until callers notice it no more.

    Args:
        turns: The turns.
        event: When the trouble began.
        until: When it ended; infinite if it did not.
        bound_secs: What the p95 is to be back within.
        secs: How long it was measured.

    Returns:
        Seconds until the first one from which on the p95 of answered and lost turns is within the
        bound over `STRETCH_SECS`; None if there is none, as where nearly all were degraded.
    """
    for second in range(math.ceil(event), math.floor(min(until, secs)) - STRETCH_SECS + 1):
        stretch = [turn for turn in turns if second <= turn.at < second + STRETCH_SECS]
        p95 = percentile(_waits(stretch, ("answered", "lost")), 0.95)
        if p95 is not None and p95 <= bound_secs:
            return second - event
    return None


def _waits(turns: Iterable[Turn], kinds: tuple[Answered, ...]) -> list[float]:
    return [turn.ttft_secs for turn in turns if turn.kind in kinds]


def _premium_waits(turns: Iterable[Turn], since: float) -> list[float]:
    """How long premium callers waited for an answer; for ever where they heard none."""
    theirs = (turn for turn in turns if turn.is_premium and turn.at >= since)
    return [turn.ttft_secs if turn.kind == "answered" else math.inf for turn in theirs]


def _count(turns: Iterable[Turn], kind: Answered) -> int:
    return sum(turn.kind == kind for turn in turns)


def _middle_and_most(values: Sequence[float], p: float) -> tuple[float | None, float | None]:
    return percentile(values, p), max(values, default=None)


def _rate(counts: Counts, since: float, until: float) -> float:
    """Requests a second in the whole seconds from ``since`` to ``until``."""
    part = counts[math.ceil(since) : math.floor(until)]
    return float(part.mean()) if len(part) else 0.0


def _per_turn(counts: Counts, began: Counts, since: float, until: float) -> float | None:
    """Requests per turn that began, in the whole seconds from ``since`` to ``until``."""
    part = slice(math.ceil(since), math.floor(until))
    turns = int(began[part].sum())
    return float(counts[part].sum()) / turns if turns else None


def _set_out(record: Record) -> Counts:
    """Turns by the second in which their first request was sent, or they began where none was.

    Who waits here for room sends nothing meanwhile: when there is room, the requests of many turns
    leave at once, and are one for each turn all the same.
    """
    secs = len(record.began)
    asked = [turn for turn in record.turns if turn.asked]
    waited = _by_second((turn.at for turn in asked), secs)
    return record.began - waited + _by_second((turn.asked[0].at for turn in asked), secs)


def _by_second(times: Iterable[float], secs: int) -> Counts:
    counts = np.zeros(secs, np.int64)
    for at in times:
        if 0 <= at < secs:
            counts[int(at)] += 1
    return counts


def _total(series: Iterable[Counts], secs: int) -> Counts:
    return np.sum([np.zeros(secs, np.int64), *series], axis=0)


def _moving(counts: Counts, stretch: int) -> Counts:
    """Sums over each stretch of so many seconds."""
    spent = np.concatenate(([0], np.cumsum(counts)))
    return spent[stretch:] - spent[:-stretch]
