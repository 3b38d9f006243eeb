"""``pipecat-hedge report``: callers' waits, provider incidents, and the effect of hedging."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from pipecat_hedge.policy import Slo, classify_llm, classify_wait
from pipecat_hedge.race import AttemptReport, ConfigurationError
from pipecat_hedge.tools.analysis.incidents import Incident, attempt_waits, incidents_of
from pipecat_hedge.tools.analysis.latency_files import recorded_from
from pipecat_hedge.tools.analysis.slow_turns import SlowTurn, slowest_turns
from pipecat_hedge.tools.analysis.statistics import Bootstrap, Floats, Interval, Quantile, Waits
from pipecat_hedge.tools.analysis.turn_log import Log, LoggedTurn, ReadingError, read_logs
from pipecat_hedge.tools.analysis.whatif import Answer, Question, show, what_if
from pipecat_hedge.tools.formatting import (
    OBJECTIVES,
    UNKNOWN,
    between,
    count,
    paragraph,
    print_json,
    progress_bar,
    secs,
    share,
    templates,
    terminal_width,
    text_table,
    usd,
)

FEW, P99_TURNS = 100, 500
"""Fewer turns get a caveat; from 500 turns on the p99 shows the effect of hedging."""
BUDGETS = (0.05, 0.1, 0.25)
REPLAYED, SAMPLED = 6_000, 20_000
"""Turns that are replayed, and the most turns whose latencies are used."""
AS_LOGGED, SAME_REQUESTS = "as logged", 0.02
PERIODS = {60: 25, 300: 25, 600: 25, 3600: 7 * 24, 86_400: 60}
"""Lengths of a period in seconds, each with the most periods of that length."""
COMPARED_TURNS, MIN_BEYOND, MIN_TURNS = 20_000, 5, 20
"""The latest turns are compared; a percentile needs five turns beyond it, a share twenty turns."""
RESAMPLES = 400
Objective: TypeAlias = Literal["ttft", "ttfs", "voice_to_voice"]


@dataclass(frozen=True, slots=True)
class Group:
    """The turns of a tier or a period.

    Parameters:
        name: The group's name.
        turns: The number of turns.
        ttft: Times to first token; given-up turns are right-censored.
        unanswered: Turns without a complete answer.
    """

    name: str
    turns: int
    ttft: Waits
    unanswered: int

    @classmethod
    def of(cls, name: str, turns: Sequence[LoggedTurn]) -> Group:
        """Sum up turns."""
        return cls(name, len(turns), _ttft(turns), sum(turn.unanswered for turn in turns))


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """How well a tier met an objective.

    Parameters:
        objective: ``ttft``, ``ttfs`` or ``voice_to_voice``.
        tier: The callers' tier; None for all.
        limit_secs: The objective's limit.
        target: The target share of turns.
        met: Turns that met it.
        turns: Turns to which it applies.
    """

    objective: Objective
    tier: str | None
    limit_secs: float
    target: float
    met: int
    turns: int


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """One provider's requests.

    Parameters:
        provider: The provider's name.
        requests: Requests sent to it.
        reasons: The same by ``primary``, ``hedge``, ``failure`` and ``stall``.
        outcomes: The same by ``won``, ``superseded``, ``failed`` and ``interrupted``.
        ttft: Times to first token; cancelled requests are right-censored.
        usd: Their cost, in US dollars; None if no price is known.
    """

    provider: str
    requests: int
    reasons: dict[str, int]
    outcomes: dict[str, int]
    ttft: Waits
    usd: float | None


@dataclass(frozen=True, slots=True)
class Hedging:
    """The effect of hedging.

    Parameters:
        hedges: Requests sent because another one was slow.
        won: The hedges whose answer was released.
        replacements: Requests that replaced a failed or stalled one.
        extra_requests: Requests beyond the first, per turn with a request.
        lost_usd: The cost of requests that lost a race; None if no price is known.
        percentile: The compared percentile: ``p99``, or ``p95`` for few turns.
        with_secs: It under the log's policy, replayed; None without a replay.
        without_secs: It without hedging, failed requests being replaced.
        is_known: Whether both are known; else hedges cancelled too many requests.
    """

    hedges: int
    won: int
    replacements: int
    extra_requests: float
    lost_usd: float | None
    percentile: str = "p99"
    with_secs: float | None = None
    without_secs: float | None = None
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two logs.

    Parameters:
        name: Its name.
        unit: ``secs``, ``share``, ``requests`` or ``usd``.
        this: This log's figure; None if unknown.
        other: The other log's figure.
        interval: The 95 % interval of this minus other; None if unknown.
        verdict: ``differs``, ``no difference shown``, ``too few turns``, or ``unknown``.
    """

    name: str
    unit: str
    this: float | None
    other: float | None
    interval: Interval | None
    verdict: Literal["differs", "no difference shown", "too few turns", "unknown"]


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of the page, the summary and the JSON.

    Parameters:
        files: The logs' names.
        headline: The most important results, a sentence each.
        caveat: A limitation of the figures, or empty.
        skipped: Unusable lines.
        named_skips: The first of them.
        begin_at: The beginning of the first turn, in seconds since the epoch; None unless all times
            are known.
        end_at: The end of the last turn.
        outcomes: Turns by outcome.
        degraded: Turns with the fallback text.
        all_turns: All turns.
        tiers: The turns of each tier.
        periods: The turns of each period; empty unless all times are known.
        ttfs: Times to the first speakable sentence.
        voice_to_voice: From the caller's last sound to the answer's first, if logged.
        objectives: How well the objectives were met; empty without an SLO.
        providers: Each provider's requests, the most frequent first provider first.
        incidents: Times in which a provider was slow or failing, costliest first.
        hedging: The effect of hedging.
        usd_per_success: The cost of a completely answered turn; None if unknown.
        slowest: The slowest turns.
        whatif: The results of other policies; None if nothing was replayed.
        other_files: The names of the logs compared with.
        comparison: The figures of both logs, if there is another one.
    """

    files: tuple[str, ...]
    headline: tuple[str, ...]
    caveat: str
    skipped: int
    named_skips: tuple[str, ...]
    begin_at: float | None
    end_at: float | None
    outcomes: dict[str, int]
    degraded: int
    all_turns: Group
    tiers: tuple[Group, ...]
    periods: tuple[Group, ...]
    ttfs: Waits
    voice_to_voice: Waits
    objectives: tuple[ObjectiveResult, ...]
    providers: tuple[ProviderFigures, ...]
    incidents: tuple[Incident, ...]
    hedging: Hedging
    usd_per_success: float | None
    slowest: tuple[SlowTurn, ...]
    whatif: Answer | None
    other_files: tuple[str, ...]
    comparison: tuple[Difference, ...]


def report_of(
    log: Log,
    *,
    slo: Slo | None = None,
    zone: tzinfo | None = None,
    against: Log | None = None,
    replay: bool = True,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Report:
    """Compute a report.

    Args:
        log: The turns.
        slo: The callers' SLO; None has no objectives.
        zone: The time zone; None is the local one.
        against: Another log to compare with.
        replay: Whether to replay the turns under other policies.
        progress: Called with the current step, and its completed share.
    """
    turns = log.turns
    sent = [attempt for turn in turns for attempt in turn.sent]
    providers = _providers(turns)
    is_timed = all(turn.at is not None for turn in turns)
    answer = _replayed(turns, slo, progress) if replay else None
    all_turns, cost = Group.of("all callers", turns), _usd(sent)
    successes = sum(turn.succeeded for turn in turns)
    tiers = dict.fromkeys(turn.report.tier for turn in turns)
    usual = {p.provider: p.ttft.p50.secs for p in providers if p.ttft.p50 is not None}
    incidents, hedging = incidents_of(turns), _hedging(turns, answer)
    objectives = _objectives(log, slo)
    few = f"{count(len(turns), 'turn')} are too few for a p99: the percentiles are rough."
    return Report(
        log.files,
        (
            *_headline(all_turns, objectives, incidents, hedging, answer, zone),
            *_sooner(log),
        ),
        few if len(turns) < FEW else "",
        log.skipped,
        tuple(log.named_skips),
        turns[0].began_at if is_timed else None,
        max(turn.at or 0.0 for turn in turns) if is_timed else None,
        dict(Counter(turn.report.outcome for turn in turns)),
        sum(turn.report.degraded_reason is not None for turn in turns),
        all_turns,
        tuple(Group.of(tier, [t for t in turns if t.report.tier == tier]) for tier in tiers),
        _periods(turns, zone) if is_timed else (),
        _ttfs(turns),
        Waits.of(
            [each.secs for each in log.voice_turns if each.answered],
            [each.secs for each in log.voice_turns if not each.answered],
        ),
        objectives,
        providers,
        incidents,
        hedging,
        cost / successes if cost is not None and successes else None,
        slowest_turns(turns, usual),
        answer,
        () if against is None else against.files,
        () if against is None else tuple(_compared(turns, against.turns)),
    )


def _ttft(turns: Iterable[LoggedTurn]) -> Waits:
    known = list(turns)
    return Waits.of(
        [t.report.ttft_secs for t in known if t.report.ttft_secs is not None],
        [t.report.duration_secs for t in known if t.given_up],
    )


def _ttfs(turns: Sequence[LoggedTurn]) -> Waits:
    silent = [t for t in turns if t.report.ttfs_secs is None]
    return Waits.of(
        [t.report.ttfs_secs for t in turns if t.report.ttfs_secs is not None],
        [t.report.duration_secs for t in silent if t.given_up or t.report.outcome == "interrupted"],
    )


def _usd(attempts: Iterable[AttemptReport]) -> float | None:
    prices = [a.usd for a in attempts if a.usd is not None]
    return math.fsum(prices) if prices else None


def _periods(turns: Sequence[LoggedTurn], zone: tzinfo | None) -> tuple[Group, ...]:
    """Group the turns by hour; by minutes or days in logs of another length."""
    began = np.array([turn.began_at or 0.0 for turn in turns])
    span = float(np.ptp(began))
    width = next((w for w, most in PERIODS.items() if span < w * most), 30 * 86_400)
    offset = datetime.fromtimestamp(began[0], zone).astimezone(zone).utcoffset() or timedelta()
    place = np.floor((began + offset.total_seconds()) / width).astype(int)
    form = "%Y-%m-%d" if width >= 86_400 else "%m-%d %H:%M" if span > 86_400 else "%H:%M"
    groups: dict[int, list[LoggedTurn]] = {n: [] for n in range(place.min(), place.max() + 1)}
    for turn, n in zip(turns, place, strict=True):
        groups[int(n)].append(turn)
    return tuple(
        Group.of(f"{datetime.fromtimestamp(n * width, zone) - offset:{form}}", group)
        for n, group in groups.items()
    )


def _providers(turns: Sequence[LoggedTurn]) -> tuple[ProviderFigures, ...]:
    sent: dict[str, list[AttemptReport]] = {}
    for turn in turns:
        for attempt in turn.sent:
            sent.setdefault(attempt.provider, []).append(attempt)
    figures = [
        ProviderFigures(
            name,
            len(mine),
            dict(Counter(a.launch_reason for a in mine)),
            dict(Counter(a.outcome for a in mine)),
            attempt_waits(mine),
            _usd(mine),
        )
        for name, mine in sent.items()
    ]
    return tuple(sorted(figures, key=lambda p: (-p.reasons.get("primary", 0), -p.requests)))


def _objectives(log: Log, slo: Slo | None) -> tuple[ObjectiveResult, ...]:
    if slo is None:
        return ()
    verdicts: dict[tuple[Objective, str | None], list[bool | None]] = {}
    objectives: tuple[Literal["ttft", "ttfs"], ...] = ("ttft", "ttfs")
    for turn in log.turns:
        for objective in objectives:
            if (limit := slo.within(objective)) is not None:
                verdict = classify_llm(objective, limit, turn.report)
                verdicts.setdefault((objective, turn.report.tier), []).append(verdict)
    if (limit := slo.voice_to_voice_secs) is not None and log.voice_turns:
        verdicts["voice_to_voice", None] = [
            classify_wait(
                limit,
                turn.secs if turn.answered else None,
                turn.secs,
                is_cut=not turn.answered,
                is_degraded=False,
            )
            for turn in log.voice_turns
        ]
    results = list[ObjectiveResult]()
    for (objective, tier), each in verdicts.items():
        limit, known = slo.within(objective) or 0.0, [v for v in each if v is not None]
        result = ObjectiveResult(objective, tier, limit, slo.share, sum(known), len(known))
        results.append(result)
    return tuple(results)


def _replayed(
    turns: Sequence[LoggedTurn], slo: Slo | None, progress: Callable[[str, float], None]
) -> Answer | None:
    """Replay other policies and the log's own; None if that is unknown."""
    names = Counter(a.provider for turn in turns for a in turn.sent[:1])
    known = Counter(turn.policy for turn in turns if turn.policy is not None)
    if not names or not known:
        return None
    first, policy = names.most_common(1)[0][0], known.most_common(1)[0][0]
    nexts = Counter(a.provider for turn in turns for a in turn.sent[1:] if a.provider != first)
    recent = turns[-SAMPLED:]
    question = Question(
        first=first,
        second=nexts.most_common(1)[0][0] if nexts else None,
        attempts=max(policy.max_attempts, 2),
        budgets=BUDGETS,
        deadline_secs=None if slo is None else slo.ttft_secs,
        max_turns=REPLAYED,
        others=((AS_LOGGED, policy),),
    )
    try:
        recorded = recorded_from(turn.report for turn in recent if turn.sent)
        return what_if(recorded, question, progress=progress)
    except ReadingError:  # one of the providers never answered
        return None


