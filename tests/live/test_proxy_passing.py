"""Answers that the proxy does not understand, or that have no text, pass byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from pipecat_hedge.tools.proxy import proxied_turn as turn_module
from pipecat_hedge.tools.proxy import wires as wires_module
from tests.live.proxied import PATHS, asking, proxied, sdk
from tests.live.scripted_upstream import cutting, replying, scripted
from tests.live.wire_streams import (
    block,
    chunk,
    claude_stream,
    claude_whole,
    gpt_stream,
    gpt_whole,
)

pytestmark = pytest.mark.live

WIRES = pytest.mark.parametrize("wire", PATHS)
JSON = "application/json"


# ---- answers


ROLE = chunk(role="assistant", content="")
CALL = {"name": "book", "arguments": '{"people"'}, {"name": None, "arguments": ": 2}"}
TOOL = [
    chunk(tool_calls=[{"index": 0, "id": "t1", "type": "function", "function": part}])
    for part in CALL
]
CALL_WITHOUT_ARGUMENTS = chunk(
    tool_calls=[{"index": 0, "id": "t1", "type": "function", "function": {"name": "book"}}]
)
CALL_WITH_EMPTY_ARGUMENTS = chunk(
    tool_calls=[
        {"index": 0, "id": "t1", "type": "function", "function": {"name": "b", "arguments": ""}}
    ]
)
CUSTOM_CALL = [
    chunk(tool_calls=[{"index": 0, "id": "t1", "type": "custom", "custom": part}])
    for part in ({"name": "code", "input": "print("}, {"input": "1)"})
]
THOUGHT = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Hm, long."},
    {"type": "signature_delta", "signature": "EqQB"},
)
TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Yes, till nine."})
SEARCH = block(
    0,
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"query": "open"}'},
)
TOOL_USE = block(
    0,
    {"type": "tool_use", "id": "t1", "name": "book", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"people": 2}'},
)


class Answer(NamedTuple):
    """An answer, and whether a request for it is streamed."""

    wire: str
    parts: Sequence[bytes]
    is_stream: bool = True


ANSWERS = {
    "gpt content_filter": Answer("openai", gpt_stream(ROLE, chunk("content_filter"))),
    "gpt content of unknown parts": Answer(
        "openai", gpt_stream(chunk(content=[{"type": "image", "url": "x"}]), chunk("stop"))
    ),
    "gpt unknown delta": Answer("openai", gpt_stream(chunk(picture={"x": 1}), chunk("stop"))),
    "gpt message for a delta": Answer(
        "openai",
        gpt_stream({"choices": [{"index": 0, "message": {"content": "Yes"}}]}, chunk("stop")),
    ),
    "gpt call without a mark": Answer("openai", gpt_stream(ROLE, *TOOL, mark=False)),
    "gpt call with empty arguments, without a mark": Answer(
        "openai", gpt_stream(ROLE, CALL_WITH_EMPTY_ARGUMENTS, mark=False)
    ),
    "gpt call without arguments, without a mark": Answer(
        "openai", gpt_stream(ROLE, CALL_WITHOUT_ARGUMENTS, mark=False)
    ),
    "gpt custom call without a mark": Answer("openai", gpt_stream(ROLE, *CUSTOM_CALL, mark=False)),
    "gpt whole custom call": Answer(
        "openai",
        [
            gpt_whole(
                "tool_calls",
                content=None,
                tool_calls=[
                    {"id": "t1", "type": "custom", "custom": {"name": "code", "input": "1"}}
                ],
            )
        ],
        is_stream=False,
    ),
    "gpt call and [DONE] alone": Answer("openai", gpt_stream(ROLE, *TOOL)),
    "gpt text without a mark": Answer("openai", gpt_stream(chunk(content="Yes"), mark=False)),
    "gpt last event without its blank line": Answer(
        "openai", [*gpt_stream(chunk(content="Yes"), chunk("stop"), mark=False), b"data: [DONE]"]
    ),
    "gpt JSON for a stream": Answer("openai", [gpt_whole("stop", content="Yes.")]),
    "gpt data that is a list": Answer("openai", gpt_stream([{"text": "Yes"}])),
    "gpt text behind a byte order mark": Answer(
        "openai", [b"\xef\xbb\xbf", *gpt_stream(chunk(content="Yes"), chunk("stop"))]
    ),
    "gpt half an emoji": Answer("openai", gpt_stream(chunk(content="\ud83d"), chunk("stop"))),
    "gpt lines for a stream": Answer("openai", [b'{"text": "Yes"}\n', b'{"done": true}\n']),
    "gpt whole half an emoji": Answer(
        "openai", [gpt_whole("stop", content="\ud83d")], is_stream=False
    ),
    "gpt whole content_filter": Answer(
        "openai", [gpt_whole("content_filter", content=None)], is_stream=False
    ),
    "gpt whole refusal": Answer(
        "openai", [gpt_whole("stop", content=None, refusal="No.")], is_stream=False
    ),
    "gpt whole reasoning used up": Answer(
        "openai", [gpt_whole("length", content="", reasoning_content="Hm")], is_stream=False
    ),
    "gpt whole of another form": Answer("openai", [b'{"output": [1]}'], is_stream=False),
    "claude refusal": Answer("anthropic", claude_stream(reason="refusal")),
    "claude pause_turn": Answer("anthropic", claude_stream(*SEARCH, reason="pause_turn")),
    "claude unknown block": Answer(
        "anthropic", claude_stream(*block(0, {"type": "image", "data": "x"}), reason="end_turn")
    ),
    "claude text in its first event": Answer(
        "anthropic",
        [
            part.replace(b'"content": []', b'"content": [{"type": "text", "text": "Yes."}]')
            for part in claude_stream(reason="end_turn")
        ],
    ),
    "claude stop_reason alone": Answer(
        "anthropic", claude_stream(*TEXT, reason="end_turn", stops=False)
    ),
    "claude call without a mark": Answer(
        "anthropic", claude_stream(*TOOL_USE, reason=None, stops=False)
    ),
    "claude whole refusal": Answer("anthropic", [claude_whole("refusal")], is_stream=False),
    "claude whole thinking used up": Answer(
        "anthropic",
        [claude_whole("max_tokens", {"type": "thinking", "thinking": "Hm", "signature": "E"})],
        is_stream=False,
    ),
    "claude whole pause_turn": Answer(
        "anthropic",
        [claude_whole("pause_turn", {"type": "server_tool_use", "id": "s1", "name": "web_search"})],
        is_stream=False,
    ),
    "claude whole unknown block": Answer(
        "anthropic", [claude_whole("end_turn", {"type": "image", "data": "x"})], is_stream=False
    ),
    "claude whole of another form": Answer(
        "anthropic", [b'{"content": "Yes.", "stop_reason": 3}'], is_stream=False
    ),
}
"""Complete answers: the first upstream's wins."""
NOTHING = {
    "gpt empty": Answer("openai", gpt_stream(ROLE, chunk("stop"))),
    "gpt only reasoning": Answer("openai", gpt_stream(chunk(reasoning="Hm"), chunk("stop"))),
    "gpt only thinking in a list": Answer(
        "openai",
        gpt_stream(chunk(content=[{"type": "thinking", "thinking": "Hm"}]), chunk("stop")),
    ),
    "gpt not events": Answer("openai", [b"<html>Sign in</html>"]),
    "gpt whole empty": Answer("openai", [gpt_whole("stop", content="")], is_stream=False),
    "gpt whole not JSON": Answer("openai", [b"<html>Sign in</html>"], is_stream=False),
    "gpt whole nothing": Answer("openai", [], is_stream=False),
    "gpt tool_calls without a call": Answer("openai", gpt_stream(ROLE, chunk("tool_calls"))),
    "gpt whole tool_calls without a call": Answer(
        "openai", [gpt_whole("tool_calls", content=None, tool_calls=[])], is_stream=False
    ),
    "gpt function_call without a call": Answer("openai", gpt_stream(ROLE, chunk("function_call"))),
    "claude empty": Answer("anthropic", claude_stream(reason="end_turn")),
    "claude tool_use without a call": Answer("anthropic", claude_stream(reason="tool_use")),
    "claude whole tool_use without a call": Answer(
        "anthropic", [claude_whole("tool_use")], is_stream=False
    ),
    "claude only thinking": Answer("anthropic", claude_stream(*THOUGHT, reason="end_turn")),
    "claude whole empty": Answer("anthropic", [claude_whole("end_turn")], is_stream=False),
}
"""Answers with nothing in them: another upstream is asked, and then the same is accepted."""
SENTENCES = {
    "openai": (
        Answer("openai", gpt_stream(chunk(content="Yes, "), chunk(content="till nine."))),
        Answer(
            "openai",
            gpt_stream(chunk(content="Yes, "), chunk(content="till nine."), mark=False),
        ),
        Answer("openai", gpt_stream(chunk(content="Yes, "), chunk(content="till"), mark=False)),
    ),
    "anthropic": (
        Answer("anthropic", claude_stream(*TEXT, reason="end_turn")),
        Answer("anthropic", claude_stream(*TEXT, reason=None, stops=False)),
        Answer(
            "anthropic",
            claude_stream(
                *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Yes, t"}),
                reason=None,
                stops=False,
            ),
        ),
    ),
}
"""An answer with its end mark, one without, and one that ends in mid-sentence."""


