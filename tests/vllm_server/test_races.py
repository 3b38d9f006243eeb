"""A real vLLM among the providers of a race: aborted, queued, prioritised, killed, restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from pipecat.frames.frames import LLMContextFrame, LLMTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, VLLMService
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.vllm.server import VLLMServer
from tests.support.line import Line
from tests.vllm_server.asking import busy, completed, counts, service, until

pytestmark = pytest.mark.vllm

LONG = 3000
"""Tokens of an answer that does not end during a test."""


def talk() -> LLMContextFrame:
    return LLMContextFrame(LLMContext([{"role": "user", "content": "Hello?"}]))


async def test_superseded_request_is_aborted_at_the_server(vllm: VLLMProcess) -> None:
    """Of two requests that race, the loser is gone from the server once the winner speaks."""
    local = Provider("local", [service(vllm, tokens=LONG), service(vllm, tokens=LONG)])
    async with busy(vllm, 3), Line(HedgedLLMService([local], policy=HedgePolicy.race(2))) as line:
        await line.send(talk())
        before = await completed(vllm)
        await line.until(lambda: bool(line.frames(LLMTextFrame)))
        await until(vllm, lambda c: c.running == 4)
        assert await completed(vllm) == before
        await line.interrupt()
        await line.report()


@pytest.mark.parametrize("hedged", [True, False])
async def test_interruption_aborts_the_running_request(vllm: VLLMProcess, hedged: bool) -> None:
    """Only the other callers' requests are left at the server."""
    llm = service(vllm, tokens=LONG)
    raced = HedgedLLMService([Provider("local", llm)]) if hedged else llm
    async with busy(vllm, 3), Line(raced) as line:
        await line.send(talk())
        await line.until(lambda: bool(line.frames(LLMTextFrame)))
        assert (await counts(vllm)).running == 4
        before = await completed(vllm)
        await line.interrupt()
        await until(vllm, lambda c: c.running == 3)
        assert await completed(vllm) == before
        if hedged:
            assert (await line.report()).outcome == "interrupted"


async def test_hedge_waits_behind_first_requests(narrow_vllm: VLLMProcess) -> None:
    """Hedges that were sent before a turn's first request are answered after it."""
    answered: list[str] = []

    async def call(name: str, llm: HedgedLLMService) -> None:
        async with Line(llm) as line:
            await line.send(talk())
            await line.until(lambda: bool(line.frames(LLMTextFrame)))
            answered.append(name)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as calls:
        await stack.enter_async_context(busy(narrow_vllm, 2))
        for number in range(4):
            silent = Provider("silent", ScriptedLLMService([Wait(60)]))
            local = Provider("local", service(narrow_vllm, tokens=200))
            llm = HedgedLLMService([silent, local], policy=HedgePolicy.race(2))
            calls.create_task(call(f"hedge {number}", llm))
        await until(narrow_vllm, lambda c: c.waiting == 4)
        primary = HedgedLLMService([Provider("local", service(narrow_vllm, tokens=200))])
        calls.create_task(call("primary", primary))
        await until(narrow_vllm, lambda c: c.waiting == 5)
        await stack.aclose()
    assert "primary" in answered[:2]  # the server starts two at once
    assert len(answered) == 5


async def test_full_queue_sends_the_race_elsewhere(narrow_vllm: VLLMProcess) -> None:
    """A 503 is a failure like others: the next provider is asked at once, and answers."""
    local = Provider("local", service(narrow_vllm))
    other = Provider("other", ScriptedLLMService([Say("We are open.")]))
    # The one look, at the start, finds it idle: else the other one would be asked first.
    VLLMServer.shared(narrow_vllm.base_url).poll_secs = 60
    llm = HedgedLLMService([local, other])
    async with Line(llm) as line:
        await _look(llm, waiting=0, of=0)
        async with busy(narrow_vllm, 12):
            await line.ask()
            report = await line.report()
    assert [(a.provider, a.outcome) for a in report.attempts] == [
        ("local", "failed"),
        ("other", "won"),
    ]
    assert report.attempts[0].error_category == "server"
    assert report.attempts[1].launch_reason == "failure"
    assert report.attempts[1].launched_secs < 0.5
    assert line.text == "We are open."
    assert not line.errors


async def test_shorter_queue_gets_the_load(vllm: VLLMProcess, narrow_vllm: VLLMProcess) -> None:
    """Of a provider's two servers the one is asked where the fewest are in front."""
    both = Provider("local", [service(narrow_vllm, tokens=20), service(vllm, tokens=20)])
    async with busy(narrow_vllm, 6), Line(HedgedLLMService([both])) as line:
        await _look(line.service, waiting=0)
        before = (await counts(vllm)).prefix_queries
        for _ in range(3):
            await line.ask()
        reports = [await line.report(number) for number in (1, 2, 3)]
        assert (await counts(narrow_vllm)).waiting == 4
        assert (await counts(vllm)).prefix_queries > before
    assert all(report.outcome == "answered" for report in reports)
    assert all(len(report.attempts) == 1 for report in reports)


