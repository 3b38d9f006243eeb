"""Formats figures, tables for a terminal, and JSON. A dash is unknown."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from pipecat_hedge.race import missing_extra

if TYPE_CHECKING:
    from jinja2 import Environment

UNKNOWN = "–"
OBJECTIVES = {"ttft": "first token", "ttfs": "first sentence", "voice_to_voice": "voice to voice"}


def secs(value: float | None, *, at_least: bool = False) -> str:
    """Format a time.

    Args:
        value: Seconds; None is unknown, infinite is never.
        at_least: Whether it is only a lower bound.
    """
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return "never"
    digits = f"{value:.2f} s" if 0.995 <= value < 100 else f"{value:,.0f} s"
    return ("> " if at_least else "") + (f"{1000 * value:.0f} ms" if value < 0.995 else digits)


def share(value: float | None, digits: int = 1) -> str:
    """Format a share in per cent."""
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"


def usd(value: float | None) -> str:
    """Format US dollars, with at least two significant digits."""
    if value is None:
        return UNKNOWN
    small = 0 < abs(value) < 1
    digits = min(1 - math.floor(math.log10(abs(value))), 8) if small else 2
    return f"${value:,.{max(digits, 2)}f}"


def count(number: float | None, name: str = "") -> str:
    """Format a number of things; ``name`` is singular."""
    if number is None:
        return UNKNOWN
    plural = "" if not name or round(number) == 1 else "s"
    return f"{number:,.0f} {name}{plural}".rstrip()


def between(begin: float | None, end: float | None, zone: tzinfo | None) -> str:
    """Format a time range.

    Args:
        begin: Seconds since the epoch; None is unknown.
        end: The same.
        zone: The time zone; None is the local one.
    """
    if begin is None or end is None:
        return UNKNOWN
    one, other = datetime.fromtimestamp(begin, zone), datetime.fromtimestamp(end, zone)
    day = "" if one.date() == other.date() else f"{other:%Y-%m-%d} "
    return f"{one:%Y-%m-%d %H:%M} – {day}{other:%H:%M}"


def templates(package: str, option: str, extra: str) -> Environment:
    """Return a package's HTML templates; text from outside stays text.

    Args:
        package: The package; it has a folder ``templates``.
        option: The option that needs them, for the error.
        extra: The extra that brings jinja2.

    Raises:
        ConfigurationError: If jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise missing_extra(option, "jinja2", extra) from None
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table whose first column is text, and the others figures.

    If it is too wide, the columns of ``drop`` are left out one after another, until a third of the
    width is left to the text, which wraps there. Figures neither wrap nor are cut.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    drop: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for a width."""
        columns = zip(self.heads, *self.rows, strict=True)
        widths = {column[0]: max(map(cell_len, column)) for column in columns}
        widths[self.heads[0]] = min(widths[self.heads[0]], options.max_width // 3)
        for head in self.drop:
            if sum(widths.values()) + 2 * len(widths) - 2 > options.max_width:
                widths.pop(head, None)
        table = Table(box=None, pad_edge=False, header_style="")
        for number, head in enumerate(widths):
            justify = "right" if number else "left"
            table.add_column(Text(head), justify=justify, no_wrap=number > 0, overflow="fold")
        for row in self.rows:
            cells = zip(self.heads, row, strict=True)
            table.add_row(*(Text(cell) for head, cell in cells if head in widths))
        yield table


def bullets(lines: Iterable[str]) -> Table:
    """Return a list with hanging lines."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row("-", Text(line, overflow="fold"))
    return grid


def text_of(parts: Iterable[str | TextTable | Table], width: int | None = None) -> str:
    """Render paragraphs and tables, one below the other, as plain text.

    Args:
        parts: The parts; an empty string is an empty line.
        width: Columns; None is those of the terminal, or 80 without one.
    """
    console = Console(width=width, file=io.StringIO(), color_system=None, highlight=False)
    with console.capture() as text:
        console.print(*parts, sep="\n", markup=False, emoji=False)
    return "\n".join(line.rstrip() for line in text.get().splitlines()).rstrip()


def progress_bar() -> Progress:
    """Create a progress bar on standard error, shown only in a terminal."""
    errors = Console(stderr=True, highlight=False)
    return Progress(
        TextColumn("{task.description:20}"),
        BarColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


def follow(bar: Progress, what: str, total: float) -> Callable[[], None]:
    """Begin a task of minutes, and return what advances it by one.

    Without a terminal its beginning and each tenth of it are a line on standard error.
    """
    task = bar.add_task(what, total=total)
    told = 0

    def tell() -> None:
        if bar.disable:
            print(f"{what}: {10 * told} %", file=sys.stderr, flush=True)

    def advance() -> None:
        nonlocal told
        bar.advance(task)
        if (tenths := int(bar.tasks[-1].percentage // 10)) > told:
            told = tenths
            tell()

    tell()
    return advance


def print_json(result: Any, **more: Any) -> None:
    """Print values or a dataclass as JSON, with more fields; non-finite figures become null."""
    plain = to_jsonable_python(result, inf_nan_mode="null")
    print(json.dumps({**more, **plain} if more else plain, indent=1))
