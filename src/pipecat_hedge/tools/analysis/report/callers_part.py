"""The page's part on callers: what they heard, whether promises were kept, two logs compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, tzinfo
from html import escape

from pipecat_hedge.tools.analysis.report.charts import (
    Axis,
    Bar,
    Line,
    LogScale,
    bars,
    chart,
    legend,
    log_axis,
    nines_axis,
)
from pipecat_hedge.tools.analysis.report.comparing import Comparison, Difference
from pipecat_hedge.tools.analysis.report.figures import Figures, Moment
from pipecat_hedge.tools.analysis.report.headlines import (
    EVERYBODY,
    OBJECTIVES,
    difference_told,
    estimate,
    estimates_told,
    given_up_changes,
    waits_told,
)
from pipecat_hedge.tools.analysis.report.periods import Period
from pipecat_hedge.tools.analysis.report.promises import TierPromise
from pipecat_hedge.tools.analysis.report.tables import cards, table
from pipecat_hedge.tools.analysis.report.waits import CurvePoint, Estimates, Waits
from pipecat_hedge.tools.analysis.report.wording import UNKNOWN, between, count, secs, share, usd

__all__ = ["callers_part", "comparison_part", "curve_line"]

MOST_TIMES = 4
"""So many times of day fit below a chart on a telephone."""


def callers_part(figures: Figures, zone: tzinfo | None) -> str:
    """What callers heard, and whether promises were kept.

    Args:
        figures: The figures.
        zone: The time zone of hours.
    """
    heard = figures.heard
    names = ("p50, to the first token", "p95", "p99", "slowest")
    shown: list[tuple[str, str]] = [
        *zip(map(estimate, estimates_told(heard.ttft_all)), names, strict=True)
    ]
    shown.append((share(heard.successes / heard.turns), "answered to the end"))
    if heard.given_up.count:
        shown.append((count(heard.given_up.count), "given up by the caller before the first token"))
    rows = [
        row
        for name, waits, counted in (
            ("first token (TTFT), from when the LLM was asked", heard.ttft, heard.ttft_all),
            (
                "first sentence (TTUA: time to a usable answer), from then",
                heard.ttfs,
                heard.ttfs_all,
            ),
            (
                "voice to voice: the answer’s first sound, from the caller’s last",
                heard.voice_to_voice,
                heard.voice_to_voice_all,
            ),
        )
        for row in _waits_rows(name, waits, counted)
    ]
    notes = list[str]()
    if not heard.voice_to_voice.count:
        notes.append(
            "Voice to voice is not known from a turn log: give the log of a "
            "TurnLatencyObserver(log=…) as well."
        )
    if heard.ttfs_unknown:
        notes.append(f"{count(heard.ttfs_unknown)} lines do not tell the first sentence.")
    outcomes = ", ".join(
        f"{count(number)} {name.replace('_', ' ')}" for name, number in heard.outcomes.items()
    )
    notes.append(f"Turns: {outcomes}; {count(heard.degraded)} with the fallback text.")
    heads = ["how long to the", "turns", "p50", "p95", "p99", "slowest", "mean"]
    return (
        f'<h2 id="callers">What callers heard</h2>{cards(shown)}'
        f"{table(heads, rows, 'how long callers waited')}"
        f'<p class="about">{escape(" ".join(notes))}</p>'
        f'<div class="two">{_curves(figures)}{_over_time(figures, zone)}</div>'
        f"{_promises(figures.promises, zone)}"
    )


def comparison_part(comparison: Comparison) -> str:
    """Two logs side by side.

    Args:
        comparison: What differs.
    """
    least = min(comparison.turns, comparison.other_turns)
    rows = [
        [
            each.name,
            _value(each, each.of_this),
            _value(each, each.of_other),
            _signed(each, each.delta),
            UNKNOWN
            if each.low is None or each.high is None
            else f"{_signed(each, each.low)} to {_signed(each, each.high)}",
            difference_told(each, least),
        ]
        for each in comparison.differences
    ]
    others = ", ".join(comparison.other_files)
    drawn = " and ".join(dict.fromkeys(comparison.drawn))
    heads = ["", "this log", "the other", "difference", "in 19 of 20 such pairs", "so it is"]
    return (
        f'<h2 id="compared">Compared with {escape(others)}</h2>'
        f'<p class="about">{comparison.turns:,} turns here, {comparison.other_turns:,} there. '
        f"Intervals are a bootstrap’s, of {drawn}. Of twenty figures that do not differ, one "
        "will seem to. Other days, callers and loads are differences too.</p>"
        f"{table(heads, rows, 'figures of both logs', words=(5,), broad=(4,))}"
    )


def curve_line(
    name: str, points: Sequence[CurvePoint], x: LogScale, nines: float, kind: int
) -> Line:
    """A curve of waits, the tail drawn large.

    Args:
        name: What the legend calls it.
        points: The curve.
        x: The places of times.
        nines: How many nines of a share the chart is high.
        kind: Its colour and dashes.
    """
    drawn = [
        (x(p.secs), min(-math.log10(1 - p.share) / nines, 1.0) if p.share < 1 else math.nan)
        for p in points
    ]
    return Line(name, drawn, kind)


def _waits_rows(name: str, waits: Waits, counted: Estimates) -> list[list[str]]:
    known = count(waits.count) if waits.count else UNKNOWN
    rows = [[name, known, *map(secs, waits_told(waits)), secs(waits.mean_secs)]]
    if given_up_changes(waits, counted):
        told = map(estimate, estimates_told(counted))
        rows.append(["the same, counting those given up", UNKNOWN, *told, UNKNOWN])
    return rows


def _curves(figures: Figures) -> str:
    heard = figures.heard
    named = [("first token", heard.ttft_curve), ("first sentence", heard.ttfs_curve)]
    named = [(name, points) for name, points in named if points]
    if not named:
        return ""
    x, across = log_axis([p.secs for _, points in named for p in points], "seconds (logarithmic)")
    nines, up = nines_axis(heard.turns, "share of turns that had it by then")
    lines = [curve_line(name, pts, x, nines, kind) for kind, (name, pts) in enumerate(named)]
    slo = figures.slos.get("all")
    marks = [] if slo is None or slo.ttft_secs is None else [x(slo.ttft_secs)]
    names = [(f"k{line.kind}", line.name) for line in lines]
    if slo is not None and marks:
        names.append(("mark", f"promised: first token within {slo.ttft_secs:g} s"))
    told = "the share of turns whose first token and first sentence had come, over time"
    return (
        "<figure><figcaption>How long callers waited</figcaption>"
        f"{legend(names)}{chart(lines, across, up, told, marks=marks)}</figure>"
    )


def _over_time(figures: Figures, zone: tzinfo | None) -> str:
    moments = figures.heard.over_time
    known = [m for m in moments if m.ttft_all.p50 is not None]
    if len(known) < 2:
        return ""
    y, up = log_axis(
        [e.secs for m in known for e in (m.ttft_all.p50, m.ttft_all.p95) if e is not None],
        "time to first token, seconds (logarithmic)",
    )
    width = 1 / len(moments)

    def line(name: str, kind: int) -> Line:
        points = [
            (n * width, math.nan if value is None else y(value.secs))
            for n, moment in enumerate(moments)
            for value in (getattr(moment.ttft_all, name),)
        ]
        return Line(name, [*points, (1.0, points[-1][1])], kind, is_step=True)

    begin, span = moments[0].period.begin, len(moments) * moments[0].period.secs
    bands = [
        ((spell.begin_at - begin) / span, (spell.end_at - begin) / span)
        for spell in figures.spells
        if spell.begin_at is not None and spell.end_at is not None
    ]
    names = [("k0", "p50"), ("k1", "p95")]
    if bands:
        who = ", ".join(dict.fromkeys(spell.provider for spell in figures.spells))
        names.append(("band", f"slow or failing: {who}"))
    told = "median and p95 of the time to the first token, over the time of day"
    return (
        f"<figure><figcaption>When: {_width(moments[0].period)} at a time</figcaption>"
        f"{legend(names)}"
        f"{chart([line('p50', 0), line('p95', 1)], _times(moments, zone), up, told, bands=bands)}"
        "</figure>"
    )


def _times(moments: Sequence[Moment] | Sequence[Period], zone: tzinfo | None) -> Axis:
    periods = [m.period if isinstance(m, Moment) else m for m in moments]
    is_days = len(periods) * periods[0].secs > 2 * 86400
    begins = [datetime.fromtimestamp(p.begin, zone) for p in periods]
    places = [n for n, begin in enumerate(begins) if not is_days or begin.hour == 0]
    step = max(math.ceil(len(places) / MOST_TIMES), 1)
    written = "%m-%d" if is_days else "%H:%M"
    ticks = [(n / len(periods), begins[n].strftime(written)) for n in places[::step]]
    return Axis("day" if is_days else "time of day", tuple(ticks))


def _width(period: Period) -> str:
    for secs_, name in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if period.secs >= secs_:
            number = period.secs / secs_
            return f"{number:.3g} {name}{'' if number == 1 else 's'}"
    return f"{period.secs:.0f} seconds"


def _promises(promises: Sequence[TierPromise], zone: tzinfo | None) -> str:
    if not promises:
        return ""
    rows = [
        [
            f"{OBJECTIVES[p.objective]}, {p.tier or EVERYBODY}",
            f"≤ {p.limit_secs:g} s",
            f"{100 * p.target:g} %",
            share(p.overall.share),
            UNKNOWN if p.is_kept is None else "kept" if p.is_kept else "broken",
            count(p.overall.told),
            share(p.budget_left, 0),
            _burnt(p, zone),
            _worst(p, zone),
        ]
        for p in promises
    ]
    heads = [
        *("promise", "limit", "promised", "kept", "so it was", "turns that tell"),
        *("error budget left", "worst burn in an hour", "worst"),
    ]
    strips = "".join(_strip(p, zone) for p in promises if len(p.by_period) > 1)
    return (
        '<h3 id="promises">What was promised</h3>'
        '<p class="about">A turn that failed, or ended with the fallback text, has broken its '
        "promise; one that the caller interrupted before the time was up says nothing. The error "
        "budget is the share of turns that may miss it, here of the whole log; a burn of 1 spends "
        "it exactly, below 0 % it is overspent.</p>"
        f"{table(heads, rows, 'promises', words=(7, 8))}"
        + (
            "<h3>When it was broken</h3>"
            + legend(
                [
                    ("fine", "within what was promised"),
                    ("bad", "more than was promised"),
                    ("mark", "what may miss it"),
                ]
            )
            + f'<div class="two">{strips}</div>{_by_time(promises, zone)}'
            if strips
            else ""
        )
    )


def _by_time(promises: Sequence[TierPromise], zone: tzinfo | None) -> str:
    """The same in figures, for whoever wants to read them."""
    told = [promise for promise in promises if promise.by_period]
    heads = ["when", *(f"{OBJECTIVES[p.objective]}, {p.tier or EVERYBODY}" for p in told)]
    rows = [
        [
            between(period.begin, period.begin + period.secs, zone),
            *(f"{share(p.by_period[n][1].share, 0)} of {p.by_period[n][1].told}" for p in told),
        ]
        for n, (period, _) in enumerate(told[0].by_period)
    ]
    return (
        "<details><summary>In figures: the share of turns that kept it</summary>"
        f"{table(heads, rows, 'promises over the time of day')}</details>"
    )


def _worst(promise: TierPromise, zone: tzinfo | None) -> str:
    if promise.worst is None:
        return UNKNOWN
    period, least = promise.worst
    return f"{share(least.share, 0)}, {between(period.begin, period.begin + period.secs, zone)}"


def _burnt(promise: TierPromise, zone: tzinfo | None) -> str:
    if (burn := promise.worst_burn) is None:
        return UNKNOWN
    return f"{burn.times:.1f} ×, {between(burn.begin_at, burn.end_at, zone)}"


def _strip(promise: TierPromise, zone: tzinfo | None) -> str:
    width = 1 / len(promise.by_period)
    drawn = [
        Bar(
            n * width,
            width,
            max(1 - kept.share, 0.01),
            kept.share < promise.target,
            f"{between(period.begin, period.begin + period.secs, zone)}: "
            f"{kept.told - kept.kept} of {kept.told} missed it",
        )
        for n, (period, kept) in enumerate(promise.by_period)
        if kept.share is not None
    ]
    name = f"{OBJECTIVES[promise.objective]} within {promise.limit_secs:g} s"
    up = Axis("share of turns that missed it", ((0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %")))
    told = f"the share of turns that missed {name}, over the time of day"
    return (
        f"<figure><figcaption>{escape(name)}, {escape(promise.tier or EVERYBODY)}</figcaption>"
        + bars(
            drawn,
            _times([period for period, _ in promise.by_period], zone),
            up,
            told,
            level=1 - promise.target,
        )
        + "</figure>"
    )


def _value(difference: Difference, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if difference.unit == "secs":
        return secs(value)
    if difference.unit == "share":
        return share(value)
    return usd(value) if difference.unit == "usd" else f"{value:.3f}"


def _signed(difference: Difference, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    sign = "−" if value < 0 else "+"
    if difference.unit == "share":
        return f"{sign}{100 * abs(value):.1f} points"
    if difference.unit == "secs" and abs(value) < 0.1:
        return f"{sign}{1000 * abs(value):.0f} ms"
    return f"{sign}{_value(difference, abs(value))}"
