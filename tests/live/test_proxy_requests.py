"""What the proxy sends to its upstreams, what it keeps, and what counts tokens."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from pipecat_hedge.providers import FileStore
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.proxy.cache import AnswerCache
from tests.live.proxied import PATHS, asking, proxied
from tests.live.scripted_upstream import SSE, replying, scripted
from tests.live.test_proxy_passing import SENTENCES, answering

pytestmark = pytest.mark.live

WIRES = pytest.mark.parametrize("wire", PATHS)


async def post(
    url: str, wire: str, body: bytes | dict[str, Any], headers: Any = None, path: str = ""
) -> tuple[int, bytes, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    # The addresses, headers and bodies of these tests are sent as they are.
    address = URL(url + (path or PATHS[wire]), encoded=True)
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
        session.post(address, data=data, headers=headers) as response,
    ):
        return response.status, await response.read(), response.headers


# ---- what is sent


@pytest.mark.parametrize(
    ("wire", "encoding", "pack"),
    [
        ("openai", "gzip", gzip.compress),
        ("anthropic", "GZIP", gzip.compress),
        ("openai", "deflate", zlib.compress),
        ("anthropic", "identity", bytes),
    ],
)
async def test_a_packed_body_is_sent_on_unpacked_and_says_so(
    wire: str, encoding: str, pack: Any
) -> None:
    body = json.dumps(asking(wire, stream=True)).encode()
    async with (
        scripted(answering(SENTENCES[wire][0])) as upstream,
        proxied(upstream.url) as url,
    ):
        status, _, _ = await post(url, wire, pack(body), {"Content-Encoding": encoding})
    assert status == 200
    (asked,) = upstream.asked
    assert asked.body == body.replace(f'"{wire}"'.encode(), b'"m"')
    assert "content-encoding" not in asked.headers
    assert asked.headers["content-length"] == str(len(asked.body))


@pytest.mark.parametrize(
    ("wire", "headers", "status"),
    [
        ("openai", [("Content-Encoding", "gzip, gzip")], 415),
        ("anthropic", [("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")], 415),
        ("openai", [("Content-Encoding", "gzip, br")], 415),
        ("anthropic", [("Content-Encoding", "x-gzip")], 415),
        ("openai", [("Content-Encoding", "compress")], 415),
        ("anthropic", [("Content-Encoding", "br")], 400),  # aiohttp cannot unpack it here
        ("openai", [("Content-Encoding", "zstd")], 400),
        ("anthropic", [("Content-Encoding", "gzip")], 400),  # but it is not
        ("openai", [], 400),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_not_sent(
    wire: str, headers: Any, status: int
) -> None:
    packed = gzip.compress(gzip.compress(json.dumps(asking(wire, stream=False)).encode()))
    async with (
        scripted(answering(SENTENCES[wire][0])) as upstream,
        proxied(upstream.url) as url,
    ):
        found, _, _ = await post(url, wire, packed[1:], headers)
    assert found == status
    assert upstream.asked == []


@WIRES
async def test_a_model_that_is_deeply_nested_is_refused_as_any_other_that_is_no_name(
    wire: str,
) -> None:
    async with scripted(answering(SENTENCES[wire][0])) as upstream, proxied(upstream.url) as url:
        body = b'{"model": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        status, found, _ = await post(url, wire, body)
    assert (status, "error" in json.loads(found)) == (400, True)
    assert upstream.asked == []


async def test_a_query_and_a_header_that_comes_twice_are_sent_on() -> None:
    async with (
        scripted(answering(SENTENCES["anthropic"][0])) as upstream,
        proxied(upstream.url) as url,
    ):
        headers = [("anthropic-beta", "a"), ("anthropic-beta", "b"), ("x-other", "c")]
        path = PATHS["anthropic"] + "?beta=a%2Fb&x=%zz"
        await post(url, "anthropic", asking("anthropic", stream=True), headers, path)
    (asked,) = upstream.asked
    assert asked.path == path
    assert asked.headers.getall("anthropic-beta") == ["a", "b"]
    assert asked.headers["x-other"] == "c"


async def test_a_repeated_header_of_a_response_passes_with_all_its_values() -> None:
    """In one line, as the SDKs' clients read them; what ``Connection`` names stays behind."""

    async def script(request: web.Request) -> web.StreamResponse:
        repeated = [("Server-Timing", "a"), ("server-timing", "b"), ("Server-Timing", "c;dur=1")]
        hop = [("Connection", "X-Hop"), ("X-Hop", "1")]
        body = b"".join(SENTENCES["openai"][0].parts)
        headers = CIMultiDict([("Content-Type", SSE), *repeated, *hop])
        return web.Response(body=body, headers=headers)

    async with scripted(script) as upstream, proxied(upstream.url) as url:
        own = {"Connection": "keep-alive, X-Hop", "X-Hop": "1", "X-Other": "2"}
        status, _, headers = await post(url, "openai", asking("openai", stream=True), own)
    (asked,) = upstream.asked
    assert (status, headers.getall("server-timing")) == (200, ["a, b, c;dur=1"])
    assert "x-hop" not in headers
    assert ("x-hop" in asked.headers, asked.headers["x-other"]) == (False, "2")


