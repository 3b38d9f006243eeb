"""The official SDKs find nothing unusual: answers, tools, usage, on all three wires."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import openai
import pytest

from pipecat_hedge.policy import PROFILES
from pipecat_hedge.tools.simulator import Simulator

from .sdk import AnthropicSdk, GoogleSdk, OpenAISdk, Sdk, drain

pytestmark = pytest.mark.live

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
FAST = "fixed@ttft=0.01,tps=2000"
STOPPED = {"openai": "stop", "anthropic": "end_turn", "google": "STOP"}
TRUNCATED = {"openai": "length", "anthropic": "max_tokens", "google": "MAX_TOKENS"}
CALLED = {"openai": "tool_calls", "anthropic": "tool_use", "google": "STOP"}


async def test_streamed_answer(sim: Simulator, sdk: Sdk):
    """A streamed answer comes a word at a time, with its stop reason and usage."""
    pieces = [piece async for piece in sdk.stream(FAST, "do you deliver")]
    assert "".join(pieces) == DELIVERY
    assert pieces[:3] == ["Yes,", " we", " do."]
    assert sdk.answer.reason == STOPPED[sdk.name]
    assert sdk.answer.output_tokens == len(pieces)
    assert sdk.answer.input_tokens >= 3
    (entry,) = sim.ledger.requests
    assert (entry.wire, entry.outcome, entry.status) == (sdk.name, "completed", 200)
    assert (entry.stream, entry.tokens_sent, entry.profile) == (True, len(pieces), "fixed")


async def test_whole_answer(sim: Simulator, sdk: Sdk):
    """An answer that is not streamed has the same text, stop reason and usage."""
    answer = await sdk.ask(FAST, "do you deliver")
    assert (answer.text, answer.reason) == (DELIVERY, STOPPED[sdk.name])
    assert answer.output_tokens == len(DELIVERY.split())
    assert sim.ledger.requests[0].stream is False


async def test_streamed_tool_call(sdk: Sdk):
    """A booking calls the advertised tool; its arguments arrive in fragments and make JSON."""
    said = "i would like to book a table for two at seven"
    assert [piece async for piece in sdk.stream(FAST, said, tools=("book_table",))] == []
    assert sdk.answer.tools == [("book_table", {"party_size": 2, "time": "19:00"})]
    assert sdk.answer.reason == CALLED[sdk.name]


async def test_whole_tool_call(sdk: Sdk):
    """A tool call in an answer that is not streamed."""
    answer = await sdk.ask(
        FAST + ',tool=look_up,args={"dish":"curry"}', "hello", tools=("look_up",)
    )
    assert (answer.text, answer.tools) == ("", [("look_up", {"dish": "curry"})])
    assert answer.reason == CALLED[sdk.name]


async def test_answer_of_ones_own(sdk: Sdk):
    """`answer=` tells providers apart, on every wire and with any punctuation."""
    model = FAST + ",answer=Hello%20from%20A%2C%20is%20it%20you%3F%20100%25%20sure%20%26%20%2Fok"
    pieces = [piece async for piece in sdk.stream(model, "hello")]
    assert "".join(pieces) == "Hello from A, is it you? 100% sure & /ok"


async def test_the_user_may_set_keys(sim: Simulator, sdk: Sdk):
    """A message that begins with `?key=` sets that request's behaviour."""
    pieces = [piece async for piece in sdk.stream(FAST, "?answer=As%20told.")]
    assert "".join(pieces) == "As told."