def _hedging(turns: Sequence[LoggedTurn], answer: Answer | None) -> Hedging:
    sent = [a for turn in turns for a in turn.sent]
    hedges = [a for a in sent if a.launch_reason == "hedge"]
    with_requests = sum(bool(turn.sent) for turn in turns)
    counted = Hedging(
        len(hedges),
        sum(a.outcome == "won" for a in hedges),
        sum(a.launch_reason in ("failure", "silence", "stall") for a in sent),
        len(sent) / with_requests - 1 if with_requests else 0.0,
        _usd([a for a in sent if a.outcome == "superseded"]),
    )
    if answer is None:
        return counted
    plain_ones = [o for o in answer.policies if o.policy.startswith(("no hedging", "fallback("))]
    mine, bare = answer.outcome(AS_LOGGED), plain_ones[-1]
    found = counted
    for name in ("p99", "p95")[answer.turns < P99_TURNS :]:
        both = [o.at_least.get(name, o.percentiles[name]) for o in (mine, bare)]
        # A lower bound is enough if it exceeds the other figure.
        known = name not in mine.at_least and (name not in bare.at_least or both[1] > both[0])
        found = replace(
            counted, percentile=name, with_secs=both[0], without_secs=both[1], is_known=known
        )
        if known:
            break
    return found


