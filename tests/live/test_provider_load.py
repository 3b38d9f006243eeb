"""What providers say of their load, through the SDKs, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.race import AttemptError
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.provider_client import attempt_error
from pipecat_hedge.service.service_adapter import Piece
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import WIRES, close, simulated

pytestmark = pytest.mark.live


async def failed(wire: str, behaviour: str) -> AttemptError:
    """How one request fails."""
    async with Simulator(port=0, seed=1) as sim:
        service = simulated(wire, sim, behaviour)
        async with Line(service) as line:
            await line.ask()
        await close(service)
    (frame,) = line.errors
    return attempt_error(frame)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["429", "529"])
async def test_a_refusal_for_load_is_told_from_a_failure(wire: str, fault: str) -> None:
    """Google never sends 529, and a proxy in front of it may."""
    assert (await failed(wire, f"fixed@fault={fault}")).is_busy


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["500", "503", "402", "401", "reset"])
async def test_a_failure_is_no_load(wire: str, fault: str) -> None:
    """Nor is an account without credit."""
    assert not (await failed(wire, f"fixed@fault={fault}")).is_busy


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("fault", "is_connection"), [("reset", True), ("500", False)])
async def test_a_lost_connection_is_told_from_a_failure(
    wire: str, fault: str, is_connection: bool
) -> None:
    """A status code has come over a connection that stands."""
    assert (await failed(wire, f"fixed@fault={fault}")).is_connection == is_connection


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_connection_is_a_lost_one(wire: str) -> None:
    async with Simulator(port=0, seed=1) as sim:
        service = simulated(wire, sim, "fixed")
    async with Line(service) as line:
        await line.ask()
    await close(service)
    (frame,) = line.errors
    assert attempt_error(frame).is_connection


@pytest.mark.parametrize("wire", WIRES)
async def test_load_is_told_in_the_stream_too(wire: str) -> None:
    """Under status 200, in the words of each wire."""
    assert (await failed(wire, "fixed@fault=busy_in_band")).is_busy


async def test_each_wires_own_error_in_the_stream() -> None:
    """Anthropic's is an overloaded_error; OpenAI's and Google's are failures of the server."""
    errors = [await failed(wire, "fixed@fault=error_in_band") for wire in WIRES]
    assert [error.is_busy for error in errors] == [wire == "anthropic" for wire in WIRES]
    assert "overloaded_error" in errors[WIRES.index("anthropic")].message


class Posted:
    """Takes what an attempt posts, and keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[AttemptError] = []

    def opened(self) -> None:
        pass

    def piece(self, piece: Piece, *, usable: bool) -> None:
        pass

    def tools(self, piece: Piece) -> None:
        pass

    def speakable(self) -> None:
        pass

    def finished(self) -> None:
        pass

    def failed(self, error: AttemptError) -> None:
        self.errors.append(error)


async def tallies(*services: LLMService[Any], tool: bool = False) -> list[AttemptStats]:
    """What attempts of the services, all at once, have noted; their clients are closed."""
    llm = HedgedLLMService(list(services), policy=HedgePolicy.fallback())
    found = [AttemptStats() for _ in services]
    context = LLMContext([{"role": "user", "content": "hello"}])
    if tool:
        schema = FunctionSchema("book_table", "Books.", {}, [], handler=_never)
        context.set_tools([schema])  # pyright: ignore[reportArgumentType]
    async with Line(llm):
        answers = [
            adapter.answer(context, Posted(), tally)
            for adapter, tally in zip(llm._members.adapters, found, strict=True)
        ]
        await asyncio.gather(*answers)
    await close(*dict.fromkeys(services))
    return found


async def _never(*_: object) -> None:
    raise AssertionError("a tool ran that nobody committed")


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["", ",fault=429"])
async def test_what_headers_tell_reaches_the_attempt(wire: str, fault: str) -> None:
    """Those of an answer and those of a refusal, whose reason is noted as well."""
    spell = f"fixed@requests_left=7,tokens_left=12000,reset=3{fault}"
    async with Simulator(port=0, seed=1) as sim:
        (tally,) = await tallies(simulated(wire, sim, spell))
    news = tally.rate_limit
    assert news is not None
    assert (news.requests_left, news.tokens_left) == (7, 12000)
    assert news.requests_reset_secs == pytest.approx(3, abs=1)
    assert news.tokens_reset_secs == pytest.approx(3, abs=1)
    assert news.more(5000) == (2, news.tokens_reset_secs)
    assert tally.rate_limit_at is not None
    if fault:
        assert tally.error is not None
        assert tally.error.is_busy
        assert tally.first_answer_at is None
    else:
        assert tally.error is None
        assert tally.first_answer_at is not None
        assert tally.rate_limit_at < tally.first_answer_at


async def test_of_two_attempts_at_once_each_hears_of_its_own() -> None:
    """Over one client, whose hook was put on once and left another's hook where it was."""
    seen: list[Any] = []

    async def theirs(response: Any) -> None:
        seen.append(response)

    async with Simulator(port=0, seed=1) as sim:
        client = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url)
        client._client.event_hooks["response"].append(theirs)
        services = [
            AnthropicLLMService(
                api_key="any",
                client=client,
                settings=AnthropicLLMService.Settings(model=f"fixed@requests_left={left}"),
            )
            for left in (1, 2)
        ]
        found = await tallies(*services)
        hooks = client._client.event_hooks["response"]
        assert hooks[0] is theirs
        assert len(hooks) == len(set(hooks)), "ours are put on once for both"
    assert [t.rate_limit.requests_left for t in found if t.rate_limit is not None] == [1, 2]
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("wire", "behaviour"),
    [("google", "fixed@requests_left=7"), ("openai", "fixed"), ("anthropic", "fixed")],
)
async def test_who_tells_nothing_is_answered_all_the_same(wire: str, behaviour: str) -> None:
    """A client of another kind, or headers that say nothing of a limit."""
    async with Simulator(port=0, seed=1) as sim:
        (tally,) = await tallies(simulated(wire, sim, behaviour))
    assert tally.rate_limit is None
    assert tally.rate_limit_at is None
    assert tally.completed


@pytest.mark.parametrize("wire", WIRES)
async def test_when_an_answer_begins(wire: str) -> None:
    """With its first text, and not with its headers; a call counts when it is complete."""
    async with Simulator(port=0, seed=1) as sim:
        began = asyncio.get_running_loop().time()
        (spoken,) = await tallies(simulated(wire, sim, "fixed@ttft=0.3,headers=0,tps=20"))
        between = asyncio.get_running_loop().time()
        call = "fixed@ttft=0.1,tool=book_table"
        (called,) = await tallies(simulated(wire, sim, call), tool=True)
    assert spoken.first_answer_at is not None
    assert began + 0.3 <= spoken.first_answer_at < between
    assert called.first_answer_at is not None
    assert called.first_answer_at >= between + 0.1
