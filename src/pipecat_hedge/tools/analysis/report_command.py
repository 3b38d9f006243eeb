"""``pipecat-hedge report``: shows a report in a terminal, as a page or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.table import Table

from pipecat_hedge.policy import Slo
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.incidents import Incident
from pipecat_hedge.tools.analysis.report import AS_LOGGED, Hedging, Report, report_of
from pipecat_hedge.tools.analysis.slow_turns import Lane, SlowTurn
from pipecat_hedge.tools.analysis.statistics import Interval, Quantile, Waits
from pipecat_hedge.tools.analysis.turn_log import read_logs
from pipecat_hedge.tools.analysis.whatif_command import show
from pipecat_hedge.tools.formatting import (
    OBJECTIVES,
    UNKNOWN,
    TextTable,
    between,
    bullets,
    count,
    print_json,
    progress_bar,
    secs,
    share,
    templates,
    text_of,
    usd,
)


def headline(report: Report, zone: tzinfo | None = None) -> Iterator[str]:
    """Yield the most important results, a sentence each.

    Args:
        report: The report.
        zone: The time zone; None is the local one.
    """
    turns, ttft = report.all_turns, report.all_turns.ttft
    waited = f"{_wait(ttft.p50)} (p50), {_wait(ttft.p95)} (p95), {_wait(ttft.longest)} at most"
    yield f"{count(turns.turns, 'turn')}: callers waited {waited} for the first token."
    if turns.unanswered or ttft.cut_short:
        yield (
            f"{count(turns.unanswered, 'turn')} had no complete answer; callers gave up on "
            f"{count(ttft.cut_short)}."
        )
    if missed := report.missed:
        worst = missed[0]
        more = f", and {len(missed) - 1} more" if len(missed) > 1 else ""
        yield (
            f"SLO missed: {OBJECTIVES[worst.objective]} within {worst.limit_secs:g} s for "
            f"{worst.tier or 'all callers'}, in {share(worst.met / worst.turns)} of turns instead "
            f"of {100 * worst.target:g} %{more}."
        )
    for incident in report.incidents[:3]:
        yield f"{_incident(incident, zone)}."
    yield f"{_bought(report.hedging)}."
    if report.whatif is not None:
        yield f"Recommended policy: {_recommended(report)}."
    for name, number in report.known_answers.items():
        yield f"{count(number, 'answer')} from {name}, without a request."
    if report.withdrawn:
        yield f"{count(report.withdrawn, 'speculative turn')} withdrawn, left out here."


def caveat(report: Report) -> str:
    """Return the limitation of the figures, or nothing."""
    turns = count(report.all_turns.turns, "turn")
    verb = "is" if report.all_turns.turns == 1 else "are"
    few = f"{turns} {verb} too few for a p99: the percentiles are rough."
    return few if report.is_small else ""


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


def _recommended(report: Report) -> str:
    answer = report.whatif
    if answer is None:
        return ""
    if report.keeps_policy:
        return "keep the one of the log"
    mine, chosen = answer.outcome(AS_LOGGED), answer.outcome(answer.choice.policy)
    return (
        f"{chosen.policy}. p95 {secs(chosen.percentiles['p95'])} instead of "
        f"{secs(mine.percentiles['p95'])} with the policy of the log, "
        f"{share(chosen.extra_requests)} more requests instead of {share(mine.extra_requests)} "
        "(all replayed)"
    )


_REASONS = {
    "hedge": "hedge to ",
    "failure": "replacement ",
    "silence": "after a silence ",
    "stall": "continuation by ",
    "primary": "",
}
_ENDINGS = {
    "fallback": "the caller heard the fallback text",
    "given up": "the caller gave up",
    "unanswered": "the caller had no answer",
}
SOON_SECS = 0.05
"""Shorter times for a connection are left out."""


def explained(turn: SlowTurn) -> str:
    """Explain a slow turn, in a sentence without its full stop."""
    chain = [lane for lane in turn.lanes if lane.part is not None]
    parts = [_part(lane, number, turn) for number, lane in enumerate(chain)]
    if not chain:
        parts.append("no provider was available")
    if turn.ending is not None:
        parts.append(_ENDINGS[turn.ending])
    return "; ".join(parts)


def _part(lane: Lane, number: int, turn: SlowTurn) -> str:
    name = f"{_REASONS[lane.reason]}{lane.provider}"
    if number and lane.part != "unsent":
        name += f" launched at {secs(lane.launched_secs)}"
    opening = ""
    if lane.connecting_secs >= SOON_SECS:
        opening = f", {secs(lane.connecting_secs)} of it to open a connection"
    match lane.part:
        case "unsent":
            return f"{name}: no request was sent"
        case "answered" if number:
            return f"{name} won at {secs(turn.waited_secs)}{opening}"
        case "answered":
            times = ""
            if lane.times_usual is not None and lane.usual_secs is not None:
                times = f", {lane.times_usual:.1f} times its usual {secs(lane.usual_secs)}"
            return f"{name} took {secs(lane.part_secs)} to its first token{times}{opening}"
        case "failed":
            return f"{name} failed at {secs(lane.part_secs)} ({_category(lane)}){opening}"
        case "late":
            return f"{name} began at {secs(lane.part_secs)}, later"
        case "stalled":
            return f"{name} stalled {secs(lane.part_secs)} after headers{opening}"
        case _:
            return f"{name} was silent for {secs(lane.part_secs)}{opening}"


def _label(lane: Lane) -> str:
    outcome = f"failed, {_category(lane)}" if lane.category else lane.outcome
    return f"{lane.provider} · {lane.reason} · {outcome}"


def _category(lane: Lane) -> str:
    return (lane.category or "unknown").replace("_", " ")


def summary_of(report: Report, zone: tzinfo | None = None, width: int | None = None) -> str:
    """Format the report for a terminal.

    Args:
        report: The report.
        zone: The time zone; None is the local one.
        width: Columns; None is those of the terminal.
    """
    notes = [note for note in (*headline(report, zone), caveat(report)) if note]
    parts: list[str | TextTable | Table] = [bullets(notes)]
    for title, table in _tables(report).values():
        parts += ["", title, table]
    slowest = (f"{_waited(turn)}: {explained(turn)}" for turn in report.slowest[:3])
    parts += ["", "Slowest turns", bullets(slowest)]
    if report.skipped:
        skips = f"{count(report.skipped, 'line')} skipped: {'; '.join(report.named_skips)}"
        parts += ["", skips]
    return text_of(parts, width)


def _waited(turn: SlowTurn) -> str:
    return secs(turn.waited_secs, at_least=turn.given_up)


def _tables(report: Report) -> dict[str, tuple[str, TextTable]]:
    """Return each table with its title."""
    groups = [report.all_turns, *(report.tiers if len(report.tiers) > 1 else ())]
    waits = [(f"first token, {group.name}", group.turns, group.ttft) for group in groups]
    for name, each in (("first sentence", report.ttfs), ("voice to voice", report.voice_to_voice)):
        waits += [(name, each.count, each)] if each.count else []
    tables = {
        "waits": (
            "How long callers waited",
            ["", "turns", "p50", "p95", "p99", "longest"],
            [[name, count(turns), *_percentiles(each)] for name, turns, each in waits],
        ),
        "providers": (
            "Providers",
            ["provider", "requests", "first", "won", "failed", "p50", "p95", "p99", "cost"],
            [
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
            ],
        ),
    }
    if report.recognisers:
        rows = [
            [
                r.recogniser,
                count(r.utterances),
                share(r.rescued / r.utterances),
                *_percentiles(r.transcript),
            ]
            for r in report.recognisers
        ]
        heads = ["recogniser", "utterances", "rescued", "p50", "p95", "p99", "longest"]
        tables["recognisers"] = "Waits for transcripts", heads, rows
    if report.voices:
        rows = [
            [
                v.voice or "none",
                count(v.sentences),
                count(v.rescued),
                count(v.left_out),
                share(v.extra_characters),
                *_percentiles(v.first_sound),
                secs(v.silent_secs),
            ]
            for v in report.voices
        ]
        heads = ["voice", "sentences", "rescued", "left out", "extra", "p50", "p95", "p99"]
        tables["voices"] = "Waits for the first sound", [*heads, "longest", "longest gap"], rows
    if report.objectives:
        rows = [
            [
                f"{OBJECTIVES[o.objective]} ≤ {o.limit_secs:g} s, {o.tier or 'all callers'}",
                f"{100 * o.target:g} %",
                share(o.met / o.turns if o.turns else None),
                f"{o.met:,} of {o.turns:,}",
            ]
            for o in report.objectives
        ]
        tables["objectives"] = "Service level objectives", ["", "target", "met", "turns"], rows
    if report.comparison:
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
        title = f"Compared with {', '.join(report.other_files)}"
        tables["comparison"] = title, ["", "this", "other", "difference (95 %)", "result"], rows
    drop = ("difference (95 %)", "first", "cost", "p99")
    return {
        key: (title, TextTable(heads, rows, drop)) for key, (title, heads, rows) in tables.items()
    }


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
    environment.filters |= {"waited": _waited, "explained": explained, "label": _label}
    return environment.get_template("report.html").render(
        report=report,
        when=between(report.begin_at, report.end_at, zone),
        headline=[*headline(report, zone)],
        caveat=caveat(report),
        tables=_tables(report),
        periods=[(g, _percentiles(g.ttft)) for g in report.periods if g.turns],
        incidents=[_incident(each, zone) for each in report.incidents],
        bought=_bought(report.hedging),
        recommended=_recommended(report),
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
    add("--slo-share", type=float, metavar="SHARE", help="of turns (default 0.95)")
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
    share_of_turns = {} if args.slo_share is None else {"share": args.slo_share}
    if limits == (None, None, None) and share_of_turns:
        raise ConfigurationError("--slo-share needs a time, such as --slo-ttft 0.8")
    slo = None if limits == (None, None, None) else Slo(*limits, **share_of_turns)
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
        print_json(report, version=2, headline=[*headline(report, zone)], caveat=caveat(report))
        return 0
    print(summary_of(report, zone))
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
