"""The vLLM service, on a server that sends what real ones send, and worse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    FunctionCallResultFrame,
    LLMContextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, VLLMService
from pipecat_hedge.race import ConfigurationError, ServerLoad
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.service.provider_client import (
    AcquirePermit,
    attempt_error,
    http_client,
    keepalive_expiry,
)
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from pipecat_hedge.vllm.server import VLLMServer
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.simulated import close

pytestmark = pytest.mark.live


def service(fake: FakeVLLM, **kwargs: Any) -> VLLMService:
    return VLLMService(base_url=fake.url, warm=False, **kwargs)


# ---- what it is given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"base_url": "localhost:8000"},
            "base_url must be an HTTP address.*http://localhost:8000/v1",
        ),
        ({"base_url": "http://gpu:8000"}, "write http://gpu:8000/v1"),
        ({"base_url": "http://gpu:8000/"}, "write http://gpu:8000/v1"),
        ({"base_url": None}, "base_url must be a string"),
        ({"priority": 0.5}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"base_ur": "x"}, "base_ur is no argument.*did you mean base_url"),
        ({"model": "tiny"}, r"model: write settings=VLLMService.Settings\(model=...\)"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    """At construction, naming the field and the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        VLLMService(**arguments)


@pytest.mark.parametrize(("key", "sent"), [(None, "Bearer EMPTY"), ("mine", "Bearer mine")])
async def test_only_the_servers_own_key_is_sent(
    monkeypatch: pytest.MonkeyPatch, key: str | None, sent: str
) -> None:
    """OPENAI_API_KEY is not for this server."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with fake_vllm() as fake, Line(service(fake, api_key=key)) as line:
        await line.ask()
    assert fake.keys == [sent]


# ---- its requests


async def test_the_model_is_the_first_that_is_served() -> None:
    """It need not be named, and metrics name it all the same."""
    async with fake_vllm(models=["tiny", "large"]) as fake:
        async with Line(service(fake)) as line:
            await line.ask()
        data = [d for frame in line.frames(MetricsFrame) for d in frame.data]
        assert any(isinstance(d, LLMUsageMetricsData) and d.model == "tiny" for d in data)
        async with Line(service(fake, settings=VLLMService.Settings(model="large"))) as line:
            await line.ask()
    assert [body["model"] for body in fake.bodies] == ["tiny", "large"]


async def test_developer_messages_are_sent_as_the_users() -> None:
    """Chat templates do not know the role."""
    context = LLMContext([{"role": "developer", "content": "Be brief."}])
    async with fake_vllm() as fake, Line(service(fake)) as line:
        await line.ask(context=context)
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "Be brief."}]


async def test_what_is_less_urgent_has_the_larger_number() -> None:
    """A hedge is sent behind a turn's first request, and an inference behind both."""
    context = LLMContext([{"role": "user", "content": "Hello?"}])
    async with fake_vllm() as fake:
        silent = Provider("silent", ScriptedLLMService([Wait(60)]))
        raced = Provider("local", service(fake, priority=10))
        policy = HedgePolicy.race(2)
        async with Line(HedgedLLMService([silent, raced], policy=policy)) as line:
            await line.ask(context=context)
        replacing = [
            Provider("broken", ScriptedLLMService([Error()])),
            Provider("local", service(fake, priority=10)),
        ]
        async with Line(HedgedLLMService(replacing)) as line:
            await line.ask(context=context)
        llm = HedgedLLMService([Provider("local", service(fake, priority=10))])
        async with Line(llm) as line:
            await line.ask(context=context)
            assert await llm.run_inference(context) == "We are open."
            context.add_message({"role": "tool", "content": "{}", "tool_call_id": "1"})
            await line.ask(context=context)
        async with Line(service(fake, priority=None)) as line:
            await line.ask()
    priorities = [body.get("priority") for body in fake.bodies]
    hedge, rescue, primary, inference, follow_up, none = priorities
    assert none is None
    assert (primary, follow_up, rescue, hedge, inference) == (10, 11, 12, 13, 15)