def _compared(turns: Sequence[LoggedTurn], others: Sequence[LoggedTurn]) -> Iterable[Difference]:
    """Compare each figure of both logs, with its bootstrap interval."""
    both = [_resampled(each[-COMPARED_TURNS:], seed) for seed, each in enumerate((turns, others))]
    for (name, unit, mine, enough), (_, _, theirs, other_enough) in zip(*both, strict=True):
        values = [None if np.isnan(each[0]) else float(each[0]) for each in (mine, theirs)]
        interval, verdict = None, "unknown" if None in values else "too few turns"
        if enough and other_enough and None not in values:
            low, high = (float(v) for v in np.nanquantile((mine - theirs)[1:], (0.025, 0.975)))
            interval = Interval(low, high)
            verdict = "differs" if low > 0 or high < 0 else "no difference shown"
        yield Difference(name, unit, values[0], values[1], interval, verdict)


_Figure: TypeAlias = tuple[str, str, Floats, bool]
"""A figure's name, unit, value followed by those of resampled logs, and if it has enough turns."""


def _resampled(turns: Sequence[LoggedTurn], seed: int) -> Iterable[_Figure]:
    bootstrap = Bootstrap(len(turns), np.random.default_rng(seed))
    each = np.ones(len(turns))
    weights = np.stack([each, *(bootstrap.draw() for _ in range(RESAMPLES))])
    ttft = np.array([np.nan if (s := t.report.ttft_secs) is None else s for t in turns])
    order = np.argsort(ttft)[: np.count_nonzero(~np.isnan(ttft))]  # NaN comes last
    reached = np.cumsum(weights[:, order], axis=1)
    for p in (0.5, 0.95, 0.99):
        waits = np.full(RESAMPLES + 1, np.nan)
        if order.size:
            index = (reached < p * reached[:, -1:] - 1e-9).sum(axis=1)
            waits = ttft[order[np.minimum(index, order.size - 1)]]
        enough = order.size * (1 - p) >= MIN_BEYOND - 1e-9
        yield f"first token, p{100 * p:.0f}", "secs", waits, enough
    whole = np.array([float(turn.succeeded) for turn in turns])
    gone = np.array([float(turn.given_up) for turn in turns])
    sent = np.array([float(len(turn.sent)) for turn in turns])
    costs = np.array([sum(math.nan if a.usd is None else a.usd for a in t.sent) for t in turns])
    for name, unit, above, below in (
        ("complete answers", "share", whole, each),
        ("given up before the first token", "share", gone, each),
        ("requests per turn", "requests", sent, each),
        ("cost of an answered turn", "usd", costs, whole),
    ):
        total = weights @ below
        ratio = np.divide(weights @ above, total, out=np.full(len(total), np.nan), where=total > 0)
        yield name, unit, ratio, len(turns) >= MIN_TURNS


