"""``pipecat-hedge bench``, as it is called; ``tests/live/test_bench.py`` runs the comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from unittest.mock import MagicMock

import pytest

from pipecat_hedge.tools.bench import bench
from pipecat_hedge.tools.bench.bench import ARRANGEMENTS, Compared, Cost
from tests.tools.conftest import Ran


def test_tables_fit_into_80_columns(
    ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the figures are as wide as they become."""

    async def compare(profile: str, *_: object) -> list[Compared]:
        waits = (0.994, 12.34, 99.99, inf)
        return [Compared(profile, name, 400, *waits, 400, 1.234, 1234.5) for name in ARRANGEMENTS]

    async def measure(*_: object) -> list[Cost]:
        names, units = ("LLMSwitcher, failover", "adaptive, with metrics"), ("turn", "token")
        return [
            Cost(name, unit, 0.01234, -0.01234, 99.99, 9.99) for unit in units for name in names
        ]

    monkeypatch.setattr(bench, "_compare", compare)
    monkeypatch.setattr(bench, "measure_costs", measure)
    monkeypatch.setattr(bench, "SimulatorProcess", lambda seed: nullcontext(MagicMock()))
    monkeypatch.setattr(bench.logger, "remove", lambda: None)
    status, printed, _ = ran("bench", "--profile", "gemma, 1 % in-band errors")
    assert status == 0
    assert all(name in printed for name in (*ARRANGEMENTS, "adaptive, with metrics"))
    assert "never" in printed
    assert "12340.0 µs" in printed
    assert "…" not in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80


def test_fewer_turns_than_calls_are_rejected(ran: Callable[..., Ran]) -> None:
    status, _, printed = ran("bench", "--turns", 3, "--calls", 4)
    assert status == 2
    assert "--turns must be at least --calls" in printed
