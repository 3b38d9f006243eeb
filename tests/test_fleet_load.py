"""What limits and permits do to a fleet, in virtual time."""

from __future__ import annotations

import pytest

from pipecat_hedge.profiles import PROFILES
from pipecat_hedge.provider_health import Permit
from tests.fleet import NAMES, Fleet, Told, degraded, p95

SEEDS = (1, 2, 3)


def test_a_fleet_in_calm_knows_no_limit() -> None:
    """Nobody waits, and nobody is turned away."""
    fleet = Fleet()
    fleet.run(60.0)
    assert degraded(fleet.turns(0.0, 50.0)) == 0.0
    assert p95(fleet.turns(5.0, 50.0)) < 1.5
    assert sum(health.of("a").limit.cuts for health in fleet.processes) <= 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", ["gpt-4.1", "jagged"])
def test_lost_requests_and_a_long_tail_are_no_queue(model: str, seed: int) -> None:
    """One request in forty is never answered, and one in a hundred takes forty times as long.

    There is room for everybody: nobody is turned away, and whoever asks in vain finds out soon.
    """
    fleet = Fleet(capacity=400, seed=seed, profile=PROFILES[model], hangs=0.023)
    fleet.run(120.0)
    assert degraded(fleet.turns(0.0, 110.0)) == 0.0
    cuts = [health.of(name).limit.cuts for health in fleet.processes for name in NAMES]
    assert sum(cuts) <= 5


def test_premium_callers_in_a_crowd_wait_as_in_calm() -> None:
    """By more turns than one fleet has: a tail of some hundred is chance."""
    calm: list[Told] = []
    premium: list[Told] = []
    for seed in range(1, 9):
        fleet = Fleet(seed=seed)
        fleet.run(15.0)
        calm += fleet.turns(5.0, 15.0)
        for server in fleet.servers.values():
            server.capacity = 8
        fleet.run(100.0)
        premium += fleet.turns(25.0, 90.0, "premium")
    print(f"premium callers wait {p95(premium) / p95(calm):.2f} times as long as in calm")
    assert p95(premium) <= 1.3 * p95(calm)
    assert degraded(premium) < 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_in_a_crowd_the_queue_is_ours_and_in_order(seed: int) -> None:
    """Providers serve 60 % of what is needed; ten seconds later nobody waits long at a provider.

    Ordinary callers hear the degraded answer instead, premium ones are answered. It stays so.
    """
    fleet = Fleet(seed=seed)
    fleet.run(15.0)
    calm = p95(fleet.turns(5.0, 15.0))
    for server in fleet.servers.values():
        server.capacity = 8
    fleet.run(160.0)
    for begin, end in ((25.0, 70.0), (70.0, 150.0)):
        premium = fleet.turns(begin, end, "premium")
        assert degraded(premium) < 0.01
        assert p95(premium) < 1.5 * calm
        assert 0.4 < degraded(fleet.turns(begin, end, "standard")) < 0.6
    refused = [turn for turn in fleet.told if not turn.is_answered]
    assert all(turn.waited_secs < 6.0 for turn in refused if turn.asked_at >= 25.0)
    assert all(turn.waited_secs < 10.0 for turn in refused)  # while the crowd is found out
    assert sum(len(server.queue) for server in fleet.servers.values()) < 25


@pytest.mark.parametrize(("slow", "most"), [(5.0, 0.8), (3.0, 0.4), (2.0, 0.02)])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_slow_without_a_queue_is_asked_again_as_much_as_before(
    slow: float, most: float, seed: int
) -> None:
    """All take longer, with room for everybody: at five times it may be a queue, and is tested."""
    fleet = Fleet(capacity=400, seed=seed)
    fleet.run(15.0)
    for server in fleet.servers.values():
        server.slow = slow
    fleet.run(80.0)
    assert degraded(fleet.turns(15.0, 25.0)) < most
    assert degraded(fleet.turns(25.0, 30.0)) < most / 2
    assert degraded(fleet.turns(30.0, 75.0)) < 0.03


