"""Sessions leave nothing in the process but their providers' statistics."""

from __future__ import annotations

import asyncio
import gc
import types
from typing import Any

import pytest

from pipecat_hedge.providers.loop_lag import LoopWatch
from pipecat_hedge.race import TIERS
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.testing import Error, Say, Wait
from tests.service.builders import asked, racing, said, scripted

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

NOT_ITS_OWN = (type, types.ModuleType, types.FunctionType, asyncio.AbstractEventLoop, int, float)


def kept_by(root: object) -> int:
    """The number of objects that one keeps alive, itself included; numbers excluded."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, NOT_ITS_OWN):
            seen[id(each)] = each
            left += gc.get_referents(each)
    return len(seen)


async def test_sessions_do_not_grow_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    fine, slow = [Wait(0.2), Say("Yes.")], [Wait(3.0), Say("Late.")]
    scripts: list[tuple[Any, Any]] = [(fine, fine), (slow, fine), ([Error()], fine)]
    sizes: list[tuple[int, ...]] = []
    for number in range(480):
        llms = [scripted(*script) for script in scripts[number % len(scripts)]]
        llm = racing(*llms, stats=stats, tier=TIERS[number % len(TIERS)])
        await asked(llm, context=said("word " * (number % 1000)))
        await asyncio.sleep(10)
        sizes.append(tuple(kept_by(part) for part in (stats, stats.loop_watch)))
    print(f"objects kept by all and by the loop watch: {sizes[239]}, {sizes[-1]}")
    assert len(stats.records()) == 2
    assert len(stats.loop_watch._loops) == 1
    earlier, later = (
        [max(each) for each in zip(*part, strict=True)] for part in (sizes[180:240], sizes[-60:])
    )
    assert all(now <= 1.02 * then for now, then in zip(later, earlier, strict=True))