async def fetch(url: str, answer: Answer) -> tuple[int, bytes, Mapping[str, str]]:
    """Ask for an answer: its status, its bytes and its headers."""
    body = asking(answer.wire, stream=answer.is_stream)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[answer.wire], json=body) as response,
    ):
        return response.status, await response.read(), response.headers


def answering(answer: Answer) -> Any:
    is_json = not answer.is_stream or answer.parts[0].startswith(b"{")
    return replying(*answer.parts, content_type=JSON if is_json else "text/event-stream")


async def sdk_view(url: str, answer: Answer, *, through: str = "m") -> list[Any]:
    """What the wire's SDK makes of an answer, or its error."""
    body: dict[str, Any] = {**asking(answer.wire, stream=answer.is_stream), "model": through}
    async with sdk(answer.wire, url) as client:
        is_claude, found = answer.wire == "anthropic", list[Any]()
        create = client.messages.create if is_claude else client.chat.completions.create
        try:
            reply = await create(**body)
            if answer.is_stream:
                async for event in reply:
                    found.append(event.model_dump(warnings=False))
            else:
                found.append(reply if isinstance(reply, str) else reply.model_dump(warnings=False))
        except (anthropic.AnthropicError, openai.OpenAIError, ValueError, AttributeError) as error:
            found.append(f"{type(error).__name__}: {error}")
        return found