async def test_tools_are_sent_in_one_order() -> None:
    """Whatever order the bot has them in: they stand in front of the conversation."""

    def tools(*names: str) -> LLMContext:
        schemas = [FunctionSchema(name, "A tool.", {}, []) for name in names]
        return LLMContext([{"role": "user", "content": "Hello?"}], tools=ToolsSchema(schemas))

    async with fake_vllm() as fake, Line(service(fake, strict_tools=True)) as line:
        await line.ask(context=tools("book", "ask", "cancel"))
        await line.ask(context=tools("cancel", "book", "ask"))
    first, second = (body["tools"] for body in fake.bodies)
    assert first == second
    assert [tool["function"]["name"] for tool in first] == ["ask", "book", "cancel"]
    assert all(tool["function"]["strict"] for tool in first)


# ---- its answers

THOUGHT = "The caller wants the hours."
THINKING: dict[str, list[dict[str, Any]]] = {
    "reasoning": [
        {"reasoning": THOUGHT[:9]},
        {"reasoning": THOUGHT[9:]},
        {"content": "Till nine."},
    ],
    "reasoning_content": [{"reasoning_content": THOUGHT}, {"content": "Till nine."}],
    "inline": [{"content": f"<think>{THOUGHT}</think>\n\nTill nine."}],
    "inline, in pieces": [
        *({"content": piece} for piece in ("<th", "ink>", THOUGHT, "</", "think>", "\n", "\nTill")),
        {"content": " nine."},
    ],
    "both in one delta": [{"reasoning": THOUGHT, "content": "Till nine."}],
}


@pytest.mark.parametrize("deltas", THINKING.values(), ids=THINKING)
async def test_reasoning_becomes_thoughts(deltas: list[dict[str, Any]]) -> None:
    """None of it is answer text, and its frames are framed."""
    async with fake_vllm(deltas=deltas) as fake, Line(service(fake)) as line:
        await line.ask()
    assert line.text == "Till nine."
    assert "".join(f.text for f in line.frames(LLMThoughtTextFrame)) == THOUGHT
    kinds = [type(frame) for _, frame in line.heard]
    begin, end = kinds.index(LLMThoughtStartFrame), kinds.index(LLMThoughtEndFrame)
    assert begin < kinds.index(LLMThoughtTextFrame) < end
    assert kinds.count(LLMThoughtStartFrame) == kinds.count(LLMThoughtEndFrame) == 1


@pytest.mark.parametrize("text", ["<thin", "<think", " <"])
async def test_what_only_looks_like_reasoning_is_answer(text: str) -> None:
    """The beginning of a tag that never comes is handed on at the end."""
    async with fake_vllm(deltas=[{"content": text}]) as fake, Line(service(fake)) as line:
        await line.ask()
    assert line.text == text


def piece(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


CALLS: dict[str, list[dict[str, Any]]] = {
    "two in one delta": [
        {
            "tool_calls": [
                piece(0, "a", "ask", '{"dish": "fish"}'),
                piece(1, "b", "ask", '{"dish": "soup"}'),
            ]
        }
    ],
    "behind reasoning and text": [
        {"reasoning": "They are hungry."},
        {"content": "One moment."},
        {"tool_calls": [piece(0, "a", "ask", '{"dish": ')]},
        {"tool_calls": [piece(0, None, None, '"fish"}')]},
        {"tool_calls": [piece(1, "b", "ask", '{"dish": "soup"}')]},
    ],
}


@pytest.mark.parametrize("hedged", [False, True])
@pytest.mark.parametrize("deltas", CALLS.values(), ids=CALLS)
async def test_every_call_of_an_answer_runs(deltas: list[dict[str, Any]], hedged: bool) -> None:
    """With its own arguments and an id of its own, alone and in a race."""
    ran: list[tuple[Any, str]] = []

    async def ask(params: FunctionCallParams) -> None:
        ran.append((params.arguments["dish"], params.tool_call_id))
        await params.result_callback({"there": True})

    async with fake_vllm(deltas=deltas, finish_reason="tool_calls") as fake:
        local = service(fake)
        llm = HedgedLLMService([Provider("local", local)]) if hedged else local
        llm.register_function("ask", ask)
        async with Line(llm) as line:
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "Soup?"}])))
            await line.until(lambda: len(line.frames(FunctionCallResultFrame)) == 2)
    assert [dish for dish, _ in ran] == ["fish", "soup"]
    assert all(call_id for _, call_id in ran)
    assert len({call_id for _, call_id in ran}) == 2


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([{"tool_calls": [piece(0, "a", "ask", '{"dish": "fi')]}], "the call of ask has arguments"),
        ([{"reasoning": "Let me think about"}], "reached max_tokens before"),
        ([], "reached max_tokens before"),
    ],
)
async def test_an_answer_that_is_cut_off_with_nothing_to_show(
    deltas: list[dict[str, Any]], message: str
) -> None:
    """It is an error that says what to raise; in a race somebody else answers."""
    async with fake_vllm(deltas=deltas, finish_reason="length") as fake:
        async with Line(service(fake)) as line:
            await line.ask()
        assert message in line.errors[0].error
        assert "max_tokens" in line.errors[0].error
        other = Provider("other", ScriptedLLMService([Say("We are open.")]))
        race = HedgedLLMService([Provider("local", service(fake)), other])
        async with Line(race) as line:
            await line.ask()
    assert line.text == "We are open."


