"""Formats figures, tables for a terminal, and JSON. A dash is unknown."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

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


def terminal_width() -> int:
    """Return the terminal's columns; 80 if the output is not a terminal."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


def paragraph(text: str, width: int, indent: str = "") -> str:
    """Wrap text to a width.

    Args:
        text: The text.
        width: Columns.
        indent: The prefix of all lines after the first.
    """
    text = text.replace(" %", "\u00a0%")  # no line begins with it
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def text_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], width: int, drop: Sequence[str] = ()
) -> str:
    """Format a table that fits the terminal, without cutting a cell.

    Args:
        heads: The columns' names; the first column is left-aligned, the others right-aligned.
        rows: The cells.
        width: Columns of the terminal.
        drop: The columns that may be dropped, least important first. If the table is still too
            wide, the first cell of each row gets its own line.
    """
    lines = [list(heads), *map(list, rows)]
    for name in (*drop, None):
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            return "\n".join(_line(cells, widths) for cells in lines)
        if name in lines[0]:
            at = lines[0].index(name)
            lines = [[cell for n, cell in enumerate(cells) if n != at] for cells in lines]
    widths = [0, *(max(map(len, column)) for column in list(zip(*lines, strict=True))[1:])]
    stacked = [_line(["", *lines[0][1:]], widths)]
    for first, *cells in lines[1:]:
        stacked += [paragraph(first, width), _line(["", *cells], widths)]
    return "\n".join(stacked)


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


def print_json(result: Any, **more: Any) -> None:
    """Print values or a dataclass as JSON, with more fields; non-finite figures become null."""
    plain = to_jsonable_python(result, inf_nan_mode="null")
    print(json.dumps({**more, **plain} if more else plain, indent=1))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in others)]).rstrip()
