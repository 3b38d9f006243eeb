"""The vLLM service, on a server that sends what real ones send, and worse."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
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
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, VLLMService
from pipecat_hedge.race import ServerLoad
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.service.provider_client import (
    attempt_error,
    http_client,
    keepalive_expiry,
)
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from pipecat_hedge.vllm.server import VLLMServer
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.waiting import until

pytestmark = pytest.mark.live

NOBODY = "http://127.0.0.1:9/v1"


def service(fake: FakeVLLM, **kwargs: Any) -> VLLMService:
    return VLLMService(base_url=fake.url, warm=False, **kwargs)


async def asked(
    context: LLMContext | None = None, *, options: dict[str, Any] | None = None, **what: Any
) -> tuple[FakeVLLM, Line]:
    """One turn of the service alone, on a server that does ``what``."""
    async with fake_vllm(**what) as fake, Line(service(fake, **options or {})) as line:
        await line.ask(context=context)
        return fake, line


def raced(local: VLLMService, *others: LLMService[Any], **options: Any) -> HedgedLLMService:
    names = ("local", "other")
    return HedgedLLMService(list(map(Provider, names, (local, *others))), **options)


def says(text: str) -> ScriptedLLMService:
    return ScriptedLLMService([Say(text)])


def user(text: str = "Hello?", **options: Any) -> LLMContext:
    return LLMContext([{"role": "user", "content": text}], **options)


def aggregator(context: LLMContext) -> Any:
    return LLMContextAggregatorPair(context).user()


# ---- what it is given


@pytest.mark.parametrize(("key", "sent"), [(None, "Bearer EMPTY"), ("mine", "Bearer mine")])
async def test_only_the_servers_own_key_is_sent(
    monkeypatch: pytest.MonkeyPatch, key: str | None, sent: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    fake, _ = await asked(options={"api_key": key})
    assert fake.keys == [sent]


# ---- its requests


async def test_default_model_is_the_first_that_is_served() -> None:
    """Metrics name it all the same."""
    fake, line = await asked(models=["tiny", "large"])
    data = [d for frame in line.frames(MetricsFrame) for d in frame.data]
    assert any(isinstance(d, LLMUsageMetricsData) and d.model == "tiny" for d in data)
    named = {"settings": VLLMService.Settings(model="large")}
    other, _ = await asked(models=["tiny", "large"], options=named)
    assert [body["model"] for body in fake.bodies + other.bodies] == ["tiny", "large"]


async def test_developer_messages_are_sent_as_the_users() -> None:
    """Chat templates do not know the role."""
    fake, _ = await asked(LLMContext([{"role": "developer", "content": "Be brief."}]))
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "Be brief."}]


async def test_less_urgent_requests_have_larger_priorities() -> None:
    """A hedge is sent behind a turn's first request, and an inference behind both."""
    context = user()
    async with fake_vllm() as fake:
        for step, policy in ((Wait(60), HedgePolicy.race(2)), (Error(), HedgePolicy.fallback())):
            llms = [ScriptedLLMService([step]), service(fake, priority=10)]
            async with Line(HedgedLLMService(llms, policy=policy)) as line:
                await line.ask(context=context)
        llm = raced(service(fake, priority=10))
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
    """Whatever order the bot has them in: they precede the conversation."""
    async with fake_vllm() as fake, Line(service(fake, strict_tools=True)) as line:
        for names in (("book", "ask", "cancel"), ("cancel", "book", "ask")):
            schemas = [FunctionSchema(name, "A tool.", {}, []) for name in names]
            await line.ask(context=user(tools=ToolsSchema(schemas)))
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
    "inline, in pieces": [
        *({"content": piece} for piece in ("<th", "ink>", THOUGHT, "</", "think>", "\n", "\nTill")),
        {"content": " nine."},
    ],
    "both in one delta": [{"reasoning": THOUGHT, "content": "Till nine."}],
}