ALONE = [
    *("gpt content_filter", "gpt custom call without a mark", "gpt text without a mark"),
    *("gpt last event without its blank line", "gpt JSON for a stream", "gpt lines for a stream"),
    *("gpt whole of another form", "claude stop_reason alone", "claude call without a mark"),
    *("gpt empty", "gpt not events", "gpt whole nothing"),
    *("claude tool_use without a call", "claude whole empty"),
]
"""Answers with different ends: the bytes of a single upstream pass before its end is known."""


@pytest.mark.parametrize(
    ("name", "upstreams"),
    [*((name, 2) for name in (*ANSWERS, *NOTHING)), *((name, 1) for name in ALONE)],
)
async def test_an_answer_s_own_bytes_pass(name: str, upstreams: int) -> None:
    answer = ANSWERS.get(name) or NOTHING[name]
    async with (
        scripted(answering(answer)) as upstream,
        proxied(*[upstream.url] * upstreams) as url,
    ):
        expected = (200, b"".join(answer.parts))
        status, body, headers = await fetch(url, answer)
        assert (status, body) == expected
        assert "x-hedge-winner" in headers
        assert len(upstream.asked) == (1 if name in ANSWERS else upstreams)
        direct = await sdk_view(upstream.url, answer)
        assert await sdk_view(url, answer, through=answer.wire) == direct


