"""An answer that its model cut: the stream says so, whatever the tokens are."""

from __future__ import annotations

from typing import Any

import pytest

from pipecat_hedge import ExactAnswers, TokenBudget
from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import line_to, simulated

pytestmark = pytest.mark.live

ANSWER = "We%20are%20open.%20Today%20till%20nine%20and%20tomorrow%20till%20ten."


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("own", "budget", "heard"),
    [
        pytest.param(8, TokenBudget(answer=200), "We are open.", id="a lower limit of its own"),
        pytest.param(8, None, "We are open. Today till nine and tomorrow", id="no budget"),
        pytest.param(99, None, "We are open. Today till nine and tomorrow till ten.", id="whole"),
    ],
)
async def test_answer_that_ends_by_length_is_seen_by_its_reason(
    sim: Simulator, wire: str, own: int, budget: TokenBudget | None, heard: str
) -> None:
    answers, kept = ExactAnswers(ttl_secs=60), own == 99
    for session in range(2):
        service: Any = simulated(wire, sim, f"fixed@ttft=0,tps=1000,answer={ANSWER}")
        service.settings.max_tokens = own
        async with line_to(service, answers=[answers], token_budget=budget) as line:
            await line.ask()
            report = await line.report()
        assert line.text.strip() == heard
        assert (report.known_answer is not None) == (kept and session == 1)