def _sooner(log: Log) -> list[str]:
    """Say what was answered without a request, and what was withdrawn."""
    known = Counter(turn.report.known_answer for turn in log.turns if turn.report.known_answer)
    lines = [f"{count(known[name], 'answer')} from {name}, without a request" for name in known]
    if log.withdrawn:
        lines.append(f"{count(log.withdrawn, 'speculative turn')} withdrawn, left out here")
    return [f"{line}." for line in lines]


def _headline(
    all_turns: Group,
    objectives: Sequence[ObjectiveResult],
    incidents: Sequence[Incident],
    hedging: Hedging,
    answer: Answer | None,
    zone: tzinfo | None,
) -> Iterable[str]:
    ttft = all_turns.ttft
    waited = f"{_wait(ttft.p50)} (p50), {_wait(ttft.p95)} (p95), {_wait(ttft.longest)} at most"
    yield f"{count(all_turns.turns, 'turn')}: callers waited {waited} for the first token."
    if all_turns.unanswered or ttft.cut_short:
        yield (
            f"{count(all_turns.unanswered, 'turn')} had no complete answer; callers gave up on "
            f"{count(ttft.cut_short)}."
        )
    missed = [p for p in objectives if p.turns and p.met < p.target * p.turns]
    if missed:
        worst = min(missed, key=lambda p: p.met / p.turns - p.target)
        more = f", and {len(missed) - 1} more" if len(missed) > 1 else ""
        yield f"SLO missed: {_objective_text(worst)}{more}."
    for incident in incidents[:3]:
        yield f"{_incident(incident, zone)}."
    yield f"{_bought(hedging)}."
    if answer is not None:
        yield f"Recommended policy: {_recommended(answer)}."


