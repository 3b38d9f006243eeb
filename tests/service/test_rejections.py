"""A rejection is about the request: no provider is lost for it, now or later. In virtual time.

Beside a silence, what is rejected for load or fails once is asked again, as an SDK would. How the
errors of real SDKs are read: ``tests/live/test_provider_load.py``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pipecat.frames.frames import ErrorFrame, LLMTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.errors import classify_http_exception

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from tests.service.builders import NEVER, racing, said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

SDK_RETRIES = 2
GUARD_SECS = 3.0
QUICK_SECS = 0.3
"""The longest wait for a provider that answers after 0.1 s, and was asked at once."""
SILENCE_SECS = GUARD_SECS + QUICK_SECS
"""The longest wait for one that was asked because another was silent."""
WELL: list[Step] = [Wait(0.1), Say("We are open.")]
HANGS: list[Step] = [Wait(NEVER)]
POLICIES: dict[str, Callable[..., HedgePolicy]] = {
    "adaptive": HedgePolicy.adaptive,
    "race(2)": HedgePolicy.race,
    "after(0.5)": lambda **options: HedgePolicy.after(0.5, **options),
    "fallback": HedgePolicy.fallback,
}


def raises(error: Exception) -> list[Step]:
    """As a service of Pipecat reports what its SDK raises."""
    category = classify_http_exception(error)
    return [Wait(0.01), ErrorFrame(str(error), exception=error, category=category)]


def status_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, request=request)
    return httpx.HTTPStatusError(str(status), request=request, response=response)


def rejects(status: int, **headers: str) -> list[Step]:
    return raises(status_error(status, **headers))


RESETS, REFUSES = raises(httpx.ReadError("reset")), raises(httpx.ConnectError("refused"))


class Client:
    """An SDK's client, as far as its retries go."""

    max_retries = SDK_RETRIES

    def with_options(self, max_retries: int) -> Client:
        client = Client()
        client.max_retries = max_retries
        return client


class Replying(ScriptedLLMService):
    """A provider whose SDK would repeat a request twice.

    Attributes:
        reply: What it answers to every request.
        once: What it answers to the next requests, in order, before that.
        requests: When each request came, and what it asked.
    """

    def __init__(self, reply: Sequence[Step] = WELL, once: Sequence[Sequence[Step]] = ()):
        super().__init__([])
        self.reply: Sequence[Step] = reply
        self.once: list[Sequence[Step]] = [*once]
        self.requests: list[tuple[float, object]] = []
        self._client = Client()

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        question: Any = context.get_messages()[0]
        self.requests.append((asyncio.get_running_loop().time(), question["content"]))
        await super()._play(self.once.pop(0) if self.once else self.reply, context)


@dataclass
class Turn:
    """What the caller heard of a turn; times are in seconds, infinite for what never was."""

    wait_secs: float
    ended_secs: float
    text: str
    errors: int
    framing: str
    asked: str


class Call:
    """A call that asks turn by turn, and gives a turn up after some seconds."""

    def __init__(self, line: Line, providers: dict[str, Replying]):
        self.line, self._providers = line, providers
        self.turns: list[Turn] = []

    async def ask(self, turns: int = 1, limit_secs: float = 20.0) -> Turn:
        """Ask some questions one after another; returns the last turn."""
        for _ in range(turns):
            await asyncio.sleep(0.1)
            self.turns.append(await self._ask(f"Question {len(self.turns) + 1}?", limit_secs))
        return self.turns[-1]

    async def _ask(self, question: str, limit_secs: float) -> Turn:
        line, now, ended_secs = self.line, asyncio.get_running_loop().time, NEVER
        line.forget()
        began = now()
        try:
            async with asyncio.timeout(limit_secs):
                await line.ask(question)
                ended_secs = now() - began
        except TimeoutError:
            await line.interrupt()
            await asyncio.sleep(0.1)
        first = min(line.times(LLMTextFrame), default=NEVER)
        asked = sorted(
            (at, name)
            for name, provider in self._providers.items()
            for at, text in provider.requests
            if text == question
        )
        return Turn(
            *(first - began, ended_secs, line.text, len(line.errors), "".join(line.framing)),
            asked="".join(name for _, name in asked),
        )