async def test_many_calls_spread_over_two_servers(
    vllm: VLLMProcess, narrow_vllm: VLLMProcess
) -> None:
    """Also between two looks: what this process has just sent counts at once."""
    processes = (narrow_vllm, vllm)

    async def prompt_tokens() -> list[float]:
        return [(await counts(process)).prefix_queries for process in processes]

    before = await prompt_tokens()
    async with Line(HedgedLLMService([Provider("alone", service(vllm, tokens=1))])) as line:
        await line.ask()
    of_one = sum(await prompt_tokens()) - sum(before)
    servers = [VLLMServer.shared(process.base_url) for process in processes]
    for server in servers:
        server.poll_secs = 60  # the one look, at the start
    async with AsyncExitStack() as stack:
        lines: list[Line] = []
        for _ in range(4):
            two = Provider("local", [service(process, tokens=LONG) for process in processes])
            line = Line(HedgedLLMService([two], policy=HedgePolicy.fallback(1)))
            lines.append(await stack.enter_async_context(line))
        async with asyncio.timeout(10):
            while None in [server.load for server in servers]:
                await asyncio.sleep(0.02)
        before = await prompt_tokens()
        for number, line in enumerate(lines, start=1):
            await line.send(talk())
            while sum(server.load.running for server in servers if server.load) < number:
                await asyncio.sleep(0.001)
        for line in lines:
            await line.until(lambda line=line: bool(line.frames(LLMTextFrame)))
        sent = [now - then for now, then in zip(await prompt_tokens(), before, strict=True)]
        assert sent == [2 * of_one, 2 * of_one]
        for line in lines:
            await line.interrupt()
            await line.report()


async def _look(llm: object, *, waiting: int, of: int = -1, secs: float = 10) -> None:
    """Wait until a service's provider, the last one, has seen its server like this."""
    assert isinstance(llm, HedgedLLMService)
    async with asyncio.timeout(secs):
        while (load := llm.provider_states()[of].server) is None or load.waiting != waiting:
            await asyncio.sleep(0.02)


# ---- a server that falls and comes back


@pytest.fixture(scope="module")
def mortal_vllm() -> Iterator[VLLMProcess]:
    """A server to kill."""
    blocks = ("--num-gpu-blocks-override", "512")
    with VLLMProcess("tiny", "--max-num-seqs", "8", *blocks, name="tiny") as server:
        yield server


async def test_killed_server_is_continued_and_comes_back(
    mortal_vllm: VLLMProcess,
) -> None:
    """The caller hears the answer to its end; the next turns do without it, until it is back."""
    other = ScriptedLLMService([Say("We are open until nine.")])
    local = VLLMService(
        base_url=mortal_vllm.base_url,
        settings=VLLMService.Settings(
            extra={"extra_body": {"structured_outputs": {"regex": r"(The soup is warm\. ){400}"}}}
        ),
    )
    llm = HedgedLLMService([Provider("local", local), Provider("other", other)])
    async with Line(llm) as line:
        await line.send(talk())
        await line.until(lambda: line.text.count(".") >= 2)
        await asyncio.to_thread(mortal_vllm.kill)
        report = await line.report()
        assert [a.outcome for a in report.attempts] == ["failed", "won"]
        assert report.attempts[0].error_category == "connectivity"
        assert report.outcome == "answered"
        assert line.text.endswith("We are open until nine.")
        assert not line.errors

        await line.ask()  # no server there: the other one answers without a wait
        report = await line.report(2)
        assert report.winner == "other"
        assert report.ttft_secs is not None
        assert report.ttft_secs < 0.5
        async with asyncio.timeout(10):
            while (load := llm.provider_states()[0].server) is None or load.is_up:
                await asyncio.sleep(0.05)
        await line.ask()
        assert [a.provider for a in (await line.report(3)).attempts] == ["other"]

        await asyncio.to_thread(mortal_vllm.restart)
        async with asyncio.timeout(10):
            while (load := llm.provider_states()[0].server) is None or not load.is_up:
                await asyncio.sleep(0.05)
        await line.send(talk())
        await line.until(lambda: "The soup is warm" in line.text.rpartition("nine.")[2])
        await line.interrupt()
        assert (await line.report(4)).attempts[0].provider == "local"


async def test_stopped_server_is_continued(
    mortal_vllm: VLLMProcess,
) -> None:
    """It ends its streams as if they were complete; the caller hears the rest from another."""
    other = Provider("other", ScriptedLLMService([Say("We are open until nine.")]))
    local = Provider("local", service(mortal_vllm, tokens=LONG))
    policy = HedgePolicy.fallback(commit="first_token")
    async with Line(HedgedLLMService([local, other], policy=policy)) as line:
        await line.send(talk())
        await line.until(lambda: len(line.frames(LLMTextFrame)) > 5)
        await asyncio.to_thread(mortal_vllm.stop)
        report = await line.report()
    await asyncio.to_thread(mortal_vllm.restart)
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert line.text.endswith("We are open until nine.")
    assert not line.errors