def _objective_text(result: ObjectiveResult) -> str:
    met = result.met / result.turns if result.turns else None
    return (
        f"{OBJECTIVES[result.objective]} within {result.limit_secs:g} s for "
        f"{result.tier or 'all callers'}, in {share(met)} of turns instead of "
        f"{100 * result.target:g} %"
    )


def _incident(incident: Incident, zone: tzinfo | None) -> str:
    """Describe an incident and its cost."""
    when = f"in turns {incident.first_turn} to {incident.last_turn}"
    if incident.begin_at is not None:
        when = between(incident.begin_at, incident.end_at, zone)
    if incident.kind == "failing":
        failures = ", ".join(
            f"{n} {name.replace('_', ' ')}" for name, n in incident.failures.items()
        )
        what = f"{incident.bad} of {incident.requests} requests failed or were slow ({failures})"
    else:
        what = f"p50 {_wait(incident.p50)} instead of {_wait(incident.usual_p50)}"
    costs = list[str]()
    if (incident.extra_wait_secs or 0.0) > 0:
        costs.append(
            f"{secs(incident.extra_wait_secs)} of waiting in {count(incident.turns, 'turn')}"
        )
    if lost := incident.unanswered + incident.given_up:
        costs.append(f"{count(lost, 'turn')} without a complete answer")
    if incident.extra_requests >= 1:
        costs.append(f"{count(incident.extra_requests, 'request')} more")
    if (incident.extra_usd or 0.0) > 0:
        costs.append(usd(incident.extra_usd))
    cost = f"Cost: {', '.join(costs)}" if costs else "No effect on callers"
    return f"{incident.provider} was {incident.kind} {when}: {what}. {cost}"


