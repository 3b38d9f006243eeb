"""Keys over real sockets: rejected requests, what is never mixed up, and what is never logged."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from loguru import logger

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.proxy.keys import new_key
from tests.live.faulty_upstream import PATHS, FaultyUpstream, events, faulty_upstream

pytestmark = pytest.mark.live

WIRES = pytest.mark.parametrize("wire", ["anthropic", "openai"])
SECRET = "my-card-is-4929"


def keys_of(*names: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Keys by name, and their settings."""
    made = {name: new_key(name).split("\n\n") for name in names}
    settings = [{"name": name, "sha256": lines.split('"')[3]} for name, (_, lines) in made.items()]
    return {name: key for name, (key, _) in made.items()}, settings


def models(upstream: FaultyUpstream, asked: str = "well", **model: Any) -> dict[str, Any]:
    return {
        wire: {
            "wire": wire,
            "policy": "fallback(probes=False)",
            "upstreams": [
                {
                    "name": "a",
                    "base_url": upstream.url + ("" if wire == "anthropic" else "/v1"),
                    "model": asked,
                    "key_env": "THEIR_KEY",
                }
            ],
            **model,
        }
        for wire in PATHS
    }


@asynccontextmanager
async def proxied(**settings: Any) -> AsyncIterator[tuple[ProxyServer, str]]:
    found = ProxySettings.model_validate({"listen": "127.0.0.1:0", **settings})
    async with ProxyServer(found, ProviderStats()) as server:
        yield server, f"http://127.0.0.1:{server.port}"


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultyUpstream]:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    async with faulty_upstream() as upstream:
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
async def test_wrong_and_missing_keys_are_rejected_in_the_wire_s_form(
    upstream: FaultyUpstream, wire: str
) -> None:
    keys, settings = keys_of("bot")
    async with proxied(models=models(upstream), keys=settings) as (_, url):
        for key in (None, "", "wrong", keys["bot"][:-1], keys["bot"] + "x", settings[0]["sha256"]):
            status, found = await ask(url, wire, key)
            assert status == 401
            error = json.loads(found["body"])["error"]
            assert error["type"] == "authentication_error" if wire == "anthropic" else error["code"]
        status, found = await ask(url, wire, keys["bot"])
        assert (status, found["body"]) == (200, b"".join(events(wire)))
    assert len(upstream.seen) == 1


@WIRES
async def test_a_revoked_key_is_rejected_and_its_streams_end(
    upstream: FaultyUpstream, wire: str
) -> None:
    keys, settings = keys_of("bot", "other")
    async with proxied(models=models(upstream, "slow"), keys=settings) as (server, url):
        running = [asyncio.ensure_future(ask(url, wire, keys[name])) for name in keys]
        while len(upstream.seen) < 2:
            await asyncio.sleep(0.01)
        server.set_keys(
            ProxySettings.model_validate({"models": models(upstream), "keys": settings[1:]}).keys
        )
        with pytest.raises(aiohttp.ClientError):
            await running[0]
        while len(upstream.running) > 1:
            await asyncio.sleep(0.01)
        assert (await ask(url, wire, keys["bot"]))[0] == 401
        assert (await running[1])[1]["body"] == b"".join(events(wire))
        server.set_keys(())  # the last one is gone: that does not open the proxy
        for key in (*keys.values(), None):
            assert (await ask(url, wire, key))[0] == 401


async def test_sighup_reads_the_keys_again(upstream: FaultyUpstream, tmp_path: Path) -> None:
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
    command = [sys.executable, "-m", "pipecat_hedge.cli", "proxy", str(path)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    url = (await process.stdout.readline()).decode().split(": ", 1)[1].strip()
    assert (await ask(url, "anthropic", keys["bot"]))[0] == 200

    async def reload() -> bytes:
        assert process.stderr is not None
        process.send_signal(signal.SIGHUP)
        while b"keys" not in (line := await process.stderr.readline()):
            assert line
        return line

    write(settings[1])
    assert b"were read again" in await reload()
    assert (await ask(url, "anthropic", keys["bot"]))[0] == 401
    assert (await ask(url, "anthropic", keys["other"]))[0] == 200
    write(more="nonsense = 1\n")
    assert b"stay as they were" in await reload()
    assert (await ask(url, "anthropic", keys["other"]))[0] == 200
    process.terminate()
    assert await process.wait() == 0


@WIRES
@pytest.mark.parametrize("option", [{"coalesce": True}, {"cache_secs": 60}])
async def test_one_tenant_s_answers_never_serve_another(
    upstream: FaultyUpstream, wire: str, option: dict[str, Any], tmp_path: Path
) -> None:
    keys, settings = keys_of("bot", "other")
    cache = {"path": tmp_path / "answers.sqlite"}
    found = models(upstream, "slow", **option)
    async with proxied(models=found, keys=settings, cache=cache) as (_, url):
        asking = [ask(url, wire, keys[name]) for name in ("bot", "other", "bot", "other")]
        await asyncio.gather(*asking)
        once = 2 if "coalesce" in option else 4
        assert len(upstream.seen) == once
        for name in keys:
            _, headers = await ask(url, wire, keys[name])
            assert headers.get("x-hedge-cache") == (None if "coalesce" in option else "hit")
        # What else can change the answer makes another request of it.
        _, headers = await ask(url, wire, keys["bot"], **{"Anthropic-Beta": "x"})
        assert headers.get("x-hedge-cache") in (None, "miss")


@WIRES
async def test_a_client_s_key_is_never_forwarded(upstream: FaultyUpstream, wire: str) -> None:
    keys, settings = keys_of("bot")
    also = {"x-api-key": keys["bot"], "Authorization": f"Bearer {keys['bot']}"}
    also |= {"api-key": keys["bot"], "Cookie": f"k={keys['bot']}", "Proxy-Authorization": "x"}
    async with proxied(models=models(upstream), keys=settings) as (_, url):
        assert (await ask(url, wire, keys["bot"], **also))[0] == 200
    ((headers, body),) = upstream.seen
    assert keys["bot"] not in str(headers) + body.decode()
    assert "sk-theirs" in str(headers)


@WIRES
@pytest.mark.parametrize("fault", ["well", "echo", "error_first", "cut", "odd"])
async def test_no_prompt_answer_or_key_is_logged(
    upstream: FaultyUpstream,
    wire: str,
    fault: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, settings = keys_of("bot")
    lines: list[str] = []
    sink = logger.add(lines.append, level=0, diagnose=False)
    caplog.set_level(logging.DEBUG)
    log = tmp_path / "turns.jsonl"
    if fault == "odd":  # the proxy's own fault

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("odd")

        monkeypatch.setattr("pipecat_hedge.tools.proxy.model.ProxiedTurn.run", fail)
    try:
        found = models(upstream, fault)
        async with proxied(models=found, keys=settings, turn_log=log) as (_, url):
            await ask(url, wire, keys["bot"])
            await ask(url, wire, "wrong-" + keys["bot"])
    finally:
        logger.remove(sink)
    logged = "".join(lines) + caplog.text + (log.read_text() if log.exists() else "")
    assert logged
    for secret in (SECRET, "geöffnet", keys["bot"], "sk-theirs"):
        assert secret not in logged
