"""Keys over real sockets: rejected requests, what is never mixed up, and what is never logged."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from aiohttp import web
from loguru import logger

from pipecat_hedge.tools.proxy.keys import new_key
from pipecat_hedge.tools.proxy.settings import KeySettings
from pipecat_hedge.tools.simulator import Simulator
from tests.live.proxied import PATHS, ProxyProcess, client_of, proxied, proxy, url_of
from tests.live.scripted_upstream import Script, Scripted, replying, scripted
from tests.live.wire_streams import WORDS, events

pytestmark = pytest.mark.live

WIRES = pytest.mark.parametrize("wire", ["anthropic", "openai"])
SECRET = "my-card-is-4929"
ANSWER = "We are open till nine."
SLOW = "fixed@ttft=0.1,tps=10,answer=" + ANSWER.replace(" ", "%20")
THEIRS = {"key_env": "THEIR_KEY"}


def keys_of(*names: str, **options: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Keys by name, and their settings."""
    made = {name: new_key(name).split("\n\n") for name in names}
    settings = [
        {"name": name, "sha256": lines.split('"')[3], **options.get(name, {})}
        for name, (_, lines) in made.items()
    ]
    return {name: key for name, (key, _) in made.items()}, settings


def well(request: web.Request) -> Any:
    wire = "anthropic" if request.path.endswith("messages") else "openai"
    return replying(*events(wire))(request)


@pytest.fixture
async def upstream() -> AsyncIterator[Scripted]:
    async with scripted(well) as upstream:
        yield upstream


async def ask(url: str, wire: str, key: str | None, **more: Any) -> tuple[int, dict[str, Any]]:
    """Ask with a key: the status, and the headers and the body."""
    name = "x-api-key" if wire == "anthropic" else "Authorization"
    headers = {} if key is None else {name: key if wire == "anthropic" else f"Bearer {key}"}
    messages = [{"role": "user", "content": SECRET}]
    body = {"model": wire, "messages": messages, "stream": True, "max_tokens": 9}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[wire], json=body, headers=headers | more) as answer,
    ):
        return answer.status, {**answer.headers, "body": await answer.read()}


@WIRES
async def test_keys_decide_who_may_ask_for_what(upstream: Scripted, wire: str) -> None:
    other = "openai" if wire == "anthropic" else "anthropic"
    keys, settings = keys_of("bot", "one", one={"models": [other]})
    async with proxied(upstream.url, keys=settings) as url:
        for key in (None, "", "wrong", keys["bot"][:-1], keys["bot"] + "x", settings[0]["sha256"]):
            status, found = await ask(url, wire, key)
            assert status == 401
            error = json.loads(found["body"])["error"]
            assert error["type"] == "authentication_error" if wire == "anthropic" else error["code"]
        assert (await ask(url, wire, keys["one"]))[0] == 404
        for key, each in ((keys["bot"], wire), (keys["one"], other)):
            status, found = await ask(url, each, key)
            assert (status, found["body"]) == (200, b"".join(events(each)))
    assert len(upstream.asked) == 2


async def test_a_client_has_a_limit_of_streams(sim: Simulator) -> None:
    keys, settings = keys_of("bot", bot={"max_streams": 1})
    async with (
        proxied((sim.url, SLOW), keys=settings) as url,
        client_of("openai", url, keys["bot"]) as client,
    ):
        first = asyncio.ensure_future(client.stream())
        await sim.ledger.wait_until(lambda it: bool(it.requests), 5.0)
        with pytest.raises(openai.RateLimitError):
            await client.stream()
        assert await first == ANSWER


@WIRES
async def test_a_revoked_key_is_refused_and_its_streams_end(sim: Simulator, wire: str) -> None:
    keys, settings = keys_of("bot", "other")
    async with proxy((sim.url, SLOW), keys=settings) as server:
        url = url_of(server)
        running = [asyncio.ensure_future(ask(url, wire, key)) for key in keys.values()]
        await sim.ledger.wait_until(lambda it: len(it.requests) == 2, 5.0)
        server.set_keys([KeySettings.model_validate(settings[1])])
        with pytest.raises(aiohttp.ClientError):
            await running[0]
        await sim.ledger.wait_until(lambda it: len(it.open) == 1, 5.0)
        assert (await ask(url, wire, keys["bot"]))[0] == 401
        assert (await running[1])[0] == 200
        assert {each.outcome for each in sim.ledger.requests} == {"aborted", "completed"}
        server.set_keys(())  # the last one is gone: that opens the proxy to nobody
        for key in (*keys.values(), None):
            assert (await ask(url, wire, key))[0] == 401