@asynccontextmanager
async def calling(policy: HedgePolicy, **providers: Replying) -> AsyncIterator[Call]:
    """A call of a bot that races providers."""
    async with Line(racing(*providers.values(), policy=policy)) as line:
        yield Call(line, providers)


# ---- one rejection, and then the other provider is in trouble

TROUBLES = {
    "hangs": HANGS,
    "refuses connections": REFUSES,
    "503": rejects(503),
    "takes 3 s": [Wait(3.0), Say("Yes.")],
}


@pytest.mark.parametrize(
    ("status", "policy", "trouble"),
    [
        *itertools.product((400, 413, 422, 401), ("adaptive",), TROUBLES),
        *itertools.product((400, 401), [*POLICIES][1:], ("hangs", "refuses connections")),
    ],
)
async def test_one_rejection_costs_no_later_turn(status: int, policy: str, trouble: str) -> None:
    a, b = Replying(once=[rejects(status)]), Replying()
    async with calling(POLICIES[policy](), a=a, b=b) as call:
        await call.ask()
        b.reply = TROUBLES[trouble]
        await call.ask(3)
    first, *later = call.turns
    assert first.wait_secs <= QUICK_SECS
    assert first.asked.count("a") == 1
    assert max(turn.wait_secs for turn in later) < NEVER
    is_silent = trouble in ("hangs", "takes 3 s")
    assert later[0].wait_secs <= (SILENCE_SECS if is_silent else QUICK_SECS)
    assert later[2].wait_secs <= QUICK_SECS  # level again after it has answered
    assert all(len(turn.asked) <= 2 + 2 - 1 + 2 * SDK_RETRIES for turn in call.turns)


# ---- last until it has answered

UNHURRIED = {
    "adaptive": HedgePolicy.adaptive,
    "after(3)": lambda: HedgePolicy.after(3.0),
    "fallback": HedgePolicy.fallback,
}


@pytest.mark.parametrize(
    ("status", "third"), [(400, "a"), (413, "a"), (422, "a"), (401, "b"), (403, "b"), (404, "b")]
)
async def test_provider_that_rejects_a_prompt_is_last_in_the_next_turn_only(
    status: int, third: str
) -> None:
    a, b = Replying(once=[rejects(status)]), Replying()
    async with calling(HedgePolicy.fallback(), a=a, b=b) as call:
        await call.ask(3)
    assert [turn.asked for turn in call.turns] == ["ab", "b", third]


@pytest.mark.parametrize("policy", UNHURRIED)
@pytest.mark.parametrize(
    ("status", "is_twice"), [(401, False), (403, False), (404, False), (400, True), (422, True)]
)
async def test_provider_that_rejects_for_good_is_last_and_still_asked(
    status: int, is_twice: bool, policy: str
) -> None:
    a, b = Replying(once=[rejects(status)] * (1 + is_twice)), Replying()
    async with calling(UNHURRIED[policy](), a=a, b=b) as call:
        await call.ask()
        if is_twice:  # b fails once, a rejects again, b is asked again
            b.once = [rejects(503)]
            assert (await call.ask()).asked.count("a") == 1
        for _ in range(2):
            assert (await call.ask()).asked == "b"
        b.once = [rejects(503)] * 3
        assert (await call.ask()).wait_secs <= QUICK_SECS
        assert (await call.ask()).asked[:1] == "a"
    assert max(turn.wait_secs for turn in call.turns) < NEVER


@pytest.mark.parametrize("policy", ["adaptive", "after(0.5)", "fallback"])
async def test_unusable_provider_is_last_and_not_out(policy: str) -> None:
    a, b = Replying(), Replying()
    async with calling(POLICIES[policy](), a=a, b=b) as call:
        await a.set_usable(False)
        assert (await call.ask()).asked == "b"
        b.once = [rejects(503)] * 3
        assert (await call.ask()).wait_secs <= QUICK_SECS
        b.once.clear()
        await a.set_usable(False)
        b.reply = HANGS
        assert (await call.ask()).wait_secs <= SILENCE_SECS
        await a.set_usable(False)
        await b.set_usable(False)
        b.reply = WELL
        assert (await call.ask()).wait_secs <= QUICK_SECS


