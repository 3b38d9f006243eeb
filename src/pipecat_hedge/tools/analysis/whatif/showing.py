"""An answer for people, in a terminal, and for programs, as JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipecat_hedge.tools.analysis.whatif.answer import PERCENTILES, Answer, Outcome

__all__ = ["as_dict", "render", "show"]

VERSION = 1


def as_dict(answer: Answer) -> dict[str, Any]:
    """The answer as plain values; what never happened is None, not infinite.

    Args:
        answer: The answer.
    """
    plain = {
        field.name: getattr(answer, field.name)
        for field in dataclasses.fields(answer)
        if field.name not in ("outcomes", "draws")
    }
    return {
        "version": VERSION,
        **_finite(_asdict(plain)),
        "policies": [_finite(_outcome(outcome)) for outcome in answer.outcomes],
    }


def show(answer: Answer, console: Console) -> None:
    """Print the answer.

    Args:
        answer: The answer.
        console: Where to.
    """
    console.print(render(answer))


def render(answer: Answer) -> RenderableType:
    """The answer as a table with what there is to say about it.

    Args:
        answer: The answer.
    """
    who = answer.first
    who += " alone, and hedged to itself" if answer.second == answer.first else ""
    who += f", hedged to {answer.second}" if answer.second != answer.first else ""
    table = Table(title=f"{answer.turns:,} turns: {who}", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for name in PERCENTILES:
        table.add_column(name, justify="right")
    table.add_column("max", justify="right")
    if answer.deadline_secs is not None:
        table.add_column(f"≤ {answer.deadline_secs:g} s", justify="right")
    if any(o.unanswered for o in answer.outcomes):
        table.add_column("no\nanswer", justify="right")
    table.add_column("p99 in\n19 of 20", justify="right", no_wrap=True)
    table.add_column("extra\nrequests", justify="right")
    with_replacements = any(o.replacements for o in answer.outcomes)
    if with_replacements:
        table.add_column("replace-\nments", justify="right")
    with_tokens = any(o.extra_tokens is not None for o in answer.outcomes)
    with_usd = any(o.extra_usd is not None for o in answer.outcomes)
    if with_tokens:
        table.add_column("tokens\na turn", justify="right")
    if with_usd:
        table.add_column("$ per\n1,000 turns", justify="right")
    mark = "" if answer.independence.holds else " ?"
    for outcome in answer.outcomes:
        chosen = outcome.policy == answer.recommended
        cells = [("▶ " if chosen else "  ") + outcome.policy]
        cells += [_figure(outcome, name) for name in PERCENTILES]
        cells.append(_figure(outcome, "max"))
        if outcome.under_deadline is not None:
            cells.append(f"{outcome.under_deadline:.2%}")
        if any(o.unanswered for o in answer.outcomes):
            cells.append(f"{outcome.unanswered:.2%}")
        cells.append(_interval(outcome) + mark)
        cells.append(f"{outcome.extra_requests:.1%}")
        if with_replacements:
            cells.append(f"{outcome.replacements:.1%}")
        if with_tokens:
            cells.append("-" if outcome.extra_tokens is None else f"{outcome.extra_tokens:,.0f}")
        if with_usd:
            cells.append("-" if outcome.extra_usd is None else f"{outcome.extra_usd:,.3f}")
        table.add_row(*cells, style="bold" if chosen else None)
    return Group(table, Text(), *(_paragraph(*said) for said in _said(answer)))


def _said(answer: Answer) -> list[tuple[str, str]]:
    chosen = next(o for o in answer.outcomes if o.policy == answer.recommended)
    where = _interval(chosen)
    said = [
        ("take", f"{answer.recommended}: {answer.why}."),
        (
            "trust",
            f"{answer.independence.text}. In 19 of 20 files of this size the p99 of "
            f"{answer.recommended} would be {where}.",
        ),
    ]
    if chosen.if_slow_together is not None:
        said.append(
            (
                "but",
                "were a hedge as slow as the turns around it, the p99 would be "
                f"{_secs(chosen.if_slow_together)}, which the intervals do not count. Hedge "
                "to another provider.",
            )
        )
    return [*said, *(("note", f"{note}.") for note in answer.notes)]


def _paragraph(word: str, text: str) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=5, style="dim")
    line.add_column()
    line.add_row(word, Text(text))
    return line


def _figure(outcome: Outcome, name: str) -> str:
    if (least := outcome.at_least.get(name)) is not None:
        return f"> {_secs(least)}"
    return _secs(outcome.max_secs if name == "max" else outcome.percentiles[name])


def _interval(outcome: Outcome) -> str:
    """Where the p99 would lie, as far as it is known."""
    interval = outcome.intervals["p99"]
    if "p99" in outcome.at_least or math.isinf(interval.low):
        return _figure(outcome, "p99")
    if math.isinf(interval.high):
        return f"> {interval.low:.2f} s"
    return f"{interval.low:.2f}-{interval.high:.2f} s"


def _secs(secs: float) -> str:
    if math.isinf(secs):
        return "never"
    return f"{secs * 1000:.0f} ms" if secs < 1 else f"{secs:.2f} s"


def _outcome(outcome: Outcome) -> dict[str, Any]:
    fields = (field.name for field in dataclasses.fields(outcome) if field.name != "secs")
    return _asdict({name: getattr(outcome, name) for name in fields})


def _asdict(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _asdict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _asdict(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_asdict(inner) for inner in value]
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return value