KEPT_OR_NOT = [
    *("gpt content_filter", "gpt unknown delta", "gpt text without a mark"),
    *("gpt JSON for a stream", "gpt whole custom call", "claude pause_turn"),
    "claude whole thinking used up",
]


@pytest.mark.parametrize("name", [*KEPT_OR_NOT, *NOTHING])
async def test_a_repeat_gets_the_same_bytes_whether_they_are_kept_or_not(name: str) -> None:
    answer = ANSWERS.get(name) or NOTHING[name]
    async with (
        scripted(answering(answer)) as upstream,
        proxied(upstream.url, upstream.url, model={"cache_secs": 60}) as url,
    ):
        first, second = await fetch(url, answer), await fetch(url, answer)
        assert first[:2] == second[:2] == (200, b"".join(answer.parts))
        if name in NOTHING:  # may be better the next time
            assert second[2]["x-hedge-cache"] == "miss"


@WIRES
@pytest.mark.parametrize("upstreams", [1, 2])
@pytest.mark.parametrize("continues", [False, True])
async def test_an_answer_without_an_end_mark_is_whole_if_it_ends_like_one(
    wire: str, upstreams: int, continues: bool
) -> None:
    marked, whole, cut = SENTENCES[wire]
    script = [marked, whole, cut]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await answering(script[min(len(upstream.asked), 3) - 1])(request)

    async with (
        scripted(answer) as upstream,
        proxied(*[upstream.url] * upstreams, model={"continue": continues}) as url,
    ):
        assert (await fetch(url, marked))[1] == b"".join(marked.parts)
        assert (await fetch(url, whole))[1] == b"".join(whole.parts)
        assert len(upstream.asked) == 2
        _, body, _ = await fetch(url, cut)
        assert body.startswith(b"".join(cut.parts))
        assert b'"error"' in body[len(b"".join(cut.parts)) :]
        assert len(upstream.asked) == (4 if continues and upstreams == 2 else 3)


@WIRES
async def test_an_answer_that_pauses_passes_when_no_other_upstream_continues_it(wire: str) -> None:
    answer = SENTENCES[wire][0]
    begins, rest = answer.parts[:-2], b"".join(answer.parts[-2:])

    async def pauses_or_hangs(request: web.Request) -> web.StreamResponse:
        is_first = len(upstream.asked) == 1
        out = await replying(*(begins if is_first else []))(request)
        await asyncio.sleep(1.0 if is_first else 60)  # an upstream's pause
        await out.write(rest)
        return out

    model = {"continue": True, "policy": "race(2, stall_secs=0.6)"}
    async with (
        scripted(pauses_or_hangs) as upstream,
        proxied(upstream.url, upstream.url, model=model) as url,
    ):
        assert (await fetch(url, answer))[:2] == (200, b"".join(answer.parts))
        assert len(upstream.asked) == 3


async def test_a_call_that_pauses_passes_though_another_upstream_answers() -> None:
    """A call that has begun cannot be continued."""
    parts = gpt_stream(ROLE, chunk(content="I book it."), *TOOL, chunk("tool_calls"))
    at = 3  # in the middle of its arguments

    async def pauses_or_answers(request: web.Request) -> web.StreamResponse:
        if len(upstream.asked) > 1:
            return await answering(SENTENCES["openai"][0])(request)
        out = await replying(*parts[:at])(request)
        await asyncio.sleep(1.0)  # an upstream's pause
        await out.write(b"".join(parts[at:]))
        return out

    model = {"continue": True, "policy": "race(2, stall_secs=0.6)"}
    async with (
        scripted(pauses_or_answers) as upstream,
        proxied(upstream.url, upstream.url, model=model) as url,
    ):
        assert (await fetch(url, Answer("openai", parts)))[:2] == (200, b"".join(parts))