@pytest.mark.parametrize("finish_reason", ["abort", "error", None])
async def test_an_answer_that_the_server_ends_before_its_time_is_rescued(
    finish_reason: str | None,
) -> None:
    """A vLLM that is told to stop ends its streams in good order; the answer is not whole."""
    begun = [{"content": "We are open. We "}]
    other = Provider("other", ScriptedLLMService([Say("We are open. Do come by.")]))
    async with fake_vllm(deltas=begun, finish_reason=finish_reason) as fake:
        llm = HedgedLLMService([Provider("local", service(fake)), other])
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert line.text.endswith("Do come by.")


async def test_an_error_in_mid_answer() -> None:
    """It is the server's fault, is said without its words, and is news to all sessions."""
    error = {"message": "EngineCore died while it read SECRET", "code": 500}
    async with fake_vllm(error=error) as fake:
        llm = service(fake)
        async with Line(llm) as line:
            await line.ask()
            load = llm.server_load
    assert "failed in mid-answer" in line.errors[0].error
    assert "SECRET" not in line.errors[0].error
    assert line.errors[0].category is ErrorCategory.SERVER
    assert load is not None
    assert not load.is_up


async def test_a_connection_that_is_reset_in_mid_answer() -> None:
    """Alone it is told as with OpenAI's service; in a race another provider goes on."""
    async with fake_vllm(deltas=[{"content": "We are "}], resets=True) as fake:
        async with Line(service(fake)) as line:
            await line.ask()
        assert "Connection error" in line.errors[0].error
        other = ScriptedLLMService([Say("Good day.")])
        llm = HedgedLLMService([Provider("local", service(fake)), Provider("other", other)])
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
    assert report.outcome == "answered"
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert report.attempts[0].error_category == "connectivity"


# ---- its errors


async def test_a_key_that_the_server_does_not_know() -> None:
    """Whether the model is named or not, the argument is."""
    async with fake_vllm(key="right") as fake, Line(service(fake, api_key="wrong")) as line:
        await line.ask()
    assert (
        "API key. Pass the one that the server was started with (--api-key) as api_key"
        in line.errors[0].error
    )
    assert "--api-key" in line.errors[0].error
    assert line.errors[0].category is ErrorCategory.AUTHENTICATION


