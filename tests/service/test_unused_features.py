"""What a turn does not use costs it no more than a few calls: 10 us are some fifty of them."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Say, ScriptedLLMService
from tests.support.line import Line

FEATURES = {
    "known answers": ("answers/", "service/known_answers.py"),
    "routes and regions": ("service/turn_order.py", "policy/turn_route.py"),
    "token budgets": ("service/token_budget.py",),
    "documents": ("retrieval/",),
    "the comparison of answers": ("tools/analysis/",),
    "early answers": ("voice/eager_stop.py",),
}
MOST_CALLS = 5


async def test_turn_makes_hardly_any_calls_into_features_that_it_does_not_use() -> None:
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename.rpartition("/pipecat_hedge/")[2]
        if event == "call" and path:
            calls[path] += 1

    members = [ScriptedLLMService([Say("We "), Say("are "), Say("open.")]) for _ in range(2)]
    llm = HedgedLLMService(members, policy=HedgePolicy.adaptive())
    async with Line(llm) as line:
        await line.ask()
        sys.setprofile(count)
        try:
            await line.ask()
            await line.report(2)
        finally:
            sys.setprofile(None)
    assert calls["race/race.py"] > MOST_CALLS  # it counts
    for feature, paths in FEATURES.items():
        found = sum(n for path, n in calls.items() if path.startswith(paths))
        assert found <= MOST_CALLS, f"{feature}: {found} calls"
