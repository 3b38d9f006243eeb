from __future__ import annotations

import asyncio

import pytest

from pipecat_hedge.tools.simulator import ledger as ledger_module
from pipecat_hedge.tools.simulator.ledger import Ledger


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_entries_open_and_end():
    """An entry is open until it ends; the first ending counts, and when it was."""
    clock = Clock()
    ledger = Ledger(clock)
    entry = ledger.arrived("openai")
    assert ledger.open == [entry]
    clock.now = 2.0
    ledger.ended(entry, "aborted")
    clock.now = 3.0
    ledger.ended(entry, "failed")
    assert (entry.outcome, entry.ended_secs, ledger.open) == ("aborted", 2.0, [])
    assert ledger.requests == [entry]


def test_requests_are_in_order_of_arrival():
    """The order is that of arrival, whichever ended first."""
    ledger = Ledger(Clock())
    entries = [ledger.arrived("openai") for _ in range(3)]
    for entry in (entries[2], entries[0]):
        ledger.ended(entry, "completed")
    assert ledger.requests == entries
    assert ledger.as_dict()["open"] == 1
    assert [r["id"] for r in ledger.as_dict(open_only=True)["requests"]] == [2]


def test_clear_keeps_what_is_open():
    """Clearing forgets what has ended; what is open stays, and ids go on."""
    ledger = Ledger(Clock())
    kept, gone = ledger.arrived("openai"), ledger.arrived("openai")
    ledger.ended(gone, "completed")
    ledger.clear()
    assert ledger.requests == [kept]
    assert ledger.arrived("openai").id == 3


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Only the last ones that ended are kept."""
    monkeypatch.setattr(ledger_module, "MAX_ENDED", 10)
    ledger = Ledger(Clock())
    for _ in range(25):
        ledger.ended(ledger.arrived("openai"), "completed")
    assert [entry.id for entry in ledger.requests] == list(range(16, 26))


@pytest.mark.virtual_time
async def test_waiting_names_the_open_requests():
    """A wait that is not over in time says which requests are open."""
    ledger = Ledger(Clock())
    ledger.arrived("openai").model = "gpt-4.1"
    with pytest.raises(TimeoutError, match=r"not reached in 1 s; open requests: #1 openai gpt-4.1"):
        await ledger.wait_until(lambda it: not it.open, 1.0)


@pytest.mark.virtual_time
async def test_waiting_ends_with_the_change():
    """A wait ends when the ledger is as wanted; everyone who waits is woken."""
    ledger = Ledger(Clock())
    entry = ledger.arrived("openai")
    waits = [asyncio.ensure_future(ledger.wait_until(lambda it: not it.open, 9)) for _ in range(2)]
    await asyncio.sleep(1)
    ledger.ended(entry, "completed")
    await asyncio.gather(*waits)
    assert asyncio.get_running_loop().time() < 5