@pytest.mark.parametrize(
    ("status", "said", "told", "category"),
    [
        (
            401,
            "Unauthorized",
            "API key. Pass the one that the server was started with (--api-key) as api_key",
            ErrorCategory.AUTHENTICATION,
        ),
        (503, "busy", "its queue is full", ErrorCategory.SERVER),
        (500, "EngineCore: SECRET", "failed, HTTP 500: see its log", ErrorCategory.SERVER),
        (400, "bad input_value='SECRET'", "about messages", ErrorCategory.INVALID_REQUEST),
        (
            400,
            "tool_choice=function book requires --tool-call-parser to be set",
            "--enable-auto-tool-choice",
            ErrorCategory.INVALID_REQUEST,
        ),
    ],
)
async def test_each_refusal_says_what_to_do(
    status: int, said: str, told: str, category: ErrorCategory
) -> None:
    """And none repeats the server's words, which may quote the prompt."""
    refusal = (status, {"message": said, "param": "messages"})
    async with fake_vllm(refusal=refusal) as fake, Line(service(fake)) as line:
        await line.ask()
    assert told in line.errors[0].error
    assert "SECRET" not in line.errors[0].error
    assert line.errors[0].category is category
    assert attempt_error(line.errors[0]).is_busy == (status == 503)


async def test_a_server_without_tls() -> None:
    """The error says which address to write."""
    async with fake_vllm() as fake:
        llm = VLLMService(base_url=fake.url.replace("http:", "https:"), warm=False)
        async with Line(llm) as line:
            await line.ask()
    assert "write http://" in line.errors[0].error


async def test_nobody_is_there() -> None:
    """The error has the command that starts a server."""
    llm = VLLMService(base_url="http://127.0.0.1:9/v1", settings=VLLMService.Settings(model="m"))
    async with Line(llm) as line:
        await line.ask()
        assert llm.is_usable
    assert "http://127.0.0.1:9/v1 (nothing listens there)" in line.errors[0].error
    assert "`vllm serve m --port 9`" in line.errors[0].error
    assert line.errors[0].category is ErrorCategory.CONNECTIVITY


async def test_a_server_that_changes_its_model() -> None:
    """Who has named one is told; who has not gets the one that is served."""
    async with fake_vllm() as fake:
        named = service(fake, settings=VLLMService.Settings(model="tiny"))
        async with Line(named) as told, Line(service(fake)) as served:
            await told.ask()
            await served.ask()
            fake.models = ["small", "large"]
            await told.ask()
            await served.ask()
    assert "model tiny is not served" in told.errors[0].error
    assert "served: small, large" in told.errors[0].error
    assert not served.errors
    assert [b["model"] for b in fake.bodies] == ["tiny", "tiny", "tiny", "tiny", "small"]