async def test_openai_stream_in_detail(sim: Simulator):
    """The role comes first, alone; usage comes last, without choices; then `[DONE]`."""
    body = {
        "model": FAST,
        "messages": [{"role": "user", "content": "do you deliver"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{sim.openai_url}/chat/completions", json=body) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(DELIVERY.split())
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_openai_stream_without_usage(sim: Simulator):
    """Usage is streamed only if it was asked for."""
    sdk = OpenAISdk(sim)
    stream = await sdk.client.chat.completions.create(
        model=FAST, messages=[{"role": "user", "content": "do you deliver"}], stream=True
    )
    assert [chunk.usage async for chunk in stream if chunk.usage or not chunk.choices] == []
    await sdk.close()


async def test_anthropic_stream_in_detail(sim: Simulator):
    """Events have their names and come in Anthropic's order."""
    body = {
        "model": FAST,
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "do you deliver"}]}],
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{sim.anthropic_url}/v1/messages?beta=true", json=body) as response,
    ):
        assert response.headers["request-id"]
        events = (await response.text()).split("\n\n")[:-1]
    names = [event.split("\n")[0].removeprefix("event: ") for event in events]
    data = [json.loads(event.split("\n")[1].removeprefix("data: ")) for event in events]
    assert names == [each["type"] for each in data]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_tool_results_are_confirmed(sim: Simulator):
    """After the tool's result the model speaks, whichever wire brings the result."""
    openai_sdk, anthropic_sdk = OpenAISdk(sim), AnthropicSdk(sim)
    said = "book a table for two at seven"
    call = {"id": "c1", "type": "function", "function": {"name": "book_table", "arguments": "{}"}}
    answer = await openai_sdk.client.chat.completions.create(
        model=FAST,
        messages=[
            {"role": "user", "content": said},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"ok": true}'},
        ],
        tools=[{"type": "function", "function": {"name": "book_table"}}],
    )
    assert "table for two at seven" in (answer.choices[0].message.content or "")
    use = {"type": "tool_use", "id": "t1", "name": "book_table", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "booked"}
    message = await anthropic_sdk.client.messages.create(
        model=FAST,
        max_tokens=100,
        messages=[
            {"role": "user", "content": said},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        tools=[{"name": "book_table", "input_schema": {"type": "object"}}],
    )
    assert "table for two at seven" in message.content[0].text
    await asyncio.gather(openai_sdk.close(), anthropic_sdk.close())


async def test_google_tool_result_is_confirmed(sim: Simulator):
    """A function response is followed by words on Google's wire too."""
    sdk = GoogleSdk(sim)
    answer = await sdk.client.aio.models.generate_content(
        model=FAST,
        contents=[
            {"role": "user", "parts": [{"text": "book a table for two at seven"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "book_table", "args": {}}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "book_table", "response": {"ok": True}}}],
            },
        ],
        config=sdk._request(FAST, "", ("book_table",))["config"],
    )
    assert "table for two at seven" in (answer.text or "")
    await sdk.close()


async def test_tool_choice_none(sim: Simulator):
    """Tools that may not be called are not called."""
    sdk = OpenAISdk(sim)
    answer = await sdk.client.chat.completions.create(
        model=FAST,
        messages=[{"role": "user", "content": "book a table"}],
        tools=[{"type": "function", "function": {"name": "book_table"}}],
        tool_choice="none",
    )
    assert answer.choices[0].message.content
    await sdk.close()


async def test_max_tokens(sim: Simulator):
    """An answer that is too long is cut with the wire's own reason."""
    openai_sdk, anthropic_sdk, google_sdk = OpenAISdk(sim), AnthropicSdk(sim), GoogleSdk(sim)
    messages = [{"role": "user", "content": "do you deliver"}]
    completion = await openai_sdk.client.chat.completions.create(
        model=FAST, messages=messages, max_completion_tokens=3
    )
    message = await anthropic_sdk.client.messages.create(
        model=FAST, messages=messages, max_tokens=3
    )
    content = await google_sdk.client.aio.models.generate_content(
        model=FAST, contents="do you deliver", config={"max_output_tokens": 3}
    )
    assert completion.choices[0].message.content == message.content[0].text == content.text
    assert completion.choices[0].finish_reason == TRUNCATED["openai"]
    assert message.stop_reason == TRUNCATED["anthropic"]
    assert content.candidates[0].finish_reason.value == TRUNCATED["google"]
    await asyncio.gather(openai_sdk.close(), anthropic_sdk.close(), google_sdk.close())


