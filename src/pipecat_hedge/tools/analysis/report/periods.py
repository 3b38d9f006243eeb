"""A log cut into stretches of time of which each can be looked at: hours, or minutes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo

__all__ = ["Calendar", "Period"]

MINUTE, HOUR, DAY = 60, 3600, 86400
WIDTHS = (
    *(minutes * MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR for hours in (1, 2, 6)),
    *(days * DAY for days in (1, 2, 7, 28, 91)),
)
"""How long a stretch may be, in seconds."""
MOST = 26
"""More stretches than this are too many to look at; a day has hours, and a part of one more."""
MOST_HOURS = 7 * 24 + 1
"""But hours are told up to a week: what is bad at nine each morning is not seen in days."""


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time.

    Parameters:
        begin: Its beginning, in seconds since the epoch.
        secs: Its length, in seconds.
    """

    begin: float
    secs: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """Stretches of one length, side by side, that begin on the hour (or day) where people are.

    Parameters:
        first: The first stretch's beginning, in seconds since the epoch.
        secs: The length of each, in seconds.
        count: How many there are.
    """

    first: float
    secs: float
    count: int

    @classmethod
    def of(cls, moments: Iterable[float | None], zone: tzinfo | None) -> Calendar | None:
        """The shortest stretches of which there are not too many; hours up to a week.

        Args:
            moments: When turns began, in seconds since the epoch; None is unknown.
            zone: Where people are; None is this machine's own.

        Returns:
            The stretches; None if it is not known of every turn when it was.
        """
        known = list(moments)
        if not known or any(moment is None for moment in known):
            return None
        low, high = min(m for m in known if m is not None), max(m for m in known if m is not None)
        offset = datetime.fromtimestamp(low, zone).astimezone(zone).utcoffset()
        shift = 0.0 if offset is None else offset.total_seconds()
        for secs in (*WIDTHS, max(high - low, 1.0)):
            first = math.floor((low + shift) / secs) * secs - shift
            count = math.floor((high - first) / secs) + 1
            if count <= (MOST_HOURS if secs == HOUR else MOST):
                return cls(first, float(secs), count)
        return None

    def index(self, moment: float) -> int:
        """Which stretch a moment is in.

        Args:
            moment: Seconds since the epoch, from the first stretch to the last.
        """
        return min(max(int((moment - self.first) // self.secs), 0), self.count - 1)

    def period(self, index: int) -> Period:
        """A stretch.

        Args:
            index: Which, from 0.
        """
        return Period(self.first + index * self.secs, self.secs)
