"""The records of a file of figures: CSV in its many dialects, and JSON.

Law: what is ambiguous is not guessed. A decimal comma is read where something else separates the
columns; a comma between two figures on a line of a CSV separates them. No text that is read holds a
character that would control a terminal.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "COLUMN",
    "FACTORS",
    "Failure",
    "Line",
    "Seconds",
    "printable",
    "read_lines",
    "shortened",
]

COLUMN = "latency"
"""What a provider is called whose file does not name it."""
FACTORS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units, in seconds."""
_CELL = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(s|sec|secs|seconds|ms|us|µs|ns)", re.I)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FAILED = re.compile(r"(timed?[ _-]?out)|error|failed|failure|exception", re.I)
_SEPARATORS = (";", "\t", "|", ",")


class Seconds(float):
    """A figure whose unit the cell itself has named."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that says that there was no answer.

    Parameters:
        is_late: Whether that took long, as a timeout does.
    """

    is_late: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A record, or why there is none.

    Parameters:
        number: The number of its line, or of its place in a JSON list; from 1.
        record: A number, a list, or fields by name; None if there is none.
        wrong: What is wrong with it, or None.
    """

    number: int
    record: Any
    wrong: str | None = None


def read_lines(path: Path, file: Iterable[str]) -> Iterator[Line]:
    """Read a file's records.

    Args:
        path: The file, whose ending may say what it is.
        file: Its text, line by line.
    """
    lines = ((number, line.strip()) for number, line in enumerate(file, 1))
    filled = ((number, line) for number, line in lines if line)
    first = next(filled, None)
    if first is None:
        return
    rest = _chain(first, filled)
    if first[1][0] == "[":
        kept = list(rest)
        listed = _list_of(" ".join(line for _, line in kept))
        if listed is not None:
            records = map(printable, listed)
            yield from (Line(number, record) for number, record in enumerate(records, 1))
            return
        yield from _json_lines(iter(kept))
    elif first[1][0] == "{" or path.suffix in (".jsonl", ".ndjson", ".json"):
        yield from _json_lines(rest)
    else:
        yield from _csv_lines(rest)


def shortened(text: str) -> str:
    """A text that fits into a message.

    Args:
        text: The text.
    """
    return text if len(text) <= 40 else text[:37] + "..."


def printable(value: Any) -> Any:
    """What JSON holds, without the characters in its texts that cannot be seen.

    Those are control characters, such as begin a terminal's commands, and what changes the
    direction of writing.

    Args:
        value: A text, or lists and objects of them.
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(filter(str.isprintable, value))
    if isinstance(value, list):
        return [printable(each) for each in value]
    if isinstance(value, dict):
        return {printable(name): printable(each) for name, each in value.items()}
    return value


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _list_of(text: str) -> list[Any] | None:
    """The records of a file that is one JSON list; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_lines(lines: Iterator[tuple[int, str]]) -> Iterator[Line]:
    for number, line in lines:
        try:
            record = json.loads(line)
            if "\\" in line or not line.isprintable():
                record = printable(record)
            yield Line(number, record)
        except (ValueError, RecursionError):  # or a number of thousands of digits
            yield Line(number, None, "not JSON")


def _csv_lines(lines: Iterator[tuple[int, str]]) -> Iterator[Line]:
    header: list[str] | None = None
    separator = ","
    for number, line in lines:
        if header is None:
            separator = _separator(line)
            cells = _cells(line, separator)
            is_header = not any(_is_number(_cell(cell, separator)) for cell in cells)
            if is_header and (len(cells) > 1 or not cells[0][:1].isdigit()):
                header = _told_apart(cells)
                continue
            header = [COLUMN] if len(cells) == 1 else _numbered(len(cells))
        cells = _cells(line, separator)
        if len(cells) > len(header):
            yield Line(number, None, f"{len(cells)} cells under {len(header)} columns")
            continue
        given = zip(header, cells, strict=False)
        yield Line(number, {name: _cell(cell, separator) for name, cell in given if cell})


def _separator(line: str) -> str:
    """What separates the columns, as the first line tells; a blank only between figures."""
    for separator in _SEPARATORS:
        if separator in line:
            return separator
    between_figures = all(_is_number(_cell(cell, " ")) for cell in line.split())
    return " " if between_figures and len(line.split()) > 1 else ","


def _cells(line: str, separator: str) -> list[str]:
    spaced = separator == " "
    cells = line.split() if spaced else next(csv.reader([line], delimiter=separator))
    return [printable(cell.strip()) for cell in cells]


def _told_apart(header: list[str]) -> list[str]:
    """A header in which no name stands twice."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for name in header:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return names


def _numbered(count: int) -> list[str]:
    return [f"{COLUMN} {i + 1}" for i in range(count)]


def _cell(cell: str, separator: str) -> float | str | Failure:
    """A figure, one with its unit in seconds; a failure; or the text that it is."""
    if (failed := _FAILED.fullmatch(cell)) is not None:
        return Failure(is_late=failed[1] is not None)
    if separator == "," and _THOUSANDS.fullmatch(cell):  # within quotes, or it were two cells
        return float(cell.replace(",", ""))
    plain = cell.replace(",", ".") if separator != "," and cell.count(",") == 1 else cell
    try:
        return float(plain)
    except ValueError:
        named = _CELL.fullmatch(plain)
    try:
        return cell if named is None else Seconds(float(named[1]) * FACTORS[_unit(named[2])])
    except ValueError:
        return cell


def _unit(name: str) -> str:
    lower = name.lower().replace("µ", "u")
    return lower if lower in FACTORS else "s"


def _is_number(cell: float | str | Failure) -> bool:
    return isinstance(cell, float)
