from __future__ import annotations

import pytest

from pipecat_hedge.tools.simulator import arrivals as arrivals_module
from pipecat_hedge.tools.simulator.arrivals import Arrivals


def counted(*times: float) -> Arrivals:
    arrivals = Arrivals(times[0])
    for at_secs in times:
        arrivals.add(at_secs)
    return arrivals


def test_counts_by_second():
    """Each second has its number; the one that is running is not told yet."""
    arrivals = counted(0.1, 0.9, 2.0, 2.5, 2.9, 3.1)
    assert arrivals.since(0, 3.9) == (0, [2, 0, 3])
    assert arrivals.since(0, 5.0) == (0, [2, 0, 3, 1, 0])


def test_from_a_second_on():
    """Only what is new; nothing if there is nothing."""
    arrivals = counted(0.5, 1.5, 2.5)
    assert arrivals.since(1, 3.0) == (1, [1, 1])
    assert arrivals.since(3, 3.0) == (3, [])
    assert arrivals.since(99, 3.0) == (3, [])
    assert Arrivals(0.0).since(0, 0.2) == (0, [])


def test_begins_when_it_begins():
    """Before that there was nothing to count."""
    assert counted(68_040.5, 68_042.0).since(0, 68_043.0) == (68_040, [1, 0, 1])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Old seconds are forgotten, and the answer says from which one on it tells."""
    monkeypatch.setattr(arrivals_module, "KEPT_SECS", 4)
    arrivals = counted(0.5, 1.5, 2.5, 3.5, 4.5, 5.5)
    assert arrivals.since(0, 5.9) == (2, [1, 1, 1])
    assert arrivals.since(0, 1000.0) == (997, [0, 0, 0])
