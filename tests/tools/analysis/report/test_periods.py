"""Stretches of time."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.analysis.report.periods import MOST_HOURS, Calendar
from tests.tools.analysis.report.made_up import BEGIN_AT

DAY = 86400.0


def calendar(span: float, zone: object = UTC, begin: float = BEGIN_AT) -> Calendar:
    found = Calendar.of([begin, begin + span], zone)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_short_log_is_cut_into_minutes_and_a_long_one_into_hours() -> None:
    """As short as not to be too many; a week has its hours, so that a bad one is seen."""
    assert [
        calendar(s).secs for s in (20 * 60, 3600, 6 * 3600, DAY, 7 * DAY, 8 * DAY, 200 * DAY)
    ] == [
        60,
        300,
        900,
        3600,
        3600,
        86400,
        28 * 86400,
    ]


def test_hours_and_days_begin_where_people_are() -> None:
    """At the full hour of their clock, which may be half an hour from others'."""
    zone = ZoneInfo("Asia/Kolkata")
    for span in (DAY, 20 * DAY):
        begin = datetime.fromtimestamp(calendar(span, zone).first, zone)
        assert begin.minute == 0
    assert datetime.fromtimestamp(calendar(20 * DAY, zone).first, zone).hour == 0


def test_without_times_there_are_no_stretches() -> None:
    """One turn that does not tell is enough."""
    assert Calendar.of([BEGIN_AT, None], UTC) is None
    assert Calendar.of([], UTC) is None


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(1e9, 2e9))
def test_every_moment_is_in_one_stretch(span: float, at: float, begin: float) -> None:
    """Whose beginning is not later, and whose end is."""
    found = calendar(span, UTC, begin)
    moment = begin + at * span
    period = found.period(found.index(moment))
    assert period.begin <= moment + 1e-3
    assert moment <= period.begin + period.secs + 1e-3
    assert 1 <= found.count <= MOST_HOURS