@pytest.mark.parametrize("deltas", THINKING.values(), ids=THINKING)
async def test_reasoning_becomes_thoughts(deltas: list[dict[str, Any]]) -> None:
    """None of it is answer text, and its frames are framed."""
    _, line = await asked(deltas=deltas)
    assert line.text == "Till nine."
    assert "".join(f.text for f in line.frames(LLMThoughtTextFrame)) == THOUGHT
    kinds = [type(frame) for _, frame in line.heard]
    begin, end = kinds.index(LLMThoughtStartFrame), kinds.index(LLMThoughtEndFrame)
    assert begin < kinds.index(LLMThoughtTextFrame) < end
    assert kinds.count(LLMThoughtStartFrame) == kinds.count(LLMThoughtEndFrame) == 1


@pytest.mark.parametrize("text", ["<thin", "<think", " <"])
async def test_incomplete_reasoning_tag_is_answer(text: str) -> None:
    _, line = await asked(deltas=[{"content": text}])
    assert line.text == text


def piece(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("hedged", [False, True])
async def test_every_call_of_an_answer_runs(hedged: bool) -> None:
    """With its own arguments and an id of its own, alone and in a race."""
    ran: list[tuple[Any, str]] = []

    async def ask(params: FunctionCallParams) -> None:
        ran.append((params.arguments["dish"], params.tool_call_id))
        await params.result_callback({"there": True})

    calls = [piece(1, "b", "ask", '{"dish": "soup"}'), piece(2, "c", "ask", '{"dish": "pie"}')]
    deltas = [
        {"reasoning": "They are hungry."},
        {"content": "One moment."},
        {"tool_calls": [piece(0, "a", "ask", '{"dish": ')]},
        {"tool_calls": [piece(0, None, None, '"fish"}')]},
        {"tool_calls": calls},
    ]
    async with fake_vllm(deltas=deltas, finish_reason="tool_calls") as fake:
        llm = raced(service(fake)) if hedged else service(fake)
        llm.register_function("ask", ask)
        async with Line(llm) as line:
            await line.send(LLMContextFrame(user("Soup?")))
            await line.until(lambda: len(line.frames(FunctionCallResultFrame)) == 3)
    assert [dish for dish, _ in ran] == ["fish", "soup", "pie"]
    assert len({call_id for _, call_id in ran if call_id}) == 3


BEGUN = [{"content": "We are open. We "}]
CUT_CALL = [{"tool_calls": [piece(0, "a", "ask", '{"dish": "fi')]}]


@pytest.mark.parametrize(
    ("what", "message", "category"),
    [
        (
            {"deltas": CUT_CALL, "finish_reason": "length"},
            "arguments .* raise max_tokens",
            "unknown",
        ),
        (
            {"deltas": [{"reasoning": "Let me"}], "finish_reason": "length"},
            "reached max_tokens before .* raise max_tokens",
            "unknown",
        ),
        # A vLLM that is told to stop ends its streams in good order.
        ({"deltas": BEGUN, "finish_reason": "abort"}, "ended the answer early", "unknown"),
        ({"deltas": BEGUN, "finish_reason": "error"}, "ended the answer early", "unknown"),
        ({"deltas": BEGUN, "finish_reason": None}, "ended the answer early", "unknown"),
        ({"deltas": BEGUN, "resets": True}, "Connection error", "connectivity"),
    ],
)
async def test_incomplete_answer_is_completed_by_another_provider(
    what: dict[str, Any], message: str, category: str
) -> None:
    """Alone it is an error, with a remedy where there is one."""
    async with fake_vllm(**what) as fake:
        async with Line(service(fake)) as alone:
            await alone.ask()
        async with Line(raced(service(fake), says("We are open. Do come by."))) as line:
            await line.ask()
            report = await line.report()
    assert re.search(message, alone.errors[0].error)
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert report.attempts[0].error_category == category
    assert line.text.endswith("Do come by.")


async def test_error_in_mid_answer_marks_the_server_down() -> None:
    """Without the server's text, which may quote the prompt."""
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


# ---- its errors

API_KEY = "API key. Pass the one that the server was started with (--api-key) as api_key"
NO_PARSER = "tool_choice=function book requires --tool-call-parser to be set"


async def test_unknown_key_is_named() -> None:
    """Before a request, when the models are listed."""
    _, line = await asked(key="right", options={"api_key": "wrong"})
    assert API_KEY in line.errors[0].error
    assert line.errors[0].category is ErrorCategory.AUTHENTICATION


@pytest.mark.parametrize(
    ("status", "text", "message", "category"),
    [
        (401, "Unauthorized", API_KEY, ErrorCategory.AUTHENTICATION),
        (503, "busy", "its queue is full", ErrorCategory.SERVER),
        (500, "EngineCore: SECRET", "failed, HTTP 500: see its log", ErrorCategory.SERVER),
        (400, "bad input_value='SECRET'", "about messages", ErrorCategory.INVALID_REQUEST),
        (400, NO_PARSER, "--enable-auto-tool-choice", ErrorCategory.INVALID_REQUEST),
    ],
)
async def test_each_rejection_names_its_remedy(
    status: int, text: str, message: str, category: ErrorCategory
) -> None:
    """None repeats the server's text, which may quote the prompt."""
    _, line = await asked(rejection=(status, {"message": text, "param": "messages"}))
    (error,) = line.errors
    assert message in error.error
    assert "SECRET" not in error.error
    assert error.category is category
    assert attempt_error(error).is_busy == (status == 503)


async def test_unreachable_server_names_the_remedy() -> None:
    """The right scheme, or the command that starts a server."""
    async with fake_vllm() as fake:
        secure = VLLMService(base_url=fake.url.replace("http:", "https:"), warm=False)
        llm = VLLMService(base_url=NOBODY, settings=VLLMService.Settings(model="m"))
        async with Line(secure) as one, Line(llm) as other:
            await one.ask()
            await other.ask()
            assert llm.is_usable
    assert "write http://" in one.errors[0].error
    assert f"{NOBODY} (nothing listens there)" in other.errors[0].error
    assert "`vllm serve m --port 9`" in other.errors[0].error
    assert other.errors[0].category is ErrorCategory.CONNECTIVITY


async def test_changed_model_is_an_error_only_if_named() -> None:
    async with fake_vllm() as fake:
        named = service(fake, settings=VLLMService.Settings(model="tiny"))
        async with Line(named) as one, Line(service(fake)) as other:
            await one.ask()
            await other.ask()
            fake.models = ["small", "large"]
            await one.ask()
            await other.ask()
    assert "model tiny is not served" in one.errors[0].error
    assert "served: small, large" in one.errors[0].error
    assert not other.errors
    assert [b["model"] for b in fake.bodies] == ["tiny", "tiny", "tiny", "tiny", "small"]


# ---- what is logged once


async def test_missing_server_is_logged_once(logged: list[str]) -> None:
    """When a session starts, although another provider answers; not again by each turn."""
    for _ in range(2):
        llm = HedgedLLMService([says("Hello."), VLLMService(base_url=NOBODY)])
        async with Line(llm) as line:
            await until(lambda: bool(logged))
            await line.ask()
            await line.ask()
            assert not line.errors
    (warning,) = logged
    assert f"{NOBODY} (nothing listens there)" in warning
    assert "or correct base_url" in warning


async def test_missing_model_is_logged_once(logged: list[str]) -> None:
    """When a session starts, with the names that are; and once when it is served."""
    settings = VLLMService.Settings(model="large")
    async with fake_vllm(models=["tiny", "small"]) as fake:
        for _ in range(2):
            async with Line(service(fake, settings=settings)) as line:
                await until(lambda: bool(logged))
                await line.ask()
        assert len(logged) == 1
        assert "model large is not served at" in logged[0]
        assert "served: tiny, small" in logged[0]
        fake.models = ["large"]
        async with Line(service(fake, settings=settings)):
            await until(lambda: len(logged) == 2)
    assert logged[1].endswith("serves large now")


# ---- its connection


async def test_idle_connection_is_kept() -> None:
    """It is not the client that closes it."""
    async with fake_vllm() as fake, Line(service(fake)) as line:
        assert keepalive_expiry(http_client(service(fake))) is None
        await line.ask()
        await line.ask()
    first, second = (used for path, used in fake.requests if path.endswith("completions"))
    assert first is second


async def test_closed_connection_loses_no_request() -> None:
    """Whether it was closed before the request, or as it came; only what fails twice has failed."""
    async with fake_vllm(keep_alive_secs=0.05) as fake, Line(service(fake)) as line:
        for _ in range(3):
            await line.ask()
            (*_, (_, used)) = fake.requests
            await until(used.is_closing)
        fake.drops = 1
        await line.ask()
        assert not line.errors
        assert len(fake.bodies) == 5
        fake.drops = 2
        await line.ask()
    assert line.errors[0].category is ErrorCategory.CONNECTIVITY


# ---- what it knows of its server


async def test_queue_of_each_server_counts_for_itself() -> None:
    """A provider's idle server is at work on the turn; its other one has a queue: no hedge."""
    async with fake_vllm(silent_secs=1.0) as free, fake_vllm(running=9, waiting=1) as full:
        local = Provider("local", [service(free), service(full)])
        llm = HedgedLLMService([local], policy=HedgePolicy.after(0.1))
        async with Line(llm) as line:
            await until(lambda: VLLMServer.shared(full.url).load is not None)
            await line.ask()
            report = await line.report()
    assert [a.outcome for a in report.attempts] == ["won"]
    assert report.hedge_reason == "no hedge: local has a queue of 1"
    assert (len(free.bodies), len(full.bodies)) == (1, 0)


async def test_session_stays_with_its_server_until_that_queues() -> None:
    """Its prefix cache holds the conversation; a new session takes the least busy one."""
    async with fake_vllm(running=1) as one, fake_vllm() as two:
        servers = [VLLMServer.shared(fake.url) for fake in (one, two)]
        for server in servers:
            server.poll_secs = 0.02
        llm = HedgedLLMService([Provider("local", [service(one), service(two)])])
        async with Line(llm) as line:
            await until(lambda: all(server.load for server in servers))
            for running, waiting in ((0, 0), (5, 0), (5, 1), (5, 0)):
                two.running, two.waiting = running, waiting
                expected = ServerLoad(True, running, waiting)
                await until(lambda expected=expected: servers[1].load == expected)
                await line.ask()
    assert (len(one.bodies), len(two.bodies)) == (1, 3)


async def test_inference_avoids_a_queue() -> None:
    """It goes to the idle one of two servers, and its hedge nowhere."""
    async with fake_vllm(running=9, waiting=5) as full, fake_vllm(silent_secs=0.5) as free:
        two = Provider("local", [service(full), service(free)])
        llm = HedgedLLMService([two], policy=HedgePolicy.race(2))
        async with Line(llm):
            servers = [VLLMServer.shared(fake.url) for fake in (full, free)]
            await until(lambda: all(server.load is not None for server in servers))
            assert await llm.run_inference(user("Sum it up.")) == "We are open."
    assert (len(free.bodies), len(full.bodies)) == (1, 0)


async def test_failed_connection_marks_the_server_down_at_once() -> None:
    """The next turn asks another provider first; it does not wait for a look."""
    settings = VLLMService.Settings(model="tiny")
    llm = raced(VLLMService(base_url=NOBODY, settings=settings, warm=False), says("Hello."))
    async with Line(llm) as line:
        await line.ask()
        await line.ask()
        state = llm.provider_states()[0]
    assert state.server is not None
    assert not state.server.is_up
    report = await line.report(2)
    assert [a.provider for a in report.attempts] == ["other"]
    assert report.routing_reason == "local is down (nothing listens there)"


# ---- before the first turn


async def test_prompt_is_sent_ahead() -> None:
    """System prompt and tools, for one token, behind all other work; then a turn begins alike."""
    context = LLMContext([], tools=ToolsSchema([FunctionSchema("ask", "Asks.", {}, [])]))
    settings = VLLMService.Settings(system_instruction="You take orders.")
    async with fake_vllm() as fake:
        llm = VLLMService(base_url=fake.url, settings=settings)
        async with Line(llm, before=[aggregator(context)]) as line:
            await until(lambda: bool(fake.bodies))
            context.add_message({"role": "user", "content": "A table, please."})
            await line.ask(context=context)
    ahead, turn = fake.bodies
    assert (ahead["max_tokens"], ahead["priority"], turn["priority"]) == (1, 4, 0)
    assert ahead["tools"] == turn["tools"]
    assert ahead["messages"][:-1] == turn["messages"][:1]
    assert ahead["messages"][0] == {"role": "system", "content": "You take orders."}


@pytest.mark.parametrize(
    ("what", "hedged_settings"),
    [
        # A gateway: the model is named, so it need not be found.
        pytest.param({"key": "for the list of models alone"}, None, id="models not listed"),
        # Turn completion changes the prompt before the session has begun to prepare.
        pytest.param({}, LLMSettings(filter_incomplete_user_turns=True), id="with markers"),
    ],
)
async def test_prompt_is_sent_ahead_once(what: Any, hedged_settings: LLMSettings | None) -> None:
    context = user("You take orders.")
    async with fake_vllm(**what) as fake:
        llm: Any = VLLMService(base_url=fake.url, settings=VLLMService.Settings(model="tiny"))
        if hedged_settings is not None:
            llm = raced(llm, settings=hedged_settings)
        async with Line(llm, before=[aggregator(context)]):
            await until(lambda: fake.answered == 1)
    assert [body["max_tokens"] for body in fake.bodies] == [1]


async def test_empty_conversation_is_not_sent_ahead() -> None:
    async with fake_vllm() as fake:
        llm = VLLMService(base_url=fake.url)
        async with Line(llm, before=[aggregator(LLMContext())]) as line:
            await line.ask()
    assert len(fake.bodies) == 1


async def test_interrupted_sending_ahead_is_left_to_the_next() -> None:
    """Waiting holds no permit: however many sessions begin at once, one request is in flight."""
    context = user("You take orders.")
    async with fake_vllm(silent_secs=0.2) as fake, AsyncExitStack() as sessions:
        stats = ProviderStats()
        llms = [HedgedLLMService([service(fake)], warm=False, stats=stats) for _ in range(10)]
        for llm in llms:
            await sessions.enter_async_context(Line(llm))
        readers = [asyncio.create_task(llm.warm_up(context)) for llm in llms]
        await until(lambda: len(fake.bodies) == 1)
        (entry,) = stats.records().values()
        assert entry.limit.in_flight == 1
        readers[0].cancel()
        await asyncio.wait(readers[1:])
        assert len(fake.bodies) == 2
        assert entry.limit.in_flight == 0
        assert [reader.cancelled() for reader in readers] == [True, *[False] * 9]


async def test_turn_ends_the_sending_ahead_only_at_its_own_server() -> None:
    context = user("You take orders.")
    async with fake_vllm(silent_secs=0.3) as one, fake_vllm(silent_secs=0.3) as other:
        two = [VLLMService(base_url=one.url), VLLMService(base_url=other.url)]
        llm = HedgedLLMService([Provider("local", two)])
        async with Line(llm, before=[aggregator(context)]) as line:
            await until(lambda: len(one.bodies) == len(other.bodies) == 1)
            await line.ask()
            await until(lambda: other.answered == 1)
    assert [body["max_tokens"] for body in other.bodies] == [1]
    assert len(one.bodies) == 2


async def test_prompt_sent_ahead_asks_for_one_token_whatever_the_settings() -> None:
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


async def test_each_turns_prompt_begins_with_the_one_before() -> None:
    """What a cache has read stays at the front: instruction, and all that was said."""
    context = LLMContext([])
    settings = LLMSettings(system_instruction="You take orders.")
    async with fake_vllm() as fake, Line(raced(service(fake), settings=settings)) as line:
        for said in ("A table.", "For two.", "On Sunday."):
            context.add_message({"role": "user", "content": said})
            await line.ask(context=context)
            context.add_message({"role": "assistant", "content": "Very well."})
    prompts = [body["messages"] for body in fake.bodies]
    assert [len(prompt) for prompt in prompts] == [2, 4, 6]
    assert all(after[: len(before)] == before for before, after in pairwise(prompts))
