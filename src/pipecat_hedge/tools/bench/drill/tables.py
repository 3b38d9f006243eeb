"""A drill's figures as a table, on the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.table import Table

from pipecat_hedge.tools.bench.drill.figures import Figures
from pipecat_hedge.tools.bench.drill.plans import Drill

__all__ = ["LEGEND", "as_markdown", "as_table"]

LEGEND = """\
turns: begun and ended while measured. degraded: heard the fallback text, alone or after a part of
an answer. lost: heard neither an answer to its end nor that within 30 s. p50, p95, p99: time to
first token of the answered turns from the event to the return (or the end); degraded p95: to the
first text. premium p95: of the premium callers, one in ten, from 10 s after the event on; at once:
the same from the event on; a dash where over one in twenty of their turns had no answer.
requests: a turn, as they left the callers, those to a provider that refuses connections included.
worst: where they were most, over as many seconds as it took for 150 turns to send their first, and
without those that replaced a failed request. broken gets: what the broken provider was sent from
10 s after the event to its return, of its usual. noticed: seconds from the event until it was sent
under 2 % of its usual; where nobody can be left alone, until the p95 was back within 1.5 times the
usual. recovered: seconds from its return until it was sent 90 % of its usual. load: the most that
arrived there after its return, in units of the usual. machine: processors in use, median and
highest second, and what of it the drill used itself; lag: of the workers' event loops, p95 and
highest."""

_NEVER = "-"


def _count(value: int) -> str:
    return f"{value:,}"


def _wait(secs: float | None) -> str:
    if secs is None or math.isinf(secs):
        return _NEVER
    return f"{1000 * secs:.0f} ms" if secs < 1 else f"{secs:.2f} s"


def _secs(secs: float | None) -> str:
    if secs is None:
        return _NEVER
    return f"{secs:.0f} s" if secs >= 1 else "< 1 s"


def _number(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.1%}"


def _percent(share: float | None) -> str:
    return _NEVER if share is None else f"{share:.0%}"


def _pair(values: tuple[float | None, float | None], shown: Callable[[float | None], str]) -> str:
    return ", ".join(map(shown, values))


_COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("drill", lambda f: f.drill),
    ("variant", lambda f: f.variant),
    ("turns", lambda f: _count(f.turns)),
    ("answered", lambda f: _count(f.answered)),
    ("degraded", lambda f: _count(f.degraded)),
    ("lost", lambda f: _count(f.lost)),
    ("p50", lambda f: _wait(f.p50_secs)),
    ("p95", lambda f: _wait(f.p95_secs)),
    ("p99", lambda f: _wait(f.p99_secs)),
    ("degraded p95", lambda f: _wait(f.degraded_p95_secs)),
    ("premium p95", lambda f: _wait(f.premium_p95_secs)),
    ("at once", lambda f: _wait(f.premium_at_once_p95_secs)),
    ("requests", lambda f: _number(f.requests_per_turn)),
    ("worst", lambda f: f"{_number(f.worst_requests_per_turn)} ({f.stretch_secs} s)"),
    ("broken gets", lambda f: _share(f.broken_share)),
    ("noticed", lambda f: _secs(f.notice_secs)),
    ("recovered", lambda f: _secs(f.recover_secs)),
    ("load", lambda f: _number(f.load_after)),
    ("machine", lambda f: _pair(f.cpu_share, _percent)),
    ("drill's own", lambda f: _pair(f.own_share, _percent)),
    ("lag", lambda f: _pair(f.lag_secs, _wait)),
)

_LEFT_OUT = ("answered", "degraded p95", "machine", "drill's own", "lag")
"""What would make the table in Markdown too wide to read; it follows from the rest or is below."""


def as_table(drill: Drill, told: Sequence[Figures]) -> Table:
    """The variants of a drill side by side, a column each.

    Args:
        drill: The drill.
        told: The figures, one a variant.
    """
    table = Table(title=f"{drill.name}: {drill.summary}", title_justify="left")
    table.add_column("")
    for figures in told:
        table.add_column(figures.variant, justify="right", no_wrap=True)
    for name, shown in _COLUMNS[2:]:
        table.add_row(name, *map(shown, told))
    return table


def as_markdown(told: Sequence[Figures]) -> str:
    """All figures as one table in Markdown, a line each, and how busy the machine was below it.

    Args:
        told: The figures, by drill and variant.
    """
    columns = [column for column in _COLUMNS if column[0] not in _LEFT_OUT]
    names = [name for name, _ in columns]
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    last = ""
    for figures in told:
        cells = [shown(figures) for _, shown in columns]
        if cells[0] == last:
            cells[0] = ""
        else:
            last = cells[0]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _machine(told), ""])


def _machine(told: Sequence[Figures]) -> str:
    """How busy the machine was, in the run where it was busiest."""
    busy, own, lag = (
        max((value for value in values if value is not None), default=None)
        for values in (
            [f.cpu_share[0] for f in told],
            [f.own_share[0] for f in told],
            [f.lag_secs[0] for f in told],
        )
    )
    return (
        f"The machine was {_percent(busy)} busy at most (median of a run's seconds), "
        f"{_percent(own)} by the drill itself; the workers' event loops were late by {_wait(lag)} "
        "at most (p95)."
    )
