"""The official SDKs find nothing unusual: answers, tools, usage, in all three wire formats."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.providers import PROFILES
from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import WIRES, close, simulated

from .sdk import PARAMETERS, AnthropicSdk, OpenAISdk, Sdk

pytestmark = pytest.mark.live

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
FAST = "fixed@ttft=0.01,tps=2000"
BOOKING = "i would like to book a table for two at seven"
REASONS = {
    # a whole answer, one that was too long, a tool call
    "openai": ("stop", "length", "tool_calls"),
    "anthropic": ("end_turn", "max_tokens", "tool_use"),
    "google": ("STOP", "MAX_TOKENS", "STOP"),
}
OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
GOOGLE = f"/v1beta/models/{FAST}:generateContent"


async def post(sim: Simulator, path: str, body: Any) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(sim.url + path, data=data) as response,
    ):
        return response.status, await response.text()


async def test_an_answer_streamed_and_whole(sim: Simulator, sdk: Sdk):
    """A word at a time, with its stop reason and usage."""
    pieces = [piece async for piece in sdk.stream(FAST)]
    streamed, whole = sdk.answer, await sdk.ask(FAST)
    assert pieces[:3] == ["Yes,", " we", " do."]
    for answer in (streamed, whole):
        assert (answer.text, answer.reason) == (DELIVERY, REASONS[sdk.name][0])
        assert answer.output_tokens == len(pieces)
        assert answer.input_tokens >= 3
    first, second = sim.ledger.requests
    assert (first.wire, first.outcome, first.status) == (sdk.name, "completed", 200)
    assert (first.stream, first.tokens_sent, first.profile) == (True, len(pieces), "fixed")
    assert second.stream is False


async def test_a_tool_call_streamed_and_whole(sdk: Sdk):
    """The advertised tool, or the one that the model name forces."""
    assert [piece async for piece in sdk.stream(FAST, BOOKING, ("book_table",))] == []
    assert sdk.answer.tools == [("book_table", {"party_size": 2, "time": "19:00"})]
    assert sdk.answer.reason == REASONS[sdk.name][2]
    answer = await sdk.ask(FAST + ',tool=look_up,args={"dish":"curry"}', "hello", ("look_up",))
    assert (answer.text, answer.tools) == ("", [("look_up", {"dish": "curry"})])
    assert answer.reason == REASONS[sdk.name][2]


async def test_max_tokens_cuts_an_answer(sdk: Sdk):
    answer = await sdk.ask(FAST, limit=3)
    assert (answer.text, answer.reason) == ("Yes, we do.", REASONS[sdk.name][1])


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        (
            ",answer=Hello%20from%20A%2C%20is%20it%20you%3F%20100%25%20sure%20%26%20%2Fok",
            "hello",
            "Hello from A, is it you? 100% sure & /ok",
        ),
        ("", "?answer=As%20told.", "As told."),
    ],
    ids=["model name", "user's message"],
)
async def test_an_answer_can_be_set(sdk: Sdk, keys: str, text: str, expected: str):
    assert "".join([piece async for piece in sdk.stream(FAST + keys, text)]) == expected


@pytest.mark.parametrize("usage", [True, False])
async def test_openai_stream_in_detail(sim: Simulator, usage: bool):
    """The role first, alone; usage last, if it was asked for, without choices; then `[DONE]`."""
    body = {
        "model": FAST,
        "messages": [{"role": "user", "content": "do you deliver"}],
        "stream": True,
        "stream_options": {"include_usage": usage},
    }
    _, text = await post(sim, OPENAI, body)
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk")
    }
    if usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], len(DELIVERY.split()))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk.get("usage") is None for chunk in chunks)


async def test_anthropic_stream_in_detail(sim: Simulator):
    """Events have their names and come in Anthropic's order."""
    body = {
        "model": FAST,
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "do you deliver"}]}],
    }
    _, text = await post(sim, f"{ANTHROPIC}?beta=true", body)
    events = [event.split("\n") for event in text.split("\n\n")[:-1]]
    names = [name.removeprefix("event: ") for name, _ in events]
    assert names == [json.loads(data.removeprefix("data: "))["type"] for _, data in events]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_tool_result_is_confirmed(sim: Simulator, wire: str):
    """Pipecat's services bring it, each in its wire format; after it the model speaks."""
    call = {"id": "c", "type": "function", "function": {"name": "book_table", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": BOOKING},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"ok": true}'},
    ]
    tool = FunctionSchema("book_table", "Books a table.", PARAMETERS["properties"], [])
    tools = ToolsSchema(standard_tools=[tool])
    llm = simulated(wire, sim, FAST)
    answer = await llm.run_inference(LLMContext(messages, tools))
    await close(llm)
    assert "table for two at seven" in (answer or "")


async def test_tool_choice_none_calls_no_tool(sim: Simulator):
    tool = {"type": "function", "function": {"name": "book_table"}}
    body = {"model": FAST, "messages": [{"role": "user", "content": BOOKING}], "tools": [tool]}
    _, text = await post(sim, OPENAI, {**body, "tool_choice": "none"})
    assert json.loads(text)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("kind", [OpenAISdk, AnthropicSdk])
async def test_models_are_listed(sim: Simulator, kind: Any):
    sdk = kind(sim)
    assert [model.id async for model in sdk.client.models.list()] == list(PROFILES)
    await sdk.close()


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("gpt-9", 404, "unknown profile 'gpt-9'.*gemma-4-31b-baseten"),
        ("fixed@fault=nope", 400, "fault: unknown fault 'nope'.*slow_close"),
        ("fixed@speed=1", 400, "speed: unknown key; known keys: ttft"),
    ],
)
async def test_a_bad_model_name_is_explained(
    sim: Simulator, sdk: Sdk, model: str, status: int, message: str
):
    """With the wire format's own error, streamed or not."""
    for answer in (sdk.ask(model), anext(sdk.stream(model))):
        with pytest.raises(Exception, match=message) as raised:
            await answer
        assert getattr(raised.value, "status_code", getattr(raised.value, "code", 0)) == status
    assert {entry.outcome for entry in sim.ledger.requests} == {"failed"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (OPENAI, b"{", "the body is not JSON"),
        (OPENAI, b"[]", "not a JSON object"),
        (OPENAI, b'{"messages": []}', "model: expected"),
        (OPENAI, b'{"model": "fixed"}', "messages: expected a list"),
        (OPENAI, b'{"model": "fixed", "messages": []}', "at least one"),
        (
            OPENAI,
            b'{"model": "fixed", "messages": [{}], "max_tokens": "x"}',
            "max_tokens: expected a whole number",
        ),
        (OPENAI, b'{"model":"fixed","messages":[{}],"tools":[{"function":3}]}', None),
        (ANTHROPIC, b'{"model": "fixed", "messages": [{}]}', "max_tokens: Field required"),
        (ANTHROPIC, b'{"model": "fixed", "messages": [3]}', "messages: expected a list"),
        (GOOGLE, b"{}", "contents: expected a list"),
        (GOOGLE, b'{"contents": [{}], "tools": [3]}', "shape of a request"),
        ("/v1/embeddings", b"{}", "POST /v1/chat/completions"),
        ("/v1beta/models/fixed:countTokens", b"{}", "POST /v1/chat/completions"),
    ],
)
async def test_a_bad_request_is_explained(
    sim: Simulator, path: str, body: bytes, message: str | None
):
    """A 400 that names the field, or a 404 that lists the known addresses; never a crash."""
    status, text = await post(sim, path, body)
    is_known = path in (OPENAI, ANTHROPIC, GOOGLE)
    assert status == (200 if message is None else 400 if is_known else 404)
    assert message is None or message in json.loads(text)["error"]["message"]
    assert not sim.ledger.open


async def test_the_ledger_keeps_no_key_and_no_text(sim: Simulator):
    async with OpenAISdk(sim).client.with_options(api_key="sk-secret") as client:
        messages = [{"role": "user", "content": "my name is Rumpelstiltskin"}]
        await client.chat.completions.create(model=FAST, messages=messages)
    kept = json.dumps(sim.ledger.as_dict())
    assert "sk-secret" not in kept
    assert "Rumpelstiltskin" not in kept


@pytest.mark.parametrize("wire", ["anthropic", "google"])
async def test_question_after_the_greeting_is_answered(sim: Simulator, wire: str) -> None:
    """Clients merge the instruction to greet with what the caller said over the greeting."""
    texts = [{"text": "Greet the caller in one sentence."}, {"text": "Do you deliver?"}]
    path, body = {
        "anthropic": (
            ANTHROPIC,
            {
                "model": FAST,
                "max_tokens": 99,
                "messages": [
                    {"role": "user", "content": [{"type": "text", **text} for text in texts]}
                ],
            },
        ),
        "google": (GOOGLE, {"contents": [{"role": "user", "parts": texts}]}),
    }[wire]
    status, answer = await post(sim, path, body)
    assert status == 200
    assert DELIVERY in answer
