"""What a turn costs in calls: 10 us are some fifty of them."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

from pipecat_hedge import HedgedLLMService, HedgePolicy, ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
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
FIRST_TOKEN_CALLS, TOKEN_CALLS = 611, 40
"""Calls of a warm turn before its first token, and for each token from there to its report. When
they grow by a tenth, find out why; when they fall, lower them."""


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


async def test_turn_makes_no_more_calls_than_it_did() -> None:
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/pipecat_hedge/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    script: list[Step] = [
        Wait(0.05),
        *[Say(f"word{number} ") for number in range(20)],
        Say("end. "),
    ]
    members = [ScriptedLLMService(script) for _ in range(2)]
    llm = HedgedLLMService(members, policy=HedgePolicy.adaptive(), stats=ProviderStats())
    async with Line(llm) as line:
        await line.ask()
        await line.ask()
        sys.setprofile(note)
        try:
            await line.ask()
            await line.report(3)
        finally:
            sys.setprofile(None)
    before, tokens = calls.index("HedgedLLMService.say"), calls.count("HedgedLLMService.say")
    per_token = (len(calls) - before) / tokens
    print(f"{before} calls before the first token, {per_token:.1f} a token")
    assert before <= 1.1 * FIRST_TOKEN_CALLS
    assert per_token <= 1.1 * TOKEN_CALLS
