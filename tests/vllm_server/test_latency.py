"""What a real vLLM does for the caller's wait. Asserted are ratios and shares within one run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import HedgedLLMService, Provider, TurnReport, VLLMService
from tests.support.line import Line
from tests.vllm_server.asking import SYSTEM, counts

pytestmark = pytest.mark.vllm

SHORT, LONG = 42, 170
"""Repetitions of the system prompt: some 1,000 and 4,000 tokens."""


@pytest.fixture(scope="module")
def small_vllm() -> Iterator[VLLMProcess]:
    """A server of the larger model, which takes a second to read a long prompt."""
    with VLLMProcess("small", name="small") as server:
        yield server


async def first_turn(
    server: VLLMProcess, *, caller: str, warm: bool, size: int = SHORT
) -> TurnReport:
    """The first turn of a session whose system prompt, so many times 24 tokens, is its own."""
    prompt = f"You serve {caller}. " + SYSTEM * size
    settings = VLLMService.Settings(system_instruction=prompt, max_tokens=20)
    llm = HedgedLLMService(
        [Provider("local", VLLMService(base_url=server.base_url, settings=settings))], warm=warm
    )
    context = LLMContext()
    before = (await counts(server)).prefix_queries
    async with Line(llm, before=[LLMContextAggregatorPair(context).user()]) as line:
        if warm:  # a caller is greeted, and speaks, before the first turn
            async with asyncio.timeout(30):
                while (now := await counts(server)).prefix_queries == before or now.running:
                    await asyncio.sleep(0.02)
        context.add_message({"role": "user", "content": "A table for two, please."})
        await line.ask(context=context)
        return await line.report()


async def test_the_first_turn_finds_its_prompt_read(small_vllm: VLLMProcess) -> None:
    """Sent ahead, a prompt of 4,000 tokens costs the first turn less than a fifth.

    Of 1,000 where they take half a second: on some processors reading takes forty times as long.
    """
    await first_turn(small_vllm, caller="Nobody", warm=False)  # the server's own first request
    short = await first_turn(small_vllm, caller="Somebody", warm=False)
    assert short.ttft_secs is not None
    size = SHORT if short.ttft_secs > 0.5 else LONG
    cold = [
        await first_turn(small_vllm, caller=name, warm=False, size=size) for name in ("Ann", "Ben")
    ]
    warm = [
        await first_turn(small_vllm, caller=name, warm=True, size=size) for name in ("Cleo", "Dan")
    ]
    assert all((report.attempts[0].input_tokens or 0) > 20 * size for report in cold + warm)
    assert all(report.ttft_secs is not None for report in cold + warm)
    without = min(report.ttft_secs or 0 for report in cold)
    with_it = max(report.ttft_secs or 0 for report in warm)
    print(f"\nfirst turn, {24 * size} tokens: {without:.3f} s cold, {with_it:.3f} s sent ahead")
    assert with_it < without / 5