# ---- what is logged once


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What is logged at WARNING and INFO by this package."""
    lines: list[str] = []
    sink = logger.add(
        lambda message: lines.append(message.record["message"]),
        level="INFO",
        filter="pipecat_hedge.vllm",
    )
    yield lines
    logger.remove(sink)


async def test_a_server_that_is_not_there_is_logged_once(warnings: list[str]) -> None:
    """When a session starts, although another provider answers; not again by each turn."""
    for _ in range(2):
        local = Provider("local", VLLMService(base_url="http://127.0.0.1:9/v1"))
        other = Provider("other", ScriptedLLMService([Say("Hello."), Say("Hello.")]))
        async with Line(HedgedLLMService([other, local])) as line:
            await _until(lambda: bool(warnings))
            await line.ask()
            await line.ask()
            assert not line.errors
    (warning,) = warnings
    assert "http://127.0.0.1:9/v1 (nothing listens there)" in warning
    assert "or correct base_url" in warning


async def test_a_model_that_is_not_served_is_logged_once(warnings: list[str]) -> None:
    """When a session starts, with the names that are; and once when it is served."""
    settings = VLLMService.Settings(model="large")
    async with fake_vllm(models=["tiny", "small"]) as fake:
        for _ in range(2):
            async with Line(service(fake, settings=settings)) as line:
                await _until(lambda: bool(warnings))
                await line.ask()
        assert len(warnings) == 1
        assert "model large is not served at" in warnings[0]
        assert "served: tiny, small" in warnings[0]
        fake.models = ["large"]
        async with Line(service(fake, settings=settings)):
            await _until(lambda: len(warnings) == 2)
    assert warnings[1].endswith("serves large now")


# ---- its connection


async def test_an_idle_connection_is_kept() -> None:
    """It is not the client that closes it."""
    async with fake_vllm() as fake, Line(service(fake)) as line:
        assert keepalive_expiry(http_client(service(fake))) is None
        await line.ask()
        await line.ask()
    first, second = (used for path, used in fake.requests if path.endswith("completions"))
    assert first is second


async def test_no_request_is_lost_with_a_connection_that_the_server_closes() -> None:
    """Whether it was closed before the request, or as it came; only what fails twice has failed."""
    async with fake_vllm(keep_alive_secs=0.05) as fake, Line(service(fake)) as line:
        for _ in range(3):
            await line.ask()
            (*_, (_, used)) = fake.requests
            await _until(used.is_closing)
        fake.drops = 1
        await line.ask()
        assert not line.errors
        assert len(fake.bodies) == 5
        fake.drops = 2
        await line.ask()
    assert line.errors[0].category is ErrorCategory.CONNECTIVITY


# ---- what it knows of its server


async def test_the_second_of_two_servers_is_asked_for_a_hedge_by_its_own_queue() -> None:
    """Where the one without a queue is already at work on the turn, none is left to hedge with."""
    async with fake_vllm(silent_secs=1.0) as free, fake_vllm(running=9, waiting=1) as full:
        llm = HedgedLLMService(
            [Provider("local", [service(free), service(full)])], policy=HedgePolicy.after(0.1)
        )
        async with Line(llm) as line:
            await _until(lambda: VLLMServer.shared(full.url).load is not None)
            await line.ask()
            report = await line.report()
    assert [a.outcome for a in report.attempts] == ["won"]
    assert report.hedge_reason == "no hedge: local has a queue of 1"
    assert len(free.bodies) == 1
    assert not full.bodies


async def test_session_stays_with_its_server_until_that_queues() -> None:
    """Its prefix cache holds the conversation; a new session takes the least busy one."""
    async with fake_vllm(running=1) as one, fake_vllm() as two:
        servers = [VLLMServer.shared(fake.url) for fake in (one, two)]
        for server in servers:
            server.poll_secs = 0.02
        llm = HedgedLLMService([Provider("local", [service(one), service(two)])])
        async with Line(llm) as line:
            await _until(lambda: all(server.load for server in servers))
            for running, waiting in ((0, 0), (5, 0), (5, 1), (5, 0)):
                two.running, two.waiting = running, waiting
                expected = ServerLoad(True, running, waiting)
                await _until(lambda expected=expected: servers[1].load == expected)
                await line.ask()
    assert (len(one.bodies), len(two.bodies)) == (1, 3)


async def test_an_inference_goes_where_there_is_no_queue() -> None:
    """To the idle one of two servers, and its hedge to none that has a queue."""
    async with fake_vllm(running=9, waiting=5) as full, fake_vllm(silent_secs=0.5) as free:
        two = [service(full), service(free)]
        llm = HedgedLLMService([Provider("local", two)], policy=HedgePolicy.race(2))
        async with Line(llm):
            for url in (full.url, free.url):
                server = VLLMServer.shared(url)
                await _until(lambda server=server: server.load is not None)
            context = LLMContext([{"role": "user", "content": "Sum it up."}])
            assert await llm.run_inference(context) == "We are open."
    assert not full.bodies
    assert len(free.bodies) == 1


async def test_a_request_that_finds_nobody_is_news_at_once() -> None:
    """The next turn asks another provider first; it does not wait for a look."""
    local = VLLMService(
        base_url="http://127.0.0.1:9/v1", settings=VLLMService.Settings(model="tiny"), warm=False
    )
    llms = [Provider("local", local), Provider("other", ScriptedLLMService([Say("Hello.")]))]
    llm = HedgedLLMService(llms)
    async with Line(llm) as line:
        await line.ask()
        await line.ask()
        state = llm.provider_states()[0]
    assert state.server is not None
    assert not state.server.is_up
    assert [a.provider for a in (await line.report(2)).attempts] == ["other"]


# ---- before the first turn


async def test_the_prompt_is_sent_ahead() -> None:
    """System prompt and tools, for one token, behind all other work; then a turn begins alike."""
    tools = ToolsSchema([FunctionSchema("ask", "Asks.", {}, [])])
    context = LLMContext([], tools=tools)
    settings = VLLMService.Settings(system_instruction="You take orders.")
    async with fake_vllm() as fake:
        llm = VLLMService(base_url=fake.url, settings=settings)
        before = LLMContextAggregatorPair(context).user()
        async with Line(llm, before=[before]) as line:
            await _until(lambda: bool(fake.bodies))
            context.add_message({"role": "user", "content": "A table, please."})
            await line.ask(context=context)
    ahead, turn = fake.bodies
    assert (ahead["max_tokens"], ahead["priority"], turn["priority"]) == (1, 4, 0)
    assert ahead["tools"] == turn["tools"]
    assert ahead["messages"][:-1] == turn["messages"][:1]
    assert ahead["messages"][0] == {"role": "system", "content": "You take orders."}


async def test_the_prompt_is_sent_ahead_where_the_models_are_not_listed() -> None:
    """As by a gateway: the model is named, so it need not be found."""
    context = LLMContext([{"role": "user", "content": "You take orders."}])
    async with fake_vllm(key="which the list of models alone wants") as fake:
        llm = VLLMService(base_url=fake.url, settings=VLLMService.Settings(model="tiny"))
        async with Line(llm, before=[LLMContextAggregatorPair(context).user()]):
            await _until(lambda: fake.answered == 1)
    assert fake.bodies[0]["max_tokens"] == 1


async def test_in_a_race_the_prompt_is_sent_ahead_once_a_server() -> None:
    """With the context of the aggregator in front; several instances do it once."""
    context = LLMContext([{"role": "user", "content": "You take orders."}])
    async with fake_vllm(silent_secs=0.2) as fake:
        local = Provider("local", [VLLMService(base_url=fake.url) for _ in range(2)])
        hosted = Provider("hosted", ScriptedLLMService([Say("Hello.")]))
        llm = HedgedLLMService([hosted, local])
        async with Line(llm, before=[LLMContextAggregatorPair(context).user()]):
            await llm.warm_up()
    assert len(fake.bodies) == 1
    assert fake.bodies[0]["max_tokens"] == 1
    assert fake.bodies[0]["messages"] == context.messages


async def test_who_is_interrupted_while_reading_ahead_leaves_it_to_the_next() -> None:
    """Who waits holds no permit: however many sessions begin at once, one request is in flight."""
    context = LLMContext([{"role": "user", "content": "You take orders."}])
    async with fake_vllm(silent_secs=0.2) as fake, AsyncExitStack() as sessions:
        stats = ProviderStats()
        llms = [HedgedLLMService([service(fake)], warm=False, stats=stats) for _ in range(10)]
        for llm in llms:
            await sessions.enter_async_context(Line(llm))
        readers = [asyncio.create_task(llm.warm_up(context)) for llm in llms]
        await _until(lambda: len(fake.bodies) == 1)
        (entry,) = stats.health.entries().values()
        assert entry.limit.in_flight == 1
        readers[0].cancel()
        await asyncio.wait(readers[1:])
        assert len(fake.bodies) == 2
        assert entry.limit.in_flight == 0
        assert [reader.cancelled() for reader in readers] == [True, *[False] * 9]


async def test_a_turn_ends_the_sending_ahead_to_whom_it_asks_alone() -> None:
    """The other server of a provider is read ahead to its end."""
    context = LLMContext([{"role": "user", "content": "You take orders."}])
    async with fake_vllm(silent_secs=0.3) as one, fake_vllm(silent_secs=0.3) as other:
        two = [VLLMService(base_url=one.url), VLLMService(base_url=other.url)]
        llm = HedgedLLMService([Provider("local", two)])
        async with Line(llm, before=[LLMContextAggregatorPair(context).user()]) as line:
            await _until(lambda: len(one.bodies) == len(other.bodies) == 1)
            await line.ask()
            await _until(lambda: other.answered == 1)
    assert [body["max_tokens"] for body in other.bodies] == [1]
    assert len(one.bodies) == 2


async def test_a_prompt_that_asks_for_markers_is_sent_ahead_once() -> None:
    """Turn completion changes the prompt before the session has begun to prepare."""
    context = LLMContext([{"role": "user", "content": "You take orders."}])
    async with fake_vllm() as fake:
        settings = LLMSettings(filter_incomplete_user_turns=True)
        llm = HedgedLLMService([VLLMService(base_url=fake.url)], settings=settings)
        async with Line(llm, before=[LLMContextAggregatorPair(context).user()]):
            await _until(lambda: fake.answered == 1)
    assert len(fake.bodies) == 1


async def test_nothing_is_sent_ahead_where_there_is_nothing_to_read() -> None:
    """An empty conversation has no beginning."""
    async with fake_vllm() as fake:
        llm = VLLMService(base_url=fake.url)
        async with Line(llm, before=[LLMContextAggregatorPair(LLMContext()).user()]) as line:
            await line.ask()
    assert len(fake.bodies) == 1


async def test_what_is_sent_ahead_asks_for_one_token_whatever_the_settings() -> None:
    """Only what changes the prompt is sent along; a forced tool is part of it, and not called."""
    tools = ToolsSchema([FunctionSchema("ask", "Asks.", {}, [])])
    body = {"min_tokens": 20, "chat_template_kwargs": {"enable_thinking": False}}
    settings = VLLMService.Settings(max_tokens=200, extra={"extra_body": body})
    async with fake_vllm() as fake:
        llm = service(fake, settings=settings)
        async with Line(llm):
            await llm.warm(LLMContext([], tools=tools, tool_choice="required"))
    (sent,) = fake.bodies
    assert (sent["max_tokens"], sent["tool_choice"]) == (1, "none")
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert "min_tokens" not in sent
    assert sent["messages"][-1]["role"] == "user"


@pytest.mark.parametrize("wire", ["vllm", "anthropic"])
async def test_each_turns_prompt_begins_with_the_one_before(wire: str) -> None:
    """What a cache has read stays at the front: instruction, tools, and all that was said."""
    tools = ToolsSchema([FunctionSchema(name, "A tool.", {}, []) for name in ("book", "ask")])
    context = LLMContext([], tools=tools)
    instruction = LLMSettings(system_instruction="You take orders.")
    async with fake_vllm() as fake:
        client = AsyncAnthropic(api_key="any", base_url=fake.url[:-3], max_retries=0)
        hosted = AnthropicLLMService(api_key="any", client=client)
        local = service(fake) if wire == "vllm" else hosted
        llm = HedgedLLMService([local], settings=instruction)
        async with Line(llm) as line:
            for said in ("A table.", "For two.", "On Sunday."):
                context.add_message({"role": "user", "content": said})
                await line.ask(context=context)
                context.add_message({"role": "assistant", "content": "Very well."})
        await close(hosted)
    prompts = [_unmarked(body) for body in fake.bodies]
    assert len(prompts) == 3
    for before, after in pairwise(prompts):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after["tools"] == before["tools"]
        assert after.get("system") == before.get("system")
    if wire == "anthropic":
        assert all("cache_control" in json.dumps(body) for body in fake.bodies)


def _unmarked(body: Any) -> Any:
    """A request without Anthropic's marks of where its cache is to be filled, which move on."""
    if isinstance(body, dict):
        text = body.get("content")
        if isinstance(text, str):  # a mark makes a block of it
            body = {**body, "content": [{"type": "text", "text": text}]}
        return {k: _unmarked(v) for k, v in body.items() if k != "cache_control"}
    return [_unmarked(part) for part in body] if isinstance(body, list) else body


async def test_the_first_turn_does_not_wait_for_what_is_sent_ahead() -> None:
    """A turn ends the warming up of whom it asks."""
    waiting = asyncio.Event()

    class Slow(ScriptedLLMService):
        async def warm(self, context: LLMContext, acquire_permit: AcquirePermit) -> None:
            waiting.set()
            await asyncio.Event().wait()

    llm = HedgedLLMService([Slow([Say("Hello.")])])
    context = LLMContext([{"role": "user", "content": "Hello?"}])
    async with Line(llm, before=[LLMContextAggregatorPair(context).user()]) as line:
        await waiting.wait()
        await line.ask()
    assert line.text == "Hello."


async def _until(holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)
