"""Figures in words: one way to write seconds, shares, dollars and counts. Pure.

Law: what is not known is a dash, never a nought.
"""

from __future__ import annotations

import math
from datetime import datetime, tzinfo

__all__ = ["UNKNOWN", "between", "clock", "count", "listed", "secs", "share", "things", "usd"]

UNKNOWN = "–"


def secs(value: float | None, *, at_least: bool = False) -> str:
    """A time, with digits enough to be told from its neighbours.

    Args:
        value: Seconds; None is unknown, infinite is never.
        at_least: Whether it is known only that it is longer.
    """
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return "never"
    more = "> " if at_least else ""
    return f"{more}{value:.2f} s" if value < 100 else f"{more}{value:,.0f} s"


def share(value: float | None, digits: int = 1) -> str:
    """A share in percent; what is overspent is below nothing.

    Args:
        value: The share; None is unknown.
        digits: How many digits behind the point.
    """
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %".replace("-", "−")


def usd(value: float | None, *, at_least: bool = False) -> str:
    """US dollars, with digits enough that little is not nothing.

    Args:
        value: The dollars; None is unknown.
        at_least: Whether a part of the sum is not known.
    """
    if value is None:
        return UNKNOWN
    digits = 2 if value >= 1 or value == 0 else min(2 - math.floor(math.log10(abs(value))), 8)
    return f"{'> ' if at_least else ''}${value:,.{digits}f}"


def count(value: float | None) -> str:
    """A number of things.

    Args:
        value: How many; None is unknown.
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def things(number: float, name: str) -> str:
    """A number of things, with their name.

    Args:
        number: How many.
        name: What one of them is called.
    """
    return f"{number:,.0f} {name}{'' if round(number) == 1 else 's'}"


def clock(at: float | None, zone: tzinfo | None) -> str:
    """A time of day, to the second.

    Args:
        at: Seconds since the epoch; None is unknown.
        zone: Where; None is this machine's own.
    """
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, zone):%H:%M:%S}"


def between(begin: float | None, end: float | None, zone: tzinfo | None) -> str:
    """From when to when.

    Args:
        begin: Seconds since the epoch; None is unknown.
        end: The same of the end.
        zone: Where; None is this machine's own.
    """
    if begin is None or end is None:
        return UNKNOWN
    one, other = datetime.fromtimestamp(begin, zone), datetime.fromtimestamp(end, zone)
    day = "" if one.date() == other.date() else f"{other:%Y-%m-%d} "
    return f"{one:%Y-%m-%d %H:%M} – {day}{other:%H:%M}"


def listed(words: list[str]) -> str:
    """Words as a sentence lists them.

    Args:
        words: The words.
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
