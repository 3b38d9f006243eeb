"""What one-call processes know of a provider that hangs, from their first turn on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from pipecat.frames.frames import LLMContextFrame

from pipecat_hedge import HedgePolicy, ProviderStats, TurnReport
from pipecat_hedge.fleet.sync import DOWN_SECS
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import NEVER, racing, said
from tests.support.line import Line
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.virtual_time

TURNS, THINK_SECS = 8, 6.0
CALL_SECS = TURNS * THINK_SECS
GUARD_SECS = 3.0
ADAPTIVE = HedgePolicy.adaptive()
READ_SECS = 0.5
"""Between a process's start and its first turn: a bot says hello."""


@dataclass
class Calls:
    """Processes of one call each, which share a store, and their providers.

    Parameters:
        store: The store.
        hangs: The providers that do not answer, of a and b.
        reports: The turns of each call, in the order of their start.
    """

    store: MemoryStore
    hangs: set[str]
    reports: list[list[TurnReport]]

    async def call(self, read_secs: float = READ_SECS) -> None:
        """One process, from its start to its end."""
        models = [Scripts(lambda name=name: self.script(name), None) for name in "ab"]
        stats, reports = ProviderStats(self.store), list[TurnReport]()
        self.reports.append(reports)
        async with Line(racing(*models, policy=ADAPTIVE, stats=stats)) as line:
            await asyncio.sleep(read_secs)
            for number in range(TURNS):
                await line.ask()
                reports.append(await line.report(number + 1))
                await asyncio.sleep(THINK_SECS)

    async def calls(self, count: int, every_secs: float) -> None:
        """Processes that start one after another."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self.call())
                await asyncio.sleep(every_secs)

    def script(self, name: str) -> list[Step]:
        return [Wait(NEVER if name in self.hangs else 0.4), Say("Hello there.")]

    @property
    def first_asked(self) -> str:
        """The provider that each call's first turn asked first."""
        return "".join(reports[0].attempts[0].provider for reports in self.reports)

    @property
    def waits(self) -> list[float]:
        """The wait of each call's first turn, in seconds."""
        return [reports[0].ttft_secs or NEVER for reports in self.reports]


@pytest.fixture
def calls() -> Calls:
    return Calls(MemoryStore(), set(), [])


@pytest.mark.parametrize("alive", [1, 2, 5])
async def test_first_turn_of_the_50th_process_asks_the_provider_that_answers(
    calls: Calls, alive: int
) -> None:
    calls.hangs = {"a"}
    await calls.calls(50, CALL_SECS / alive)
    assert calls.first_asked[5:] == "b" * 45
    assert max(calls.waits[5:]) < 1.0


async def test_provider_that_is_back_is_asked_again(calls: Calls) -> None:
    """Of those alive one tries it within a minute; then every process that starts asks it."""
    calls.hangs = {"a"}
    await calls.calls(10, CALL_SECS / 5)
    calls.hangs.clear()
    await calls.calls(20, CALL_SECS / 5)
    assert calls.first_asked[-10:] == "a" * 10


async def test_reports_of_an_outage_end_by_themselves(calls: Calls) -> None:
    """When no process has been alive for some minutes, the next one asks in the given order."""
    calls.hangs = {"a"}
    await calls.calls(5, 10.0)
    calls.hangs.clear()
    await asyncio.sleep(DOWN_SECS)
    await calls.call()
    assert calls.first_asked[-1] == "a"


async def test_first_turn_that_comes_before_the_news_does_not_wait(calls: Calls) -> None:
    calls.hangs = {"a"}
    await calls.calls(5, 10.0)
    calls.store.secs = 30.0
    await calls.call(read_secs=0.0)
    assert calls.first_asked[-1] == "a"
    assert calls.waits[-1] < GUARD_SECS + 1.0


async def test_processes_whose_network_goes_down_report_nothing(calls: Calls) -> None:
    """Nothing is answered any more in the middle of their calls; callers speak again, and leave."""

    async def call() -> None:
        models = [Scripts(lambda name=name: calls.script(name), None) for name in "ab"]
        async with Line(racing(*models, policy=ADAPTIVE, stats=ProviderStats(calls.store))) as line:
            await line.ask()
            calls.hangs = {"a", "b"}
            for _ in range(3):
                await line.send(LLMContextFrame(said()))
                await asyncio.sleep(8.0)
                await line.interrupt()
        assert [report.winner for report in line.reports] == ["a", None, None, None]

    await asyncio.gather(call(), call())
    assert "add" in calls.store.calls
    assert "report_down" not in calls.store.calls
