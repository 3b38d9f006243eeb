"""One upstream is silent, the other one fails once: the proxy asks it again, as an SDK would.

What the other one rejects, or answers with nothing, is not held up for long.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
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

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120)]

FAULTS = {"529": Reply(status=529), "500": Reply(status=500), "reset": RESETS}
ORDERS = FIRST, SECOND = True, False
"""Whether the silent upstream is the first one or the second one."""
POLICIES = {"adaptive": 3.5, "race(2)": 0.0, "after(0.5)": 0.5, "fallback": 3.0}
"""How long each has a cold first upstream be silent before it asks the second one."""
RETRY_SECS = 4.0
"""The longest wait for the retry: the SDK's pause, or the p95 of a silent upstream that is cold."""
SLACK_SECS = 1.0
STAGGER_SECS = 0.05


async def ask(wire: str, fault: str, policy: str, stream: bool, silent_first: bool) -> str:
    """Ask a proxy once; returns what was wrong, or nothing."""
    silent = ScriptedProvider("s", wire, HANGS)
    working = ScriptedProvider("w", wire, once=[FAULTS[fault]])
    providers = (silent, working) if silent_first else (working, silent)
    async with scripted_providers(*providers):
        model = {"policy": policy}
        async with (
            proxied(*(provider.url for provider in providers), model=model) as url,
            aiohttp.ClientSession() as session,
        ):
            most_secs = RETRY_SECS + SLACK_SECS + (POLICIES[policy] if silent_first else 0.0)
            began = time.monotonic()
            body = asking(wire, stream=stream, messages=[{"role": "user", "content": "Question 1"}])
            try:
                async with (
                    asyncio.timeout(12),
                    session.post(url + PATHS[wire], json=body) as response,
                ):
                    found = (await response.read()).decode()
            except TimeoutError:
                return "no answer in 12 s"
            secs = time.monotonic() - began
    asked = (working.asked(1), silent.asked(1))
    wrong = {
        f"status {response.status}": response.status != 200,
        f"{secs:.1f} s": secs > most_secs,
        f"asked {asked} times": asked != (2, 1),
        f"got {found}": not all(word in found for word in ANSWER.split()),
    }
    return ", ".join(what for what, is_wrong in wrong.items() if is_wrong)


async def all_right(
    asking: Callable[..., Awaitable[str]], cells: Sequence[tuple[Any, ...]]
) -> None:
    """Run cells at the same time, the first ones first; none says what was wrong."""

    async def run(number: int) -> str:
        await asyncio.sleep(number * STAGGER_SECS)
        return await asking(*cells[number])

    found = await asyncio.gather(*map(run, range(len(cells))))
    assert {cell: wrong for cell, wrong in zip(cells, found, strict=True) if wrong} == {}


async def test_a_failure_beside_a_silence_is_retried() -> None:
    """The wires read a stream and a whole answer each in its way; the race is the same for all."""
    await all_right(
        ask,
        [
            *(("openai", "529", policy, True, order) for policy in POLICIES for order in ORDERS),
            ("openai", "500", "race(2)", False, SECOND),
            ("openai", "reset", "adaptive", False, FIRST),
            ("anthropic", "529", "after(0.5)", False, FIRST),
            ("anthropic", "500", "fallback", True, FIRST),
            ("anthropic", "reset", "race(2)", True, SECOND),
        ],
    )


@pytest.mark.parametrize("policy", POLICIES)
async def test_calm_upstreams_are_asked_as_ever(policy: str) -> None:
    """Under ``race(2)`` a 529 beside one about to answer does not become three requests."""
    first, second = (
        ScriptedProvider("a", "openai", Reply(first_secs=0.5)),
        ScriptedProvider("b", "openai", Reply(status=529)),
    )
    async with (
        scripted_providers(first, second),
        proxied(first.url, second.url, model={"policy": policy}) as url,
        aiohttp.ClientSession() as session,
    ):
        body = asking("openai", stream=True)
        async with session.post(url + PATHS["openai"], json=body) as response:
            assert response.status == 200
            await response.read()
        assert len(first.requests) == 1
        assert len(second.requests) <= (1 if policy in ("race(2)", "after(0.5)") else 0)


# ---- what is no failure of its upstream