def test_who_is_slow_and_has_little_room_is_asked_soon_as_much_as_there_is_room_for() -> None:
    """What was recalled is still being served for a while."""
    fleet = Fleet()
    fleet.run(15.0)
    for server in fleet.servers.values():
        server.slow = 5.0
    fleet.run(80.0)
    assert degraded(fleet.turns(35.0, 75.0)) < 0.1


def test_a_crowd_that_is_followed_by_slowness_is_seen_to_be_over() -> None:
    """Though first tokens are as late as before."""
    fleet = Fleet()
    fleet.run(15.0)
    for server in fleet.servers.values():
        server.capacity = 8
    fleet.run(60.0)
    for server in fleet.servers.values():
        server.capacity, server.slow = 400, 5.0
    fleet.run(130.0)
    assert degraded(fleet.turns(100.0, 125.0)) < 0.05


def test_a_process_alone_finds_out_too() -> None:
    """It tells a crowd from slowness by what it sees itself."""
    crowded, slow = (Fleet(processes=1, sessions=320, capacity=400) for _ in range(2))
    for fleet in (crowded, slow):
        fleet.run(15.0)
    calm = p95(crowded.turns(5.0, 15.0))
    for server in crowded.servers.values():
        server.capacity = 8
    for server in slow.servers.values():
        server.slow = 5.0
    for fleet in (crowded, slow):
        fleet.run(80.0)
    assert p95(crowded.turns(25.0, 70.0, "premium")) < 1.5 * calm
    assert degraded(slow.turns(30.0, 70.0)) < 0.03


def test_who_hung_has_its_share_back_soon_after_it_is_found_well() -> None:
    """A provider hangs for 40 s, and its limit is cut to hardly any; it comes back without a flood.

    Answers last as long as they are spoken, so a round takes 5 s.
    """
    fleet = Fleet(capacity=250, stream_secs=4.0)
    fleet.run(45.0)
    server = fleet.servers["a"]
    usual = server.rate(15.0, 45.0)
    server.hangs = True
    fleet.run(85.0)
    server.hangs = False
    assert server.rate(75.0, 85.0) < 0.02 * usual
    assert all(health.of("a").limit.limit(85.0) <= 5 for health in fleet.processes)
    closed: list[float] = []
    for second in range(86, 191):
        fleet.run(float(second))
        if all(health.state("a", fleet.now) == "closed" for health in fleet.processes):
            closed.append(fleet.now)
    back_at = next(t for t in range(85, 180) if server.rate(t, t + 10.0) > 0.9 * usual)
    assert back_at - 85 < 70
    assert back_at - closed[0] < 25.0
    assert max(server.rate(t, t + 4.0) for t in range(85, 186)) < 1.5 * usual
    assert degraded(fleet.turns(85.0, 180.0)) == 0.0


@pytest.mark.parametrize(("processes", "sessions"), [(8, 40), (1, 320)])
@pytest.mark.parametrize("hung_secs", [40.0, 62.0, 70.0])
def test_a_share_is_back_within_90_s_whenever_its_provider_returns(
    processes: int, sessions: int, hung_secs: float
) -> None:
    """Also just after a try that hung; and many requests of one process as soon as few of many."""
    fleet = Fleet(capacity=250, stream_secs=4.0, processes=processes, sessions=sessions)
    fleet.run(45.0)
    server = fleet.servers["a"]
    usual = server.rate(15.0, 45.0)
    server.hangs, back = True, 45.0 + hung_secs
    fleet.run(back)
    server.hangs = False
    fleet.run(back + 110.0)
    share_at = next(t for t in range(100) if server.rate(back + t, back + t + 10.0) > 0.9 * usual)
    print(f"its share is back {share_at} s after its return")
    assert share_at <= 90
    assert max(server.rate(back + t, back + t + 4.0) for t in range(105)) < 1.5 * usual
    assert degraded(fleet.turns(back, back + 100.0)) == 0.0


def test_every_permit_comes_back() -> None:
    """Whatever was recalled, granted, given up or served late."""
    fleet = Fleet()
    fleet.run(15.0)
    for server in fleet.servers.values():
        server.capacity = 8
    fleet.run(40.0)
    for health in fleet.processes:
        for name in NAMES:
            entry = health.of(name)
            live: list[Permit] = list(entry.live)
            assert len(live) == entry.limit.in_flight