def _bought(hedging: Hedging) -> str:
    """Describe the effect of hedging, in one figure."""
    if not hedging.hedges:
        return "No turn was hedged"
    text = f"{count(hedging.hedges, 'hedge')}, {share(hedging.extra_requests)} more requests"
    if hedging.with_secs is None or hedging.without_secs is None:
        return text
    if not hedging.is_known:
        return f"{text}; the effect is unknown: hedges cancelled the slow requests"
    return (
        f"Hedging: {hedging.percentile} {secs(hedging.with_secs)} instead of "
        f"{secs(hedging.without_secs)} (replayed), for {share(hedging.extra_requests)} more "
        "requests"
    )


def _recommended(answer: Answer) -> str:
    mine, chosen = answer.outcome(AS_LOGGED), answer.outcome(answer.recommended)
    interval, more = chosen.intervals["p95"], chosen.extra_requests - mine.extra_requests
    if interval.low <= mine.percentiles["p95"] <= interval.high and abs(more) < SAME_REQUESTS:
        return "keep the one of the log"
    return (
        f"{answer.recommended}. p95 {secs(chosen.percentiles['p95'])} instead of "
        f"{secs(mine.percentiles['p95'])} with the policy of the log, "
        f"{share(chosen.extra_requests)} more requests instead of {share(mine.extra_requests)}"
    )


def summary_of(report: Report, zone: tzinfo | None = None, width: int = 80) -> str:
    """Format the report for a terminal.

    Args:
        report: The report.
        zone: The time zone; None is the local one.
        width: Columns of the terminal.
    """
    lines = [paragraph(f"- {each}", width, "  ") for each in report.headline]
    if report.caveat:
        lines.append(paragraph(f"- {report.caveat}", width, "  "))
    tables = [_waits_table(report), _providers_table(report)]
    if report.objectives:
        tables.append(_objectives_table(report))
    if report.comparison:
        tables.append(_comparison_table(report))
    for title, heads, rows in tables:
        lines += [
            "",
            title,
            text_table(heads, rows, width, ("difference (95 %)", "first", "cost", "p99")),
        ]
    lines += ["", "Slowest turns"]
    lines += [
        paragraph(
            f"{secs(turn.waited_secs, at_least=turn.given_up)}: {turn.explanation}", width, "  "
        )
        for turn in report.slowest[:3]
    ]
    if report.skipped:
        skips = f"{count(report.skipped, 'line')} skipped: {'; '.join(report.named_skips)}"
        lines += ["", paragraph(skips, width, "  ")]
    return "\n".join(lines)


_Table: TypeAlias = tuple[str, list[str], list[list[str]]]


def _waits_table(report: Report) -> _Table:
    rows = [
        [f"first token, {group.name}", count(group.turns), *_percentiles(group.ttft)]
        for group in (
            [report.all_turns] if len(report.tiers) < 2 else [report.all_turns, *report.tiers]
        )
    ]
    for name, waits in (("first sentence", report.ttfs), ("voice to voice", report.voice_to_voice)):
        if waits.count:
            rows.append([name, count(waits.count), *_percentiles(waits)])
    return "How long callers waited", ["", "turns", "p50", "p95", "p99", "longest"], rows


def _providers_table(report: Report) -> _Table:
    rows = [
        [
            p.provider,
            count(p.requests),
            count(p.reasons.get("primary", 0)),
            count(p.outcomes.get("won", 0)),
            count(p.outcomes.get("failed", 0)),
            *_percentiles(p.ttft)[:3],
            usd(p.usd),
        ]
        for p in report.providers
    ]
    heads = ["provider", "requests", "first", "won", "failed", "p50", "p95", "p99", "cost"]
    return "Providers", heads, rows


def _objectives_table(report: Report) -> _Table:
    rows = [
        [
            f"{OBJECTIVES[p.objective]} ≤ {p.limit_secs:g} s, {p.tier or 'all callers'}",
            f"{100 * p.target:g} %",
            share(p.met / p.turns if p.turns else None),
            f"{p.met:,} of {p.turns:,}",
        ]
        for p in report.objectives
    ]
    return "Service level objectives", ["", "target", "met", "turns"], rows


