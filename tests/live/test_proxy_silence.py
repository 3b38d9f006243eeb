"""One upstream is silent, the other one fails once: the proxy asks it again, as an SDK would."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import aiohttp
import pytest

from tests.live.faulty_upstream import PATHS
from tests.live.scripted_provider import (
    ANSWER,
    HANGS,
    RESETS,
    Reply,
    ScriptedProvider,
    scripted_providers,
)
from tests.live.scripted_upstream import asking, proxied

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120)]

FAULTS = {"529": Reply(status=529), "500": Reply(status=500), "reset": RESETS}
POLICIES = {"adaptive": 3.5, "race(2)": 0.0, "after(0.5)": 0.5, "fallback": 3.0}
"""How long each has a cold first upstream be silent before it asks the second one."""
RETRY_SECS = 4.0
"""The longest wait for the retry: the SDK's pause, or the p95 of a silent upstream that is cold."""
SLACK_SECS = 1.0
STAGGER_SECS = 0.05


async def ask(wire: str, fault: str, policy: str, *, stream: bool, silent_first: bool) -> str:
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
    words = [json.dumps(part)[1:-1] for part in (ANSWER if stream else ["".join(ANSWER)])]
    wrong = {
        f"status {response.status}": response.status != 200,
        f"{secs:.1f} s": secs > most_secs,
        f"asked {asked} times": asked != (2, 1),
        f"got {found}": not all(word in found for word in words),
    }
    return ", ".join(what for what, is_wrong in wrong.items() if is_wrong)


@pytest.mark.parametrize("silent_first", [True, False], ids=["silent first", "silent second"])
@pytest.mark.parametrize("wire", PATHS)
async def test_a_failure_beside_a_silence_is_retried(wire: str, silent_first: bool) -> None:
    cells = list(itertools.product(FAULTS, POLICIES, (True, False)))

    async def run(number: int, fault: str, policy: str, stream: bool) -> str:
        await asyncio.sleep(number * STAGGER_SECS)
        return await ask(wire, fault, policy, stream=stream, silent_first=silent_first)

    found = await asyncio.gather(*(run(number, *cell) for number, cell in enumerate(cells)))
    assert {cell: wrong for cell, wrong in zip(cells, found, strict=True) if wrong} == {}


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
