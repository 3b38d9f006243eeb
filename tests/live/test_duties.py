"""What a conversation may hold, and one-shot inference, through real services over sockets."""

from __future__ import annotations

import pytest
from pipecat.frames.frames import LLMContextSummaryRequestFrame, LLMContextSummaryResultFrame
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import WIRES, close, simulated

pytestmark = pytest.mark.live


@pytest.mark.parametrize("wire", WIRES)
async def test_an_image_in_the_conversation(wire: str) -> None:
    """Each member converts it for its own wire; an estimate of tokens does not count its bytes."""
    image = await LLMContext.create_image_message(
        format="RGB", size=(64, 64), image=bytes(64 * 64 * 3), text="What is this?"
    )
    async with Simulator(port=0) as sim:
        members = [
            simulated(wire, sim, "fixed@ttft=0.02,answer=A%20black%20square."),
            simulated("openai", sim, "fixed@ttft=2"),
        ]
        async with Line(HedgedLLMService(members, policy=HedgePolicy.race(2))) as line:
            await line.ask(context=LLMContext([image]))
            report = await line.report()
        await close(*members)
    assert line.text == "A black square."
    assert report.attempts[1].tokens_estimated
    assert report.attempts[1].input_tokens == pytest.approx(1000, abs=10)


@pytest.mark.parametrize("fault", ["529", "hang", "cut"])
async def test_a_context_summary_survives_a_faulty_provider(fault: str) -> None:
    """Pipecat's summary goes through run_inference, which is hedged as turns are."""
    messages = [{"role": role, "content": "Hello."} for role in ("user", "assistant") * 4]
    request = LLMContextSummaryRequestFrame(
        request_id="1",
        context=LLMContext(messages),  # pyright: ignore[reportArgumentType]
        min_messages_to_keep=2,
        target_context_tokens=100,
        summarization_prompt="Sum up.",
    )
    async with Simulator(port=0) as sim:
        members = [
            simulated("openai", sim, f"fixed@ttft=0.02,fault={fault}"),
            simulated("anthropic", sim, "fixed@ttft=0.02,answer=They%20said%20hello."),
        ]
        llm = HedgedLLMService(members, policy=HedgePolicy.after(0.1))
        async with Line(llm) as line:
            await line.send(request)
            await line.until(lambda: bool(line.upstream(LLMContextSummaryResultFrame)))
        await sim.wait_idle(1)
        await close(*members)
    (result,) = line.upstream(LLMContextSummaryResultFrame)
    assert (result.summary, result.error) == ("They said hello.", None)