async def test_long_headers_pass_both_ways() -> None:
    """The SDKs' clients send and accept them."""
    long, body = "a" * 20_000, asking("openai", stream=True)
    script = replying(*SENTENCES["openai"][0].parts, x_long=long)
    async with (
        scripted(script, max_field_size=2**16) as upstream,
        proxied(upstream.url) as url,
        aiohttp.ClientSession(max_field_size=2**16) as session,
        session.post(url + PATHS["openai"], json=body, headers={"X-Long": long}) as response,
    ):
        assert (response.status, response.headers["x-long"]) == (200, long)
    assert [asked.headers["x-long"] for asked in upstream.asked] == [long]


async def test_a_control_character_in_an_upstreams_header_is_a_blank_and_no_fault() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"".join(SENTENCES["openai"][0].parts)
        length = b"Content-Length: %d\r\n" % len(body)
        kind = b"Content-Type: text/event-stream\r\nConnection: close\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nX-Odd: a\x01b\r\n" + length + kind + b"\r\n" + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with proxied(f"http://127.0.0.1:{port}") as url:
            status, _, headers = await post(url, "openai", asking("openai", stream=True))
    assert (status, headers["x-odd"]) == (200, "a b")


@pytest.mark.parametrize("name", ["org/name", "org%2Fname", "gpt"])
async def test_a_model_with_a_slash_in_its_name_is_found(name: str) -> None:
    upstream = {"name": "a", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    model = {"wire": "openai", "upstreams": [upstream]}
    settings = {"listen": "127.0.0.1:0", "models": {"org/name": model, "gpt": model}}
    async with (
        ProxyServer(ProxySettings.model_validate(settings), ProviderStats()) as server,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{server.port}/v1/models/"
        async with session.get(url + name) as found:
            assert (await found.json())["id"] == name.replace("%2F", "/")
        async with session.get(url + "org/other") as found:
            assert found.status == 404


# ---- what is kept


NO_STORE = [
    ("openai", [("Cache-Control", "no-store")]),
    ("anthropic", [("Cache-Control", "No-Store")]),
    ("openai", [("Cache-Control", "max-age=0, No-Store")]),
    ("anthropic", [("Cache-Control", "max-age=0"), ("cache-control", "private , NO-STORE")]),
]


@pytest.mark.parametrize(("wire", "headers"), NO_STORE)
async def test_no_store_is_honoured_however_it_is_written(wire: str, headers: Any) -> None:
    async with (
        scripted(answering(SENTENCES[wire][0])) as upstream,
        proxied(upstream.url, model={"cache_secs": 60}) as url,
    ):
        body = asking(wire, stream=True)
        for count, more in enumerate([headers, headers, None], 1):
            _, _, found = await post(url, wire, body, more)
            assert len(upstream.asked) == count
            assert found.get("x-hedge-cache") == (None if more else "miss")


@pytest.mark.parametrize("value", ["No-Cache", "max-age=0", "private, no-cache"])
async def test_a_client_that_wants_a_fresh_answer_gets_one(value: str) -> None:
    async with (
        scripted(answering(SENTENCES["openai"][0])) as upstream,
        proxied(upstream.url, model={"cache_secs": 60}) as url,
    ):
        body, headers = asking("openai", stream=True), {"Cache-Control": value}
        for more, cache, asked in (({}, "miss", 1), (headers, "miss", 2), ({}, "hit", 2)):
            _, _, found = await post(url, "openai", body, more)
            assert (found["x-hedge-cache"], len(upstream.asked)) == (cache, asked)


@WIRES
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_repeat_just_after_an_answer_s_end_is_a_hit(
    wire: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put, may_put = AnswerCache.put, asyncio.Event()

    async def put_late(*args: Any) -> None:
        await may_put.wait()
        await put(*args)

    monkeypatch.setattr(AnswerCache, "put", put_late)
    parts = SENTENCES[wire][0].parts
    if not is_stream:
        parts = [b'{"choices": [{"message": {"content": "Yes"}}], "content": [{"type": "image"}]}']
    script = replying(*parts, content_type="text/event-stream" if is_stream else "application/json")
    cache = {"path": tmp_path / "answers.sqlite"}
    async with (
        scripted(script) as upstream,
        proxied(upstream.url, model={"cache_secs": 60}, cache=cache) as url,
    ):
        body = asking(wire, stream=is_stream)
        _, first, _ = await post(url, wire, body)
        _, second, headers = await post(url, wire, body)
        assert first == second == b"".join(parts)
        assert headers["x-hedge-cache"] == "hit"
        may_put.set()
        _, third, headers = await post(url, wire, body)
        assert (third, headers["x-hedge-cache"]) == (first, "hit")
    assert len(upstream.asked) == 1


# ---- counting tokens


async def test_counting_tokens_teaches_nothing_of_answers_and_is_not_hedged(
    tmp_path: Path,
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("count_tokens"):
            await asyncio.sleep(0.2)
            return web.json_response({"input_tokens": 12})
        body = {"content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"}
        return web.json_response(body)

    log, learned = tmp_path / "turns.jsonl", tmp_path / "stats.json"
    upstreams = [{"name": name, "base_url": "", "model": "m"} for name in "ab"]
    model = {"wire": "anthropic", "policy": "race(2, probes=False)", "upstreams": upstreams}
    settings = {"listen": "127.0.0.1:0", "models": {"anthropic": model}, "turn_log": log}
    body, count = asking("anthropic", stream=False), "/v1/messages/count_tokens?beta=true"
    async with scripted(answer) as upstream:
        for each in upstreams:
            each["base_url"] = upstream.url
        for path, requests, found in ((count, 1, {"input_tokens": 12}), ("", 2, None)):
            upstream.asked.clear()
            stats = ProviderStats(FileStore(learned))
            async with ProxyServer(ProxySettings.model_validate(settings), stats) as server:
                url = f"http://127.0.0.1:{server.port}"
                status, answered, _ = await post(url, "anthropic", body, path=path)
                assert status == 200
                assert found in (None, json.loads(answered))
                async with aiohttp.request("GET", f"{url}/metrics") as response:
                    metrics = (await response.text()).splitlines()
            turns = sum(
                float(line.split()[-1])
                for line in metrics
                if line.startswith("pipecat_hedge_turns_total{")
            )
            assert len(upstream.asked) == requests
            assert turns == (not path)
            assert log.exists() == learned.exists() == (not path)
