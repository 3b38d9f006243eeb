"""What holds for all requests of a running simulator."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from pipecat_hedge.tools.simulator import Simulator, SimulatorProcess
from pipecat_hedge.tools.simulator.behaviour import BehaviourError, parse_model
from pipecat_hedge.tools.simulator.conditions import read_conditions
from pipecat_hedge.tools.simulator.faults import FAULTS
from pipecat_hedge.tools.simulator.routes import _is_loopback

MESSAGES = [{"role": "user", "content": "do you deliver"}]


def test_they_go_before_what_a_request_asks_for():
    """A key that they name replaces the request's own; the rest stays."""
    conditions = read_conditions({"fault": "429", "rate": 0.3, "ttft": "2", "args": {"a": 1}})
    behaviour = conditions.applied(parse_model("fixed?ttft=1&fault=cut&tps=7"))
    assert (behaviour.fault, behaviour.rate, behaviour.ttft) == (FAULTS["429"], 0.3, 2)
    assert (behaviour.tps, behaviour.args) == (7, {"a": 1})
    assert not conditions.has_capacity


def test_none_are_the_usual_ones():
    """Nothing is changed."""
    behaviour = parse_model("fixed?ttft=1")
    assert read_conditions({}).applied(behaviour) is behaviour


def test_capacity_is_no_key_of_a_model():
    """It is the server's, and may be lifted."""
    assert read_conditions({"capacity": 3}).capacity == 3
    lifted = read_conditions({"capacity": None})
    assert (lifted.has_capacity, lifted.capacity) == (True, None)
    with pytest.raises(BehaviourError, match="capacity: unknown key"):
        parse_model("fixed?capacity=3")


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"tftt": 1}, "tftt: unknown key; known keys: ttft, headers.*, capacity"),
        ({"rate": 2}, "rate: expected share of requests"),
        ({"rate": None}, "rate: expected share of requests"),
        ({"slow": 0}, "slow: expected a factor on all times"),
        ({"slow": "inf"}, "slow: expected a factor"),
        ({"fault": "oops"}, "fault: unknown fault 'oops'"),
        ({"capacity": 0}, "capacity: expected a whole number"),
        ({"capacity": "3"}, "capacity: expected a whole number"),
    ],
)
def test_what_is_none_is_named(told: dict[str, Any], message: str):
    """A bad key or value names the field and what it may be."""
    with pytest.raises(BehaviourError, match=message):
        read_conditions(told)


@pytest.mark.parametrize(
    ("address", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("fe80::1%2", False), (None, False)],
)
def test_only_this_machine_sets_them(address: str | None, is_own: bool):
    """Whoever comes over the network is refused."""
    assert _is_loopback(address) is is_own


async def _ask(session: aiohttp.ClientSession, sim: Simulator, model: str) -> int:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    async with session.post(f"{sim.openai_url}/chat/completions", json=body) as response:
        await response.read()
        return response.status


@pytest.mark.live
async def test_set_and_taken_back(sim: Simulator):
    """They hold from the next request on, replace those before, and end with an empty object."""
    address = f"{sim.url}/simulator/conditions"
    async with aiohttp.ClientSession() as session:
        for told, status in (
            ({"fault": "529"}, 529),
            ({"rate": 0}, 200),
            ({}, 503),
        ):
            async with session.post(address, json=told) as response:
                assert (response.status, await response.json()) == (200, told)
            assert await _ask(session, sim, "fixed?fault=503&rate=1") == status
            async with session.get(address) as response:
                assert await response.json() == told
        async with session.post(address, json={"slow": -1}) as response:
            assert response.status == 400
            assert "slow: expected a factor" in (await response.json())["error"]["message"]
        async with session.post(address, data=b"[]") as response:
            assert response.status == 400


@pytest.mark.live
async def test_a_slow_one(sim: Simulator):
    """Every time of an answer is so many times as long: `slow=` in a model's name does the same."""
    async with aiohttp.ClientSession() as session:
        await _ask(session, sim, "fixed?ttft=0.1&tps=100&slow=2")
    (entry,) = sim.ledger.requests
    assert entry.headers_secs is not None
    assert entry.first_token_secs is not None
    assert entry.ended_secs is not None
    assert entry.headers_secs - entry.started_secs == pytest.approx(0.1, abs=0.05)
    assert entry.first_token_secs - entry.started_secs == pytest.approx(0.2, abs=0.05)
    assert entry.ended_secs - entry.started_secs == pytest.approx(0.2 + 13 * 0.02, abs=0.08)


@pytest.mark.live
async def test_a_queue():
    """A request's times begin when it has a place; one that leaves gives its place away."""
    async with Simulator(capacity=1) as sim, aiohttp.ClientSession() as session:
        hangs = asyncio.create_task(_ask(session, sim, "fixed?fault=hang"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 1)
        waits = asyncio.create_task(_ask(session, sim, "fixed?ttft=0.05"))
        leaves = asyncio.create_task(_ask(session, sim, "fixed?ttft=0.05"))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 3, 1)
        async with session.get(f"{sim.url}/simulator/arrivals") as response:
            told = await response.json()
        assert (told["busy"], told["waiting"]) == (1, 2)
        assert all(entry.headers_secs is None for entry in sim.ledger.open)
        leaves.cancel()
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 2, 1)
        gone_secs = sim.ledger.clock()
        hangs.cancel()
        assert await waits == 200
        await sim.wait_idle(1)
        aborted, served, left = sim.ledger.requests
        assert (aborted.outcome, served.outcome, left.outcome) == (
            "aborted",
            "completed",
            "aborted",
        )
        assert left.began_secs is None
        assert served.began_secs is not None
        assert served.first_token_secs is not None
        assert served.began_secs >= gone_secs
        assert served.first_token_secs - served.began_secs >= 0.05


@pytest.mark.live
def test_a_process_of_its_own():
    """The same from outside: its capacity, its conditions, its counts; and a crash."""
    with SimulatorProcess(capacity=2) as sim:
        sim.set_conditions(fault="503", capacity=None)
        with pytest.raises(ValueError, match="fault: unknown fault 'oops'"):
            sim.set_conditions(fault="oops")
        told = sim.arrivals()
        assert (sum(told["counts"]), told["busy"], told["waiting"]) == (0, 0, 0)
        assert abs(told["first"] - time.monotonic()) < 60
        assert sim.arrivals(told["first"] + 100)["counts"] == []
        sim.kill()
        with pytest.raises(OSError, match="refused"):
            sim.arrivals()
        with SimulatorProcess(int(sim.url.rsplit(":", 1)[1])) as again:  # the port is free at once
            assert again.arrivals()["busy"] == 0