async def test_sighup_reads_the_keys_again(upstream: Scripted, tmp_path: Path) -> None:
    keys, settings = keys_of("bot", "other")
    path = tmp_path / "hedge.toml"

    def write(*kept: dict[str, str], more: str = "") -> None:
        lines = [
            'listen = "127.0.0.1:0"\n[models.anthropic]\nwire = "anthropic"\nupstreams = [',
            f'{{ name = "a", base_url = "{upstream.url}", model = "well" }}]\n{more}',
            *(f'[[keys]]\nname = "{k["name"]}"\nsha256 = "{k["sha256"]}"\n' for k in kept),
        ]
        path.write_text("".join(lines))

    write(*settings)
    async with ProxyProcess(path, stderr=asyncio.subprocess.PIPE) as server:
        assert (await ask(server.url, "anthropic", keys["bot"]))[0] == 200

        async def reload() -> bytes:
            assert server.process.stderr is not None
            server.process.send_signal(signal.SIGHUP)
            while b"keys" not in (line := await server.process.stderr.readline()):
                assert line
            return line

        write(settings[1])
        assert b"were read again" in await reload()
        assert (await ask(server.url, "anthropic", keys["bot"]))[0] == 401
        assert (await ask(server.url, "anthropic", keys["other"]))[0] == 200
        write(more="nonsense = 1\n")
        assert b"stay as they were" in await reload()
        assert (await ask(server.url, "anthropic", keys["other"]))[0] == 200
        assert await server.stop() == 0


@WIRES
@pytest.mark.parametrize("option", [{"coalesce": True}, {"cache_secs": 60}])
async def test_one_tenant_s_answers_never_serve_another(
    sim: Simulator, wire: str, option: dict[str, Any], tmp_path: Path
) -> None:
    keys, settings = keys_of("bot", "other")
    cache = {"path": tmp_path / "answers.sqlite"}
    async with proxied((sim.url, SLOW), model=option, keys=settings, cache=cache) as url:
        asked = [ask(url, wire, keys[name]) for name in ("bot", "other", "bot", "other")]
        await asyncio.gather(*asked)
        once = 2 if "coalesce" in option else 4
        assert len(sim.ledger.requests) == once
        for name in keys:
            _, headers = await ask(url, wire, keys[name])
            assert headers.get("x-hedge-cache") == (None if "coalesce" in option else "hit")
        # What else can change the answer makes another request of it.
        _, headers = await ask(url, wire, keys["bot"], **{"Anthropic-Beta": "x"})
        assert headers.get("x-hedge-cache") in (None, "miss")


@WIRES
async def test_a_client_s_key_is_never_forwarded(
    upstream: Scripted, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    keys, settings = keys_of("bot")
    also = {"x-api-key": keys["bot"], "Authorization": f"Bearer {keys['bot']}"}
    also |= {"api-key": keys["bot"], "Cookie": f"k={keys['bot']}", "Proxy-Authorization": "x"}
    async with proxied(upstream.url, upstream=THEIRS, keys=settings) as url:
        assert (await ask(url, wire, keys["bot"], **also))[0] == 200
    (asked,) = upstream.asked
    assert keys["bot"] not in str(asked.headers) + asked.body.decode()
    assert "sk-theirs" in str(asked.headers)


async def echo(request: web.Request) -> web.StreamResponse:
    """Quote what is refused, as some APIs do."""
    message = f"not so: {await request.read()!r} {dict(request.headers)}"
    error = {"type": "invalid_request_error", "message": message}
    return web.json_response({"error": error}, status=400)


async def cut(request: web.Request) -> web.StreamResponse:
    out = await well(request)
    assert request.transport is not None
    request.transport.abort()
    return out


async def fail(request: web.Request) -> web.StreamResponse:
    return await replying(b'data: {"error": {"message": "%s"}}\n\n' % SECRET.encode())(request)


@WIRES
@pytest.mark.parametrize("script", [well, echo, fail, cut, None])
async def test_no_prompt_answer_or_key_is_logged(
    wire: str,
    script: Script | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    keys, settings = keys_of("bot")
    lines: list[str] = []
    sink = logger.add(lines.append, level=0, diagnose=False)
    caplog.set_level(logging.DEBUG)
    log = tmp_path / "turns.jsonl"
    if script is None:  # the proxy's own fault

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("odd")

        monkeypatch.setattr("pipecat_hedge.tools.proxy.model.ProxiedTurn.run", broken)
    try:
        async with (
            scripted(script or well) as upstream,
            proxied(upstream.url, upstream=THEIRS, keys=settings, turn_log=log) as url,
        ):
            await ask(url, wire, keys["bot"])
            await ask(url, wire, "wrong-" + keys["bot"])
    finally:
        logger.remove(sink)
    logged = "".join(lines) + caplog.text + (log.read_text() if log.exists() else "")
    assert logged
    for secret in (SECRET, WORDS[1], keys["bot"], "sk-theirs"):
        assert secret not in logged


async def test_no_key_in_a_faulty_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted(well) as upstream, proxied(upstream.url) as url:
        split = urlsplit(url)
        for key in (b"sk-their\x01s", b"sk-theirs" + b"a" * 70_000):
            reader, writer = await asyncio.open_connection(split.hostname, split.port)
            request = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
            writer.write(request + key + b"\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
    assert caplog.text.count("a request is refused") == 2
    assert "sk-their" not in caplog.text