GUARD_SECS = 0.6
WORK_SECS = 2.0
GUARDED = {
    "adaptive(silence_secs=0.6)": GUARD_SECS,
    "race(2, silence_secs=0.6)": 0.0,
    "after(0.5, silence_secs=0.6)": 0.5,
    "fallback(stall_secs=0.6)": GUARD_SECS,
}
"""``POLICIES`` with that guard."""
ADAPTIVE, RACE, AFTER, FALLBACK = GUARDED
TIMER_SECS = 0.1
STEPS = 10
"""How often a request passes the event loop on its way, and is late each time."""
BLOCK_SECS = 0.25
"""A busy machine does so: six loops beside 24 proxies that start on one core."""
REJECTION = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}'
EMPTY = {
    ("openai", True): NOTHING["gpt empty"],
    ("openai", False): NOTHING["gpt whole empty"],
    ("anthropic", True): NOTHING["claude empty"],
    ("anthropic", False): NOTHING["claude whole empty"],
}


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


class Lag:
    """How late the event loop is, while it is entered."""

    def __init__(self, block_secs: float = 0.0):
        """With ``block_secs`` it blocks the loop for as long, again and again."""
        self._block_secs = block_secs
        self._samples: list[tuple[float, float]] = []

    async def __aenter__(self) -> Lag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    def most_since(self, at: float) -> float:
        """The largest lag since then, in seconds."""
        return max((secs for when, secs in self._samples if when >= at), default=0.0)

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + 0.01
            time.sleep(self._block_secs)
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self._samples.append((now, now - due))


async def rejected(
    wire: str, status: int, policy: str, stream: bool, silent_first: bool, *, lag: Lag, log: Path
) -> str:
    """Ask once beside a silence; returns what was wrong, or nothing.

    On a busy machine the client waits for its connections, too, and the guard's timer fires late,
    which the driver allows for once more; nothing else makes the guard longer.
    """
    body, kind = (REJECTION, JSON), "text/event-stream" if stream else JSON
    if status == 200:
        body = b"".join(EMPTY[wire, stream].parts), kind
    script = replying(body[0], status=status, content_type=body[1])
    async with scripted(hang) as silent, scripted(script) as other:
        urls = (silent.url, other.url) if silent_first else (other.url, silent.url)
        async with (
            proxied(*urls, model={"policy": policy}, turn_log=log) as url,
            aiohttp.ClientSession() as session,
        ):
            began = time.monotonic()
            async with (
                asyncio.timeout(60),
                session.post(url + PATHS[wire], json=asking(wire, stream=stream)) as response,
            ):
                found = await response.read()
            secs = time.monotonic() - began
        asked = (len(other.asked), len(silent.asked))
    guard_secs = GUARD_SECS if stream else WORK_SECS
    asks_secs = GUARDED[policy] if silent_first else 0.0
    most_secs = asks_secs + guard_secs + SLACK_SECS + STEPS * lag.most_since(began)
    attempts = json.loads(log.read_text())["attempts"]
    rejection, silence = reversed(attempts) if silent_first else attempts
    waited_secs = silence["ended_secs"] - rejection["ended_secs"]
    if status == 200:  # it was accepted when the silent one was closed
        waited_secs = guard_secs
    late_secs = TIMER_SECS + 3 * lag.most_since(began + secs - 1.0)
    wrong = {
        f"status {response.status}": response.status != status,
        f"{secs:.1f} s, at most {most_secs:.1f} s": not guard_secs <= secs < most_secs,
        f"{waited_secs:.2f} s": not guard_secs - 0.01 <= waited_secs < guard_secs + late_secs,
        f"asked {asked} times": asked != (1, 1),
        f"got {found!r}": found != body[0],
    }
    return ", ".join(what for what, is_wrong in wrong.items() if is_wrong)


async def test_a_rejection_or_nothing_waits_for_a_silent_upstream_as_long_as_the_guard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_module, "WORK_SECS", WORK_SECS)
    logs = (tmp_path / f"{number}.jsonl" for number in itertools.count())

    async def asking(*cell: Any) -> str:
        return await rejected(*cell, lag=lag, log=next(logs))

    async with Lag() as lag:
        await all_right(
            asking,
            [
                *(("openai", 400, policy, True, order) for policy in GUARDED for order in ORDERS),
                ("openai", 422, ADAPTIVE, False, SECOND),
                ("openai", 200, FALLBACK, True, FIRST),
                ("openai", 200, RACE, False, SECOND),
                ("anthropic", 400, RACE, True, SECOND),
                ("anthropic", 422, AFTER, False, FIRST),
                ("anthropic", 200, AFTER, True, FIRST),
                ("anthropic", 200, ADAPTIVE, False, SECOND),
            ],
        )


@pytest.mark.parametrize("policy", [RACE, AFTER])
async def test_a_late_loop_makes_the_guard_longer_by_its_lag_only(
    policy: str, tmp_path: Path
) -> None:
    async with Lag(BLOCK_SECS) as lag:
        log = tmp_path / "turns.jsonl"
        wrong = await rejected("openai", 400, policy, True, FIRST, lag=lag, log=log)
    assert wrong == ""


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
