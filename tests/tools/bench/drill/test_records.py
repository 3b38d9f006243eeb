"""What workers write is read again, also of one that was killed while it wrote."""

from __future__ import annotations

import json
import math

from pipecat_hedge.tools.bench.drill.records import Asked, Turn, read_lines, turn_line

PROVIDERS = ("first", "second")


def test_turns_come_back():
    """With their requests, in seconds since the measurement began, by their beginning."""
    late = Turn(1007.5, "lost", math.inf, 30.0, True, (), "silence")
    early = Turn(
        1002.25,
        "answered",
        0.75,
        0.9,
        False,
        (
            Asked("first", 1002.25, "primary", "failed"),
            Asked("second", 1002.5, "failure", "won", has_spoken=True),
        ),
    )
    written = read_lines([turn_line(late), turn_line(early)], 1000.0, 10, PROVIDERS)
    first, second = written.turns
    assert (first.at, first.kind, first.ttft_secs, first.took_secs) == (2.25, "answered", 0.75, 0.9)
    assert [(a.provider, a.at, a.has_spoken) for a in first.asked] == [
        ("first", 2.25, False),
        ("second", 2.5, True),
    ]
    assert first.replacements == [first.asked[1]]
    assert second == Turn(7.5, "lost", math.inf, 30.0, True, (), "silence")


def replaced(*asked: Asked) -> list[str]:
    turn = Turn(2.0, "answered", 0.75, 0.9, False, asked)
    return [each.provider for each in turn.replacements]


def test_what_is_a_replacement():
    """What was sent in place of one that failed or stayed silent; not beside one that was slow."""
    silent = Asked("first", 2.0, "primary", "superseded")
    slow = Asked("first", 2.0, "primary", "won", has_spoken=True)
    late = Asked("first", 2.0, "primary", "superseded", has_spoken=True)
    broken = Asked("first", 2.0, "primary", "failed", has_spoken=True)
    beside = Asked("second", 5.0, "stall", "won", has_spoken=True)
    hedge = Asked("second", 3.0, "hedge", "superseded")
    assert replaced(silent, beside) == ["second"]
    assert replaced(slow, beside) == []
    assert replaced(late, beside) == []
    assert replaced(broken, beside) == ["second"]
    assert replaced(silent, hedge) == []
    failure = Asked("third", 4.0, "failure", "won", has_spoken=True)
    assert replaced(silent, hedge, failure) == ["third"]


def test_counts_by_second():
    """Beginnings, requests and lags fall into their seconds; what is outside is left out."""
    lines = [
        *({"at": at} for at in (999.9, 1000.0, 1000.9, 1002.0, 1003.0)),
        *({"at": at, "to": "second"} for at in (999.0, 1001.1, 1001.2)),
        {"at": 1000.5, "to": "first"},
        {"at": 1001.0, "lag": 0.25},
        {"at": 1009.0, "lag": 9.0},
    ]
    written = read_lines(map(json.dumps, lines), 1000.0, 3, PROVIDERS)
    assert written.began.tolist() == [2, 0, 1]
    assert written.asked["first"].tolist() == [1, 0, 0]
    assert written.asked["second"].tolist() == [0, 2, 0]
    assert written.lag_secs == (0.25,)


def test_a_line_that_breaks_off():
    """The last words of a process that was killed do no harm."""
    whole = json.dumps({"at": 1000.0})
    assert read_lines([whole, whole[:7]], 1000.0, 3, PROVIDERS).began.tolist() == [1, 0, 0]