async def test_lists_of_models(sim: Simulator):
    """Both OpenAI's and Anthropic's SDK can list the profiles."""
    openai_sdk, anthropic_sdk = OpenAISdk(sim), AnthropicSdk(sim)
    assert [model.id async for model in openai_sdk.client.models.list()] == list(PROFILES)
    assert [model.id async for model in anthropic_sdk.client.models.list()] == list(PROFILES)
    await asyncio.gather(openai_sdk.close(), anthropic_sdk.close())


@pytest.mark.parametrize("stream", [True, False])
async def test_unknown_model(sim: Simulator, sdk: Sdk, stream: bool):
    """An unknown profile is a 404 in the wire's own form that lists the known ones."""
    with pytest.raises(Exception, match=r"unknown profile 'gpt-9'.*gemma-4-31b-baseten") as raised:
        await (drain(sdk.stream("gpt-9", "hello")) if stream else sdk.ask("gpt-9", "hello"))
    assert getattr(raised.value, "status_code", getattr(raised.value, "code", None)) == 404
    assert (sim.ledger.requests[0].outcome, sim.ledger.requests[0].profile) == ("failed", None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("fixed@fault=nope", "fault: unknown fault 'nope'.*slow_close"),
        ("fixed@speed=1", "speed: unknown key; known keys: ttft"),
        ("fixed@ttft=fast", "ttft: expected seconds"),
    ],
)
async def test_bad_behaviour(sdk: Sdk, model: str, words: str):
    """An unknown fault, key or value is a 400 that names the field and the known ones."""
    with pytest.raises(Exception, match=words) as raised:
        await sdk.ask(model, "hello")
    assert getattr(raised.value, "status_code", getattr(raised.value, "code", None)) == 400


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", b"{", "the body is not JSON"),
        ("/v1/chat/completions", b"[]", "not a JSON object"),
        ("/v1/chat/completions", b'{"messages": []}', "model: expected"),
        ("/v1/chat/completions", b'{"model": "fixed"}', "messages: expected a list"),
        ("/v1/chat/completions", b'{"model": "fixed", "messages": []}', "at least one"),
        (
            "/v1/chat/completions",
            b'{"model": "fixed", "messages": [{}], "max_tokens": "x"}',
            "max_tokens: expected a whole number",
        ),
        ("/v1/chat/completions", b'{"model":"fixed","messages":[{}],"tools":[{"function":3}]}', ""),
        ("/v1/messages", b'{"model": "fixed", "messages": [{}]}', "max_tokens: Field required"),
        ("/v1/messages", b'{"model": "fixed", "messages": [3]}', "messages: expected a list"),
        ("/v1beta/models/fixed:generateContent", b"{}", "contents: expected a list"),
        (
            "/v1beta/models/fixed:generateContent",
            b'{"contents": [{}], "tools": [3]}',
            "shape of a request",
        ),
    ],
)
async def test_bad_requests(sim: Simulator, path: str, body: bytes, words: str):
    """A request that no provider would accept is a 400 that names the field, never a crash."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(sim.url + path, data=body) as response,
    ):
        error = await response.json()
        assert response.status == (400 if words else 200)
    assert words in json.dumps(error)
    assert not sim.ledger.open


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("POST", "/v1/embeddings"), ("POST", "/v1beta/models/fixed:countTokens")],
)
async def test_unknown_address(sim: Simulator, method: str, path: str):
    """An unknown address is a 404 that lists the known ones."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, sim.url + path) as response,
    ):
        assert response.status == 404
        assert "POST /v1/chat/completions" in (await response.json())["error"]["message"]


async def test_keys_are_not_kept(sim: Simulator):
    """Neither the API key nor what was said gets into the ledger."""
    async with openai.AsyncOpenAI(api_key="sk-secret", base_url=sim.openai_url) as client:
        await client.chat.completions.create(
            model=FAST, messages=[{"role": "user", "content": "my name is Rumpelstiltskin"}]
        )
    kept = json.dumps(sim.ledger.as_dict())
    assert "sk-secret" not in kept
    assert "Rumpelstiltskin" not in kept
