"""One upstream is silent: what another one fails or rejects, in each wire and form of an answer.

With every policy and order, in virtual time: ``tests/service/test_rejections.py``.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipecat_hedge.tools.proxy import model as model_module
from tests.live.proxied import PATHS, asking, proxied
from tests.live.scripted_provider import (
    ANSWER,
    HANGS,
    RESETS,
    Reply,
    ScriptedProvider,
    scripted_providers,
)
from tests.live.scripted_upstream import replying, scripted
from tests.live.test_proxy_passing import JSON, NOTHING
from tests.live.wire_streams import chunk, gpt_stream

pytestmark = [pytest.mark.live, pytest.mark.realtime]

FAULTS = {"529": Reply(status=529), "500": Reply(status=500), "reset": RESETS}
RETRY_SECS = 4.0
"""The longest wait for the retry: the SDK's pause, or the p95 of a silent upstream that is cold."""
SLACK_SECS = 1.0


@pytest.mark.parametrize(
    ("wire", "fault", "stream", "silent"),
    [
        ("openai", "529", True, "first"),
        ("openai", "500", False, "second"),
        ("anthropic", "529", False, "first"),
        ("anthropic", "reset", True, "second"),
    ],
)
async def test_a_failure_beside_a_silence_is_retried(
    wire: str, fault: str, stream: bool, silent: str
) -> None:
    """As an SDK would."""
    hangs = ScriptedProvider("s", wire, HANGS)
    working = ScriptedProvider("w", wire, once=[FAULTS[fault]])
    providers = (hangs, working) if silent == "first" else (working, hangs)
    async with (
        scripted_providers(*providers),
        proxied(*(each.url for each in providers), model={"policy": "race(2)"}) as url,
        aiohttp.ClientSession() as session,
    ):
        began = time.monotonic()
        body = asking(wire, stream=stream, messages=[{"role": "user", "content": "Question 1"}])
        async with session.post(url + PATHS[wire], json=body) as response:
            found = (await response.read()).decode()
        assert response.status == 200
        assert all(word in found for word in ANSWER.split())
        assert time.monotonic() - began <= RETRY_SECS + SLACK_SECS
    assert (working.asked(1), hangs.asked(1)) == (2, 1)


# ---- what is no failure of its upstream

GUARD_SECS = 0.6
WORK_SECS = 2.0
POLICY = "race(2, silence_secs=0.6)"
REJECTION = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}'


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("wire", "status", "stream", "silent"),
    [
        ("openai", 400, True, "first"),
        ("openai", 200, False, "second"),
        ("anthropic", 422, False, "first"),
        ("anthropic", 200, True, "second"),
    ],
)
async def test_a_rejection_or_nothing_waits_for_a_silent_upstream_as_long_as_the_guard(
    wire: str,
    status: int,
    stream: bool,
    silent: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(model_module, "WORK_SECS", WORK_SECS)
    log, is_empty = tmp_path / "turns.jsonl", status == 200
    nothing: Any = NOTHING["gpt whole empty" if wire == "openai" else "claude empty"]
    body = b"".join(nothing.parts) if is_empty else REJECTION
    kind = "text/event-stream" if is_empty and stream else JSON
    script = replying(body, status=status, content_type=kind)
    async with scripted(hang) as hangs, scripted(script) as other:
        urls = (hangs.url, other.url) if silent == "first" else (other.url, hangs.url)
        began = time.monotonic()
        async with (
            proxied(*urls, model={"policy": POLICY}, turn_log=log) as url,
            aiohttp.ClientSession() as session,
            session.post(url + PATHS[wire], json=asking(wire, stream=stream)) as response,
        ):
            assert (response.status, await response.read()) == (status, body)
            secs = time.monotonic() - began
        assert (len(other.asked), len(hangs.asked)) == (1, 1)
    guard_secs = GUARD_SECS if stream else WORK_SECS
    assert secs >= guard_secs
    attempts = json.loads(log.read_text())["attempts"]
    silence, rejection = attempts if silent == "first" else reversed(attempts)
    if not is_empty:  # else it was accepted when the silent one was closed
        secs = silence["ended_secs"] - rejection["ended_secs"]
    assert guard_secs - 0.01 <= secs <= guard_secs + SLACK_SECS


async def test_an_upstream_that_reasons_is_waited_for() -> None:
    async def reason(request: web.Request) -> web.StreamResponse:
        out = await replying()(request)
        for _ in range(10):
            await out.write(b"".join(gpt_stream(chunk(reasoning="Hm"), mark=False)))
            await asyncio.sleep(0.5)
        await out.write(b"".join(gpt_stream(chunk(content="Yes."), chunk("stop"))))
        return out

    async with (
        scripted(reason) as first,
        scripted(replying(REJECTION, status=400)) as second,
        proxied(first.url, second.url, model={"policy": "race(2)"}) as url,
        aiohttp.ClientSession() as session,
    ):
        body = asking("openai", stream=True)
        async with session.post(url + PATHS["openai"], json=body) as response:
            assert b"Yes." in await response.read()
        assert len(second.asked) == 1