CUT_CALLS = {
    "gpt cut arguments": gpt_stream(ROLE, TOOL[0], mark=False),
    "gpt a whole call and a cut one": gpt_stream(
        ROLE,
        CALL_WITH_EMPTY_ARGUMENTS,
        chunk(tool_calls=[{"index": 1, "id": "t2", "function": {"name": "b", "arguments": "{"}}]),
        mark=False,
    ),
    "claude cut arguments": claude_stream(*TOOL_USE[:1], reason=None, stops=False),
}


@pytest.mark.parametrize("upstreams", [1, 2])
@pytest.mark.parametrize("name", CUT_CALLS)
async def test_a_cut_call_is_no_answer(name: str, upstreams: int) -> None:
    wire, parts = "openai" if name.startswith("gpt") else "anthropic", CUT_CALLS[name]
    answer = Answer(wire, parts)
    async with (
        scripted(answering(answer)) as upstream,
        proxied(*[upstream.url] * upstreams) as url,
    ):
        status, body, _ = await fetch(url, answer)
        is_passed = upstreams == 1
        assert (status, len(upstream.asked)) == (200 if is_passed else 502, upstreams)
        assert body.startswith(b"".join(parts)) == is_passed
        assert b'"error"' in body


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_call_with_empty_arguments_is_no_answer_on_a_lost_connection(
    is_chunked: bool,
) -> None:
    parts = gpt_stream(ROLE, CALL_WITH_EMPTY_ARGUMENTS, mark=False)

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        out.content_length = None if is_chunked else 10_000
        await out.prepare(request)
        await out.write(b"".join(parts))
        assert request.transport is not None
        request.transport.close()
        return out

    async with scripted(answer) as upstream, proxied(upstream.url, upstream.url) as url:
        status, body, _ = await fetch(url, Answer("openai", parts))
        assert (status, len(upstream.asked)) == (502, 2)
        assert b'"error"' in body


async def test_a_call_after_the_text_is_whole_without_an_end_mark() -> None:
    call = [{**event, "index": 1} for event in TOOL_USE]
    parts = claude_stream(*TEXT, *call, reason=None, stops=False)
    was_read = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        out = await replying()(request)
        for part in parts:
            await out.write(part)
            await was_read.wait()
            was_read.clear()
        return out

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url) as url,
        aiohttp.ClientSession() as session,
    ):
        body = asking("anthropic", stream=True)
        async with session.post(url + PATHS["anthropic"], json=body) as response:
            for part in parts:
                assert await response.content.readexactly(len(part)) == part
                was_read.set()
            assert await response.content.read() == b""


@WIRES
async def test_an_answer_of_unknown_form_is_not_continued(wire: str) -> None:
    name = "gpt unknown delta" if wire == "openai" else "claude unknown block"
    parts = ANSWERS[name].parts[:-2]

    async with (
        scripted(cutting(*parts)) as upstream,
        proxied(upstream.url, upstream.url, model={"continue": True}) as url,
    ):
        _, body, _ = await fetch(url, ANSWERS[name])
        assert body.startswith(b"".join(parts))
        assert b'"error"' in body[len(b"".join(parts)) :]
        assert len(upstream.asked) == 1


async def test_several_answers_in_one_stream_are_not_continued() -> None:
    """A continuation would be of one text, and theirs are mixed."""
    one, two = chunk(content="One "), chunk(content="Zwei ")
    two["choices"][0]["index"] = 1
    parts = gpt_stream(one, two, mark=False)

    async with (
        scripted(cutting(*parts)) as upstream,
        proxied(upstream.url, upstream.url, model={"continue": True}) as url,
        aiohttp.ClientSession() as session,
    ):
        asked = asking("openai", stream=True, n=2)
        async with session.post(url + PATHS["openai"], json=asked) as response:
            body = await response.read()
        assert body.startswith(b"".join(parts))
        assert b'"error"' in body[len(b"".join(parts)) :]
        assert len(upstream.asked) == 1