def _comparison_table(report: Report) -> _Table:
    units = {"secs": secs, "share": share, "usd": usd}
    rows = [
        [
            each.name,
            *(units.get(each.unit, _ratio)(value) for value in (each.this, each.other)),
            _range(each.interval, units.get(each.unit, _ratio)),
            each.verdict,
        ]
        for each in report.comparison
    ]
    return (
        f"Compared with {', '.join(report.other_files)}",
        ["", "this", "other", "difference (95 %)", "result"],
        rows,
    )


def _percentiles(waits: Waits) -> list[str]:
    return [_wait(each) for each in (waits.p50, waits.p95, waits.p99, waits.longest)]


def _wait(quantile: Quantile | None) -> str:
    return UNKNOWN if quantile is None else secs(quantile.secs, at_least=quantile.at_least)


def _range(interval: Interval | None, shown: Callable[[float], str]) -> str:
    if interval is None:
        return UNKNOWN
    low, high = (("-" if v < 0 else "+") + shown(abs(v)) for v in (interval.low, interval.high))
    return f"{low} to {high}"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def page_of(report: Report, zone: tzinfo | None = None) -> str:
    """Render the report as one HTML page without scripts, other files or addresses.

    Args:
        report: The report.
        zone: The time zone; None is the local one.

    Raises:
        ConfigurationError: If jinja2 is not installed.
    """
    environment = templates("pipecat_hedge.tools.analysis", "out", "tools")
    environment.filters |= {"secs": secs, "share": share, "usd": usd, "count": count}
    return environment.get_template("report.html").render(
        report=report,
        when=between(report.begin_at, report.end_at, zone),
        tables={
            "waits": _waits_table(report),
            "providers": _providers_table(report),
            "objectives": _objectives_table(report),
            "comparison": _comparison_table(report),
        },
        periods=[(g, _percentiles(g.ttft)) for g in report.periods if g.turns],
        slowest_secs=max((g.ttft.p95.secs for g in report.periods if g.ttft.p95), default=1.0),
        incidents=[_incident(each, zone) for each in report.incidents],
        bought=_bought(report.hedging),
        recommended="" if report.whatif is None else _recommended(report.whatif),
        whatif="" if report.whatif is None else show(report.whatif, 100),
        clock=lambda at: f"{datetime.fromtimestamp(at, zone):%H:%M:%S}",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="turn logs (HedgedLLMService(turn_log=...)), and logs of voice-to-voice times "
        "(TurnLatencyObserver(log=...))",
    )
    add("--out", type=Path, metavar="PAGE", help="write an HTML page there")
    add("--against", action="append", metavar="FILE", help="compare with this log; repeatable")
    for name, what in OBJECTIVES.items():
        option = f"--slo-{name.replace('_', '-')}"
        add(option, type=float, metavar="SECS", help=f"SLO: {what} within this time")
    add("--slo-share", type=float, metavar="SHARE", default=0.95, help="of turns (default 0.95)")
    add("--tz", metavar="ZONE", help="time zone, such as Europe/Paris (default: local)")
    add("--no-replay", action="store_true", help="do not replay other policies; faster")
    add("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Print and write the report.

    Raises:
        HedgeError: If it cannot be made.
    """
    zone = _zone(args.tz)
    limits = (args.slo_ttft, args.slo_ttfs, args.slo_voice_to_voice)
    slo = None if limits == (None, None, None) else Slo(*limits, share=args.slo_share)
    if args.out is not None and not args.out.parent.is_dir():
        raise ConfigurationError(f"out: there is no folder {args.out.parent}: create it first")
    with progress_bar() as bar:
        task = bar.add_task("reading", total=1.0)
        report = report_of(
            read_logs(args.files),
            slo=slo,
            zone=zone,
            against=read_logs(args.against) if args.against else None,
            replay=not args.no_replay,
            progress=lambda what, done: bar.update(task, description=what, completed=done),
        )
    if args.out is not None:
        try:
            args.out.write_text(page_of(report, zone), encoding="utf-8")
        except OSError as e:
            raise ConfigurationError(f"out: {args.out} cannot be written: {e.strerror}") from e
    if args.json:
        print_json(report, version=2)
        return 0
    print(summary_of(report, zone, terminal_width()))
    if args.out is not None:
        print(f"\npage: {args.out}")
    return 0


def _zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"tz: {name!r} is not a time zone: write one such as UTC"
        ) from None
