"""Everything that a report says, as one frozen value made of a log. Pure.

Law: every figure is counted here, and only here; the page, the terminal and the JSON write it down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.tools.analysis.report.candidates import Lineup, lineup_of
from pipecat_hedge.tools.analysis.report.causes import SlowTurn, slowest_turns
from pipecat_hedge.tools.analysis.report.changes import Replays, replays_of
from pipecat_hedge.tools.analysis.report.comparing import Comparison, compare
from pipecat_hedge.tools.analysis.report.hedging import Bill, Hedging, bill_of, hedging_of
from pipecat_hedge.tools.analysis.report.periods import Calendar, Period
from pipecat_hedge.tools.analysis.report.promises import TierPromise, promises_of
from pipecat_hedge.tools.analysis.report.providers import ProviderFigures, provider_figures
from pipecat_hedge.tools.analysis.report.trouble import Spell, spells_of
from pipecat_hedge.tools.analysis.report.turns import Log
from pipecat_hedge.tools.analysis.report.waits import (
    CurvePoint,
    Estimates,
    Waits,
    curve_of,
    estimates_of,
)

__all__ = ["Figures", "Heard", "Moment", "figures_of"]


@dataclass(frozen=True, slots=True)
class Moment:
    """What callers heard in a stretch of time.

    Parameters:
        period: When.
        turns: Turns that began then.
        ttft: How long they waited for the first token, in the turns that had one.
        ttft_all: The same with those counted in that callers gave up.
        unanswered: Turns that failed or were degraded.
    """

    period: Period
    turns: int
    ttft: Waits
    ttft_all: Estimates
    unanswered: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What callers heard.

    Parameters:
        turns: How many turns there were.
        outcomes: What became of them.
        unanswered: Those whose callers waited for an answer and did not get one, or not all of it.
        degraded: Those of them in which the caller heard the fallback text, alone or after part of
            an answer.
        given_up: How long callers waited in the turns in which they spoke again, or went, before
            there was a token of the answer.
        successes: Those that were answered to their end.
        ttft: To the first token of the answer, of the turns that had one.
        ttfs: To its first speakable sentence: the time to a usable answer.
        voice_to_voice: From the caller's last sound to the answer's first; nothing unless a log of
            what was heard was given.
        ttft_all: To the first token, the turns counted in that callers gave up before it. So on for
            the others.
        ttfs_all: To the first speakable sentence.
        voice_to_voice_all: From the caller's last sound to the answer's first.
        ttft_curve: The share of turns over time, those given up counted in.
        ttfs_curve: The same of first sentences.
        ttfs_unknown: Turns whose line does not have the field.
        over_time: Stretches of time; empty where times are not known.
    """

    turns: int
    outcomes: dict[str, int]
    unanswered: int
    degraded: int
    given_up: Waits
    successes: int
    ttft: Waits
    ttfs: Waits
    voice_to_voice: Waits
    ttft_all: Estimates
    ttfs_all: Estimates
    voice_to_voice_all: Estimates
    ttft_curve: tuple[CurvePoint, ...]
    ttfs_curve: tuple[CurvePoint, ...]
    ttfs_unknown: int
    over_time: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """A report's figures.

    Parameters:
        files: The logs' names.
        skipped: Lines that could not be used.
        named_skips: The first of them.
        begin_at: When the first turn began, in seconds since the epoch; None if that is not known
            of every turn.
        end_at: When the last one ended.
        zone: The time zone in which hours are told.
        slos: What is promised, by tier; ``all`` is all tiers that are not named.
        candidates: How turns were raced.
        heard: What callers heard.
        promises: What became of what was promised.
        providers: What each provider did.
        spells: When one of them was slow or failed.
        hedging: What hedging did.
        bill: What it all cost.
        slowest: The slowest turns.
        replays: What hedging bought, and what would have helped; None where it was not asked for,
            or nobody ever answered.
        comparison: The same figures beside another log's, if one was given.
        lacking: How many of the lines lack a field, by field.
    """

    files: tuple[str, ...]
    skipped: int
    named_skips: tuple[str, ...]
    begin_at: float | None
    end_at: float | None
    zone: str
    slos: Mapping[str, Slo]
    candidates: Lineup
    heard: Heard
    promises: tuple[TierPromise, ...]
    providers: tuple[ProviderFigures, ...]
    spells: tuple[Spell, ...]
    hedging: Hedging
    bill: Bill
    slowest: tuple[SlowTurn, ...]
    replays: Replays | None
    comparison: Comparison | None
    lacking: dict[str, int]