# ---- behind the end mark


@WIRES
async def test_nothing_continues_an_answer_whose_connection_is_lost_behind_its_end_mark(
    wire: str,
) -> None:
    *parts, _ = {
        "openai": gpt_stream(chunk(content="Yes, "), chunk("stop", content="till nine.")),
        "anthropic": SENTENCES["anthropic"][0].parts,
    }[wire]

    async with (
        scripted(cutting(*parts)) as upstream,
        proxied(upstream.url, upstream.url, model={"continue": True}) as url,
    ):
        assert (await fetch(url, SENTENCES[wire][0]))[:2] == (200, b"".join(parts))
        assert len(upstream.asked) == 1


TAIL = b": bye\n\n"


@pytest.mark.parametrize(
    ("name", "upstreams", "options", "ends"),
    [
        ("openai", 1, {}, "at once"),
        ("anthropic", 1, {}, "later"),
        ("gpt empty", 1, {}, "never"),
        ("openai", 2, {}, "later"),
        ("anthropic", 2, {}, "never"),
        ("gpt empty", 2, {}, "at once"),
        ("openai", 2, {"continue": True}, "never"),
        ("anthropic", 2, {"continue": True}, "at once"),
        ("gpt empty", 2, {"continue": True}, "later"),
        ("openai", 1, {"cache_secs": 60}, "never"),
        ("anthropic", 1, {"cache_secs": 60}, "later"),
        ("gpt empty", 1, {"cache_secs": 60}, "at once"),
    ],
    ids=str,
)
async def test_what_follows_the_end_mark_passes_too(
    name: str, upstreams: int, options: dict[str, Any], ends: str
) -> None:
    good = NOTHING.get(name) or SENTENCES[name][0]
    peers = set[object]()

    async def answer(request: web.Request) -> web.StreamResponse:
        peers.add(request.get_extra_info("peername"))
        out = await replying(b"".join(good.parts))(request)
        await asyncio.sleep(0.05)
        await out.write(TAIL)
        if ends != "at once":
            await asyncio.sleep(0.05 if ends == "later" else 600)
        return out

    async with (
        scripted(answer) as upstream,
        proxied(*[upstream.url] * upstreams, model=options) as url,
    ):
        for _ in range(4):
            async with asyncio.timeout(5):
                _, body, _ = await fetch(url, good)
            assert body == b"".join(good.parts) + TAIL
        if "cache_secs" in options and name != "gpt empty":
            assert len(upstream.asked) == 1
        elif ends != "never" and name != "gpt empty":
            assert len(upstream.asked) == 4
            assert len(peers) <= 1 + upstreams  # beside those that were opened at the start


@WIRES
async def test_an_answer_is_complete_at_its_end_mark(wire: str, tmp_path: Path) -> None:
    """Its client may leave then, and ask the same again."""
    good, log = SENTENCES[wire][0], tmp_path / "turns.jsonl"

    async def answer(request: web.Request) -> web.StreamResponse:
        out = await replying(*good.parts)(request)
        for _ in range(4):
            await asyncio.sleep(0.15)
            await out.write(TAIL)
        return out

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url, upstream.url, model={"cache_secs": 60}, turn_log=log) as url,
        aiohttp.ClientSession() as session,
    ):
        marked = b"".join(good.parts)
        for count, cache in ((0, "miss"), (4, "hit"), (4, "hit")):
            body = asking(wire, stream=True)
            async with session.post(url + PATHS[wire], json=body) as response:
                assert response.headers["x-hedge-cache"] == cache
                assert await response.content.readexactly(len(marked)) == marked
                if count:
                    assert await response.content.read() == count * TAIL
        assert len(upstream.asked) == 1
    (report,) = map(json.loads, log.read_text().splitlines())
    assert report["outcome"] == "answered"
    assert report["duration_secs"] < 0.6


# ---- errors


ERRORS = {
    "openai": {"error": {"message": "busy", "type": "server_error", "code": "overloaded"}},
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
}