# ---- within one turn


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("second", [400, 401, None])
async def test_rejections_do_not_count_against_max_attempts(
    policy: str, second: int | None
) -> None:
    """Two slots for three providers; the first rejects, the second rejects or hangs."""
    providers = {
        "a": Replying(rejects(400)),
        "b": Replying(rejects(second) if second else HANGS),
        "c": Replying(),
    }
    async with calling(POLICIES[policy](max_attempts=2), **providers) as call:
        turn = await call.ask()
    assert turn.wait_secs <= (QUICK_SECS if second else SILENCE_SECS)
    assert sorted(turn.asked) == ["a", "b", "c"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "statuses",
    [(503, 503, 503), (400, 400, 400), (401, 401, 401), (400, 503, 422), (503, 401, 503)],
    ids=str,
)
async def test_number_of_requests_is_bounded_when_all_fail(
    policy: str, statuses: tuple[int, ...]
) -> None:
    """And the next turn is answered."""
    providers = dict(zip("abc", (Replying(rejects(s)) for s in statuses), strict=True))
    retried = sum(status >= 500 for status in statuses)
    async with calling(POLICIES[policy](max_attempts=2), **providers) as call:
        turn = await call.ask()
        for provider in providers.values():
            provider.reply = WELL
        assert (await call.ask()).wait_secs <= QUICK_SECS
    assert turn.ended_secs < NEVER
    assert (turn.text, turn.errors, turn.framing) == ("", 1, "<>")
    assert len(turn.asked) <= len(providers) + 2 - 1 + retried * SDK_RETRIES
    for name, status in zip("abc", statuses, strict=True):
        least = name != "c" or retried < 3  # a rejection takes none of the two slots
        assert least <= turn.asked.count(name) <= 1 + (SDK_RETRIES if status >= 500 else 0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("second", [[rejects(503)] * 2, [HANGS] * 9], ids=["503", "hangs"])
async def test_prompt_is_not_sent_again_to_provider_that_rejected_it(
    policy: str, second: list[list[Step]]
) -> None:
    a, b = Replying(rejects(400)), Replying(once=second)
    async with calling(POLICIES[policy](), a=a, b=b) as call:
        turn = await call.ask(limit_secs=5)
    assert turn.asked.count("a") == 1
    assert turn.asked.count("b") <= 1 + SDK_RETRIES
    if second[0] is not HANGS:  # a retry answers
        assert turn.wait_secs < NEVER


# ---- beside a silence: s is silent, w works but for its faults

FAULTS = {"529": rejects(529), "500": rejects(500), "503": rejects(503), "reset": RESETS}
HEDGE_SECS = {"adaptive": GUARD_SECS, "race(2)": 0.0, "after(0.5)": 0.5, "fallback": GUARD_SECS}
"""How long a cold first provider may be silent before the second one is asked."""
RETRY_SECS = 4.0
"""The longest wait for the retry: the SDK's pause, or the p95 of a silent provider that is cold."""
ORDERS = pytest.mark.parametrize("order", ["sw", "ws"], ids=["silent first", "silent second"])


def ordered(order: str, **providers: Replying) -> dict[str, Replying]:
    return {name: providers[name] for name in order}


@ORDERS
@pytest.mark.parametrize(
    ("fault", "policy"),
    [
        *(("529", policy) for policy in POLICIES),
        *(("reset", policy) for policy in POLICIES),
        ("500", "race(2)"),
        ("503", "race(2)"),
    ],
)
async def test_failure_beside_a_silence_is_retried(fault: str, policy: str, order: str) -> None:
    providers = ordered(order, s=Replying(HANGS), w=Replying(once=[FAULTS[fault]]))
    async with calling(POLICIES[policy](), **providers) as call:
        turn = await call.ask()
    hedge_secs = HEDGE_SECS[policy] if order == "sw" else 0.0
    assert turn.wait_secs <= hedge_secs + RETRY_SECS + QUICK_SECS
    assert sorted(turn.asked) == ["s", "w", "w"]
    assert turn.framing == "<t>"


@ORDERS
@pytest.mark.parametrize("policy", ["race(2)", "after(0.5)"])
@pytest.mark.parametrize("fault", ["529", "reset"])
async def test_retry_is_soon_when_the_silent_one_usually_is_quick(
    fault: str, policy: str, order: str
) -> None:
    providers = ordered(order, s=Replying(), w=Replying())
    first = providers[order[0]]
    async with calling(POLICIES[policy](), **providers) as call:
        for turn in range(6):  # each is first by turns, so that both have been measured
            first.reply = [Wait(0.1 if turn % 2 else 0.7), Say("Yes.")]
            await call.ask()
        first.reply = WELL
        providers["s"].reply, providers["w"].once = HANGS, [FAULTS[fault]]
        turn = await call.ask()
    assert turn.wait_secs <= 3.5
    assert turn.asked.count("w") == 2


@ORDERS
@pytest.mark.parametrize("policy", ["race(2)", "after(0.5)"])
@pytest.mark.parametrize("fault", ["529", "reset"])
async def test_failure_beside_a_silence_is_retried_as_often_as_its_sdk_would(
    fault: str, policy: str, order: str
) -> None:
    """The silent one never answers, the other one always fails."""
    providers = ordered(order, s=Replying(HANGS), w=Replying(FAULTS[fault]))
    async with calling(POLICIES[policy](), **providers) as call:
        turn = await call.ask()
    assert turn.asked.count("w") == 1 + SDK_RETRIES
    assert len(turn.asked) <= 2 + 2 - 1 + 2 * SDK_RETRIES


@ORDERS
@pytest.mark.parametrize("policy", POLICIES)
async def test_retry_beside_a_silence_comes_after_its_retry_after(policy: str, order: str) -> None:
    working = Replying(once=[rejects(529, retry_after="2")])
    async with calling(POLICIES[policy](), **ordered(order, s=Replying(HANGS), w=working)) as call:
        assert (await call.ask()).wait_secs < NEVER
    (first, _), (second, _) = working.requests
    assert second - first >= 2.0


@ORDERS
@pytest.mark.parametrize("fault", FAULTS)
async def test_failure_beside_an_answer_that_comes_needs_no_third_request(
    fault: str, order: str
) -> None:
    providers = ordered(
        order, s=Replying([Wait(0.3), Say("Yes.")]), w=Replying(once=[FAULTS[fault]])
    )
    async with calling(HedgePolicy.race(2), **providers) as call:
        turn = await call.ask()
    assert turn.wait_secs == pytest.approx(0.3)
    assert sorted(turn.asked) == ["s", "w"]


@ORDERS
@pytest.mark.parametrize("policy", POLICIES)
async def test_call_beside_a_silent_provider_loses_no_turn(policy: str, order: str) -> None:
    """The other one rejects every tenth request."""
    faults = [rejects(529), *[WELL] * 9]
    providers = ordered(order, s=Replying(HANGS), w=Replying(once=[WELL, WELL, *faults * 6]))
    async with calling(POLICIES[policy](), **providers) as call:
        await call.ask(20, limit_secs=7)
    assert max(turn.wait_secs for turn in call.turns) < NEVER


# ---- inferences


class KnowsNoSchema(Replying):
    """A provider that rejects what it does not know."""

    async def run_inference(self, *_: Any, **options: Any) -> str | None:
        self.options = options
        if "response_schema" in options:
            raise status_error(400)
        return "Any."


class Infers(Replying):
    async def run_inference(self, *_: Any, **options: Any) -> str | None:
        return '{"topic": "open"}'


async def test_rejected_inference_is_answered_by_another_and_demotes_no_provider() -> None:
    a, b = KnowsNoSchema(), Infers()
    async with calling(HedgePolicy.adaptive(), a=a, b=b) as call:
        assert isinstance(call.line.service, HedgedLLMService)
        await call.ask()
        for _ in range(2):
            inferring = call.line.service.run_inference(
                said("What is this about?"), response_schema={"type": "object"}
            )
            assert "open" in (await inferring or "")
            assert (await call.ask()).asked == "a"
        b.reply = REFUSES
        await call.ask()
    assert a.options
    assert max(turn.wait_secs for turn in call.turns) <= QUICK_SECS
