"""What breakers, limits and permits do to a fleet, in virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipecat_hedge.service import AdmissionMode
from tests.support.fleet import NAMES, Fleet, lost, p95
from tests.support.standing import standing

pytestmark = pytest.mark.slow

MODES: tuple[AdmissionMode, ...] = ("open", "shed")


def change(fleet: Fleet, until: float, **fields: Any) -> None:
    """Change all providers, and run on."""
    for server in fleet.servers.values():
        for name, value in fields.items():
            setattr(server, name, value)
    fleet.run(until)


def assert_served(fleet: Fleet, since: float, until: float) -> None:
    assert lost(fleet.turns(since, until)) == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_no_turn_is_lost_without_trouble(mode: AdmissionMode) -> None:
    fleet = Fleet(mode=mode)
    fleet.run(60.0)
    assert_served(fleet, 0.0, 50.0)
    assert p95(fleet.turns(0.0, 50.0)) < 1.5


@pytest.mark.parametrize(("capacity", "slow"), [(8, 1.0), (400, 5.0)])
def test_no_turn_is_lost_for_slowness(capacity: int, slow: float) -> None:
    """Providers serve half of what is needed, or take five times as long, without saying so."""
    fleet = Fleet()
    fleet.run(15.0)
    change(fleet, 100.0, capacity=capacity, slow=slow)
    assert_served(fleet, 0.0, 80.0)


def test_turns_go_to_the_next_provider_when_the_first_one_queues() -> None:
    """None can serve all callers. If all turns waited at the first: 10.5 s."""
    fleet = Fleet()
    fleet.run(15.0)
    change(fleet, 100.0, capacity=20)
    assert_served(fleet, 0.0, 80.0)
    assert p95(fleet.turns(20.0, 80.0)) < 5.0


def test_premium_callers_are_answered_when_load_is_shed() -> None:
    """Providers serve half of what is needed: only ordinary turns are rejected."""
    fleet = Fleet(mode="shed")
    fleet.run(15.0)
    change(fleet, 160.0, capacity=8)
    premium, standard = (fleet.turns(40.0, 150.0, tier) for tier in ("premium", "standard"))
    assert 0.3 < lost(standard) < 0.7
    assert lost(premium) < lost(standard) / 4


@pytest.mark.parametrize("mode", MODES)
def test_rejections_cost_only_the_rejected_turns(mode: AdmissionMode) -> None:
    """Providers serve half of what is needed and reject the rest; then they have room again."""
    fleet = Fleet(mode=mode)
    fleet.run(15.0)
    change(fleet, 60.0, capacity=8, queues=0.0)
    change(fleet, 120.0, capacity=57, queues=math.inf)
    assert lost(fleet.turns(15.0, 55.0)) < 0.6
    if mode == "open":
        assert_served(fleet, 60.0, 110.0)
    assert lost(fleet.turns(60.0, 110.0)) < 0.03
    assert lost(fleet.turns(65.0, 110.0)) < 0.003


def test_next_turn_is_answered_when_all_providers_return() -> None:
    """They have hung for half a minute, and every breaker is open."""
    fleet = Fleet(capacity=250)
    fleet.run(15.0)
    change(fleet, 45.0, hangs=True)
    for health in fleet.processes:
        assert "closed" not in {standing(health, name, fleet.now).breaker for name in NAMES}
    change(fleet, 110.0, hangs=False)
    assert_served(fleet, 45.0, 100.0)
    assert p95(fleet.turns(45.0, 100.0)) < 1.5


@pytest.mark.parametrize(("processes", "sessions"), [(8, 40), (1, 320)])
@pytest.mark.parametrize("hung_secs", [40.0, 62.0, 70.0])
def test_provider_has_its_share_again_within_90_seconds(
    processes: int, sessions: int, hung_secs: float
) -> None:
    """Also just after a probe that hung, and in one process as soon as in many."""
    fleet = Fleet(capacity=250, stream_secs=4.0, processes=processes, sessions=sessions)
    fleet.run(45.0)
    server = fleet.servers["a"]
    usual = server.rate(15.0, 45.0)
    server.hangs, back = True, 45.0 + hung_secs
    fleet.run(back)
    assert server.rate(back - 10.0, back) < 0.02 * usual
    server.hangs = False
    fleet.run(back + 110.0)
    share_at = next(t for t in range(100) if server.rate(back + t, back + t + 10.0) > 0.9 * usual)
    assert share_at <= 90
    assert max(server.rate(back + t, back + t + 4.0) for t in range(105)) < 1.5 * usual
    assert lost(fleet.turns(back, back + 100.0)) == 0.0