@WIRES
@pytest.mark.parametrize("upstreams", [1, 2])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_error_with_status_200_is_no_answer_but_passes_if_there_is_none(
    wire: str, upstreams: int, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecat_hedge.tools.proxy.upstream.Upstream.retries", 0)
    body = json.dumps(ERRORS[wire]).encode()
    parts = [b"event: error\ndata: " + body + b"\n\n"] if is_stream else [body]
    answer = Answer(wire, parts, is_stream)
    async with (
        scripted(answering(answer)) as upstream,
        proxied(*[upstream.url] * upstreams) as url,
    ):
        assert (await fetch(url, answer))[:2] == (200, b"".join(parts))
        assert len(upstream.asked) == upstreams
        direct = await sdk_view(upstream.url, answer)
        assert await sdk_view(url, answer, through=wire) == direct


@pytest.mark.parametrize(("wire", "is_stream"), [("openai", True), ("anthropic", False)])
async def test_a_transient_rejection_is_repeated_as_often_as_an_sdk_would(
    wire: str, is_stream: bool
) -> None:
    good = SENTENCES[wire][0]
    if not is_stream:
        whole = gpt_whole("stop", content="Yes.") if wire == "openai" else claude_whole("refusal")
        good = Answer(wire, [whole], is_stream=False)
    statuses = [529, 503, 200, 400, 200, 500, 500, 500]

    async def answer(request: web.Request) -> web.StreamResponse:
        status = statuses[len(upstream.asked) - 1]
        if status == 200:
            return await answering(good)(request)
        return web.json_response(ERRORS[wire], status=status)

    async with scripted(answer) as upstream, proxied(upstream.url) as url:
        assert (await fetch(url, good))[:2] == (200, b"".join(good.parts))
        assert len(upstream.asked) == 3
        status, body, headers = await fetch(url, good)  # a permanent one is not
        assert (status, json.loads(body)) == (400, ERRORS[wire])
        assert "x-should-retry" not in headers
        assert (await fetch(url, good))[0] == 200
        status, body, headers = await fetch(url, good)
        assert (status, json.loads(body)) == (500, ERRORS[wire])
        assert headers["x-should-retry"] == "false"  # the client's SDK need not, too
        assert len(upstream.asked) == 8


# ---- one upstream


@WIRES
async def test_with_one_upstream_nothing_is_held_back(wire: str) -> None:
    goes_on = [asyncio.Event() for _ in range(4)]
    parts = [*SENTENCES[wire][0].parts]
    first, half, rest = parts[0], parts[1][:9], [parts[1][9:], *parts[2:]]

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream", "x-id": "7"})
        await goes_on[0].wait()
        await out.prepare(request)
        for piece, event in zip((first, half, b"".join(rest)), goes_on[1:], strict=True):
            await event.wait()
            await out.write(piece)
        return out

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url) as url,
        aiohttp.ClientSession() as session,
    ):
        goes_on[0].set()
        body = asking(wire, stream=True)
        async with session.post(url + PATHS[wire], json=body) as response:
            assert response.headers["x-id"] == "7"  # before anything of the body
            assert response.headers["x-hedge-winner"] == f"{wire} 0"
            for event, piece in zip(goes_on[1:], (first, half, b"".join(rest)), strict=True):
                event.set()
                assert await response.content.readexactly(len(piece)) == piece
            assert await response.content.read() == b""