def figures_of(
    log: Log,
    *,
    slos: Mapping[str | None, Slo] | None = None,
    zone: tzinfo | None = None,
    against: Log | None = None,
    replay: bool = True,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Figures:
    """Count everything.

    Args:
        log: What was read.
        slos: What is promised to each tier; under None, to all that are not named. By default
            ``Slo()`` to all.
        zone: Where people are, for hours; None is this machine's own.
        against: Another log, to compare with.
        replay: Whether to replay the turns: what hedging bought, and what would have helped.
        progress: Told what is being done, and how much of it is.
    """
    promised = dict(slos or {None: Slo()})
    general = promised.get(None, Slo())
    turns = log.turns
    began = [turn.began_at for turn in turns]
    calendar = Calendar.of(began, zone)
    progress("providers", 0.0)
    providers = provider_figures(turns)
    candidates = lineup_of(turns)
    spells = spells_of(turns, providers, general)
    usual = {p.provider: p.p50.secs for p in providers if p.p50 is not None}
    comparison = None
    if against is not None:
        progress("comparison", 0.0)
        comparison = compare(turns, against.turns, against.files, general)
    replays = None
    if replay:
        replays = replays_of(
            turns, candidates, general.ttft_secs, progress=lambda share: progress("replays", share)
        )
    return Figures(
        files=log.files,
        skipped=log.skipped,
        named_skips=log.named_skips,
        begin_at=None if calendar is None else began[0],
        end_at=None if calendar is None else max(turn.at or 0.0 for turn in turns),
        zone=_zone_name(began[0], zone),
        slos={tier or "all": slo for tier, slo in promised.items()},
        candidates=candidates,
        heard=_heard(log, calendar),
        promises=promises_of(turns, log.heard, promised, calendar),
        providers=providers,
        spells=spells,
        hedging=hedging_of(turns),
        bill=bill_of(turns),
        slowest=slowest_turns(turns, usual),
        replays=replays,
        comparison=comparison,
        lacking=dict(Counter(field for turn in turns for field in turn.lacks)),
    )


def _heard(log: Log, calendar: Calendar | None) -> Heard:
    turns = log.turns
    ttft = [t.report.ttft_secs for t in turns if t.report.ttft_secs is not None]
    ttfs = [t.report.ttfs_secs for t in turns if t.report.ttfs_secs is not None]
    voice = [t.voice_to_voice_secs for t in log.heard if t.voice_to_voice_secs is not None]
    no_token = [t.report.duration_secs for t in turns if t.was_given_up]
    no_sentence = [
        t.report.duration_secs
        for t in turns
        if t.report.ttfs_secs is None
        and "ttfs_secs" not in t.lacks
        and (t.was_given_up or t.report.outcome == "interrupted")
    ]
    unheard = [
        t.latency.ended_secs
        for t in log.heard
        if t.voice_to_voice_secs is None and t.latency.interrupted and t.latency.ended_secs
    ]
    return Heard(
        len(turns),
        dict(Counter(turn.report.outcome for turn in turns)),
        sum(turn.is_unanswered for turn in turns),
        sum(turn.is_degraded for turn in turns),
        Waits.of(no_token),
        sum(turn.is_success for turn in turns),
        Waits.of(ttft),
        Waits.of(ttfs),
        Waits.of(voice),
        estimates_of(ttft, no_token),
        estimates_of(ttfs, no_sentence),
        estimates_of(voice, unheard),
        curve_of(ttft, no_token),
        curve_of(ttfs, no_sentence),
        sum("ttfs_secs" in turn.lacks for turn in turns),
        _over_time(log, calendar),
    )


def _over_time(log: Log, calendar: Calendar | None) -> tuple[Moment, ...]:
    if calendar is None:
        return ()
    waits: list[list[float]] = [[] for _ in range(calendar.count)]
    given_up: list[list[float]] = [[] for _ in range(calendar.count)]
    counts, unanswered = [0] * calendar.count, [0] * calendar.count
    for turn in log.turns:
        index = calendar.index(turn.began_at or 0.0)
        counts[index] += 1
        unanswered[index] += turn.is_unanswered
        if turn.report.ttft_secs is not None:
            waits[index].append(turn.report.ttft_secs)
        elif turn.was_given_up:
            given_up[index].append(turn.report.duration_secs)
    return tuple(
        Moment(
            calendar.period(i),
            counts[i],
            Waits.of(waits[i]),
            estimates_of(waits[i], given_up[i]),
            unanswered[i],
        )
        for i in range(calendar.count)
    )


def _zone_name(at: float | None, zone: tzinfo | None) -> str:
    moment = datetime.fromtimestamp(at or 0.0, zone)
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return str(zone) if zone is not None else moment.tzname() or "local time"
