"""Hedged callers get nothing worse than those who call the bare service beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.no_harm.figures import BARE, Comparison
from tests.no_harm.provider import Providers, two_providers
from tests.no_harm.scenarios import (
    LOSERS_LATE,
    SCENARIOS,
    TOKENS_REPORTED,
    TOKENS_SENT,
    race_losers,
    spell,
    trace,
)

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def processes() -> Iterator[Providers]:
    with two_providers() as providers:
        yield providers


@pytest.fixture
def providers(processes: Providers) -> Providers:
    """As if they had just started: see also the scenarios' models."""
    for provider in processes:
        provider.forget()
    return processes


@pytest.mark.usefixtures("uncollected")
def test_the_losers_of_a_race_are_closed_at_once(providers: Providers) -> None:
    result = asyncio.run(race_losers(providers, pace=0.5))
    _show(result)
    assert result.figures("hedged").lost == 0
    assert result.counts[LOSERS_LATE] <= 0.04 * result.figures("hedged").turns
    assert result.counts[TOKENS_SENT] <= result.counts[TOKENS_REPORTED]


@pytest.mark.parametrize(
    ("name", "pace"),
    [
        ("blip", 0.7),
        ("blocked_loop", 0.9),
        ("neighbours", 0.6),
        ("busy_loop", 0.7),
    ],
)
def test_nothing_is_worse_than_with_the_bare_service(
    providers: Providers, name: str, pace: float
) -> None:
    result = asyncio.run(SCENARIOS[name](providers, pace=pace))
    _show(result)
    hedged = [arm for arm in result.arms if arm not in BARE]
    assert [harm for arm in hedged for harm in result.harms(arm)] == []
    if "after" in result.phases:
        assert [result.figures(arm, "after").lost for arm in hedged] == [0] * len(hedged)


def test_a_slow_spell_of_the_first_provider_is_hardly_noticed(providers: Providers) -> None:
    result = asyncio.run(spell(providers, burners=2, after_secs=5.0))
    _show(result)
    calm, slow = result.figures("hedged", "calm"), result.figures("hedged", "spell")
    assert slow.turns >= 300
    assert slow.lost <= 2
    assert slow.p95 <= 2 * calm.p95
    assert slow.slow_share <= 0.02
    assert slow.asked.get("p1", 0.0) <= 0.15


def test_a_long_tail_is_cut_and_nothing_else_is_worse(providers: Providers) -> None:
    result = asyncio.run(trace(providers, pace=0.4, burners=2))
    _show(result)
    assert result.harms("hedged") == []
    slow = [result.figures(arm, "learned").slow_share for arm in BARE]
    assert result.figures("hedged", "learned").slow_share <= sum(slow) / 4


def _show(result: Comparison) -> None:
    """The figures, which pytest prints if the test fails."""
    print(f"\n{result.table()}")