@WIRES
async def test_no_ping_interrupts_an_event(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecat_hedge.tools.proxy.response.MAX_SILENCE_SECS", 0.1)
    parts = SENTENCES[wire][0].parts

    async def answer(request: web.Request) -> web.StreamResponse:
        out = await replying(parts[0], parts[1][:9])(request)
        await asyncio.sleep(0.5)
        await out.write(parts[1][9:])
        await asyncio.sleep(0.5)
        await out.write(b"".join(parts[2:]))
        return out

    async with scripted(answer) as upstream, proxied(upstream.url) as url:
        _, body, _ = await fetch(url, SENTENCES[wire][0])
    ping = {"openai": wires_module.OPENAI, "anthropic": wires_module.ANTHROPIC}[wire].ping
    before, event, behind = body.partition(b"".join(parts[:2]))
    between, end, _ = behind.rpartition(b"".join(parts[2:]))
    assert event
    assert end
    assert not before.replace(ping, b"")  # on a busy machine the answer's beginning may be late
    assert between
    assert not between.replace(ping, b"")


@WIRES
@pytest.mark.parametrize("upstreams", [1, 2])
async def test_headers_and_pings_come_before_a_late_answer(
    wire: str, upstreams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the SDK does not see, nor that its status was 201."""
    monkeypatch.setattr("pipecat_hedge.tools.proxy.response.MAX_SILENCE_SECS", 0.1)
    good, was_read = SENTENCES[wire][0], asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await was_read.wait()
        return await replying(*good.parts, status=201)(request)

    async with (
        scripted(answer) as upstream,
        proxied(*[upstream.url] * upstreams) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(url + PATHS[wire], json=asking(wire, stream=True)) as response:
            assert response.status == 200
            for _ in range(2):
                assert b"ping" in await response.content.readuntil(b"\n\n")
            was_read.set()
            assert (await response.read()).endswith(b"".join(good.parts))
        was_read.clear()
        asyncio.get_running_loop().call_later(0.3, was_read.set)
        through = await sdk_view(url, good, through=wire)
        assert through == await sdk_view(upstream.url, good)


@WIRES
async def test_a_whole_answer_that_is_cut_is_cut_for_the_client_too(wire: str) -> None:
    whole = gpt_whole("stop", content="Yes.") if wire == "openai" else claude_whole("refusal")

    async def answer(request: web.Request) -> web.StreamResponse:
        out = await replying(whole[:20], content_type=JSON)(request)
        await asyncio.sleep(0.1)
        assert request.transport is not None
        request.transport.abort()
        return out

    async with scripted(answer) as upstream, proxied(upstream.url) as url:
        with pytest.raises(aiohttp.ClientError):
            await fetch(url, Answer(wire, [], is_stream=False))
        assert len(upstream.asked) == 1


async def test_a_timeout_counts_from_the_latest_bytes() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        out = await replying()(request)
        for part in gpt_stream(*[chunk(content="Yes. ")] * 8, chunk("stop")):
            await out.write(part)
            await asyncio.sleep(0.1)
        return out

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url, upstream.url, upstream={"timeout_secs": 0.5}) as url,
    ):
        _, body, _ = await fetch(url, Answer("openai", []))
        assert body.endswith(b"data: [DONE]\n\n")
        assert b"error" not in body


# ---- size


@WIRES
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("options", [{}, {"continue": True}, {"cache_secs": 60}])
@pytest.mark.parametrize("upstreams", [1, 2])
async def test_a_very_large_answer_passes_unread(
    wire: str,
    is_stream: bool,
    options: dict[str, Any],
    upstreams: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wires_module, "MAX_READ_BYTES", 10_000)
    monkeypatch.setattr(turn_module, "MAX_HELD_BYTES", 10_000_000)
    text = "x" * 1_000_000
    if is_stream and wire == "openai":
        parts = gpt_stream(ROLE, chunk(content=text), chunk("stop"))
    elif is_stream:
        delta = {"type": "text_delta", "text": text}
        large = block(0, {"type": "text", "text": ""}, delta)
        parts = claude_stream(*large, reason="end_turn")
    elif wire == "openai":
        parts = [gpt_whole("stop", content=text)]
    else:
        parts = [claude_whole("end_turn", {"type": "text", "text": text})]
    answer = Answer(wire, parts, is_stream)
    async with (
        scripted(answering(answer)) as upstream,
        proxied(*[upstream.url] * upstreams, model=options) as url,
    ):
        for _ in range(2):
            assert (await fetch(url, answer))[:2] == (200, b"".join(parts))
        assert len(upstream.asked) == (1 if "cache_secs" in options else 2)
