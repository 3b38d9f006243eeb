"""A server's prefix cache over a long call whose prompt is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import HedgedLLMService, Provider, TokenBudget
from pipecat_hedge.service.tokens import message_tokens
from tests.support.line import Line
from tests.vllm_server.asking import counts, service

pytestmark = pytest.mark.vllm

TURNS, MOST_TOKENS, FROM_TURN = 60, 1_000, 20
WORDS = "We would like the table by the window, and the soup before the fish, please. "


def least_cut(messages: list[Any]) -> list[Any]:
    """The messages without the fewest of the oldest turns that exceed the budget."""
    while sum(map(message_tokens, messages)) > MOST_TOKENS:
        messages = messages[2:]
    return messages


async def hit_rate(server: VLLMProcess, caller: str, *, own_cut: bool) -> float:
    """The share of prompt tokens that the server had read before, once the budget is reached."""
    budget = None if own_cut else TokenBudget(prompt=MOST_TOKENS)
    llm = HedgedLLMService(
        [Provider("local", service(server, tokens=8))], token_budget=budget, warm=False
    )
    messages: list[Any] = []
    before = await counts(server)
    async with Line(llm) as line:
        for turn in range(TURNS):
            if turn == FROM_TURN:
                before = await counts(server)
            messages.append({"role": "user", "content": f"{caller}, turn {turn}. {WORDS * 2}"})
            asked = least_cut(messages) if own_cut else messages
            await line.ask(context=LLMContext([*asked]))
            await line.report(turn + 1)
            messages.append({"role": "assistant", "content": f"Very well, {turn}. {WORDS}"})
    after = await counts(server)
    queries = after.prefix_queries - before.prefix_queries
    assert queries > MOST_TOKENS * (TURNS - FROM_TURN) / 4
    return (after.prefix_hits - before.prefix_hits) / queries


async def test_cut_of_a_bounded_prompt_keeps_the_prefix_cache(vllm: VLLMProcess) -> None:
    """It moves every few turns; the least cut moves in each, and the prompt is read again."""
    ours = await hit_rate(vllm, "Ann", own_cut=False)
    least = await hit_rate(vllm, "Bob", own_cut=True)
    print(f"\nprompt tokens found in the prefix cache: {ours:.1%}, with the least cut {least:.1%}")
    assert least <= 0.25
    assert ours >= 0.5
