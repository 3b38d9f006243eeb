"""Callers of a vLLM, in several processes: what ``scripts.vllm.latency`` measures.

Some speak HTTP themselves, the others have a pipeline with a service: the difference is what the
service and its pipeline cost. Every prompt differs from all others from its first word on.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from threading import BrokenBarrierError
from typing import Any
from uuid import uuid4

import aiohttp
from loguru import logger
from pipecat.frames.frames import LLMTextFrame, MetricsFrame
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from scripts.vllm.first_sentence import WORDS
from tests.support.line import Line

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, VLLMService
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait

TOKENS = 20
"""The tokens of a sentence: some fifteen words."""
ASK_SECS = 300
GREETING_SECS = 0.8
"""From a session's start to its first turn."""


@dataclass(frozen=True)
class Target:
    """The server; ``extra_body`` is added to each request."""

    base_url: str
    model: str
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Answer:
    """What one request took. ``group`` names what it is compared with."""

    ttft_secs: float
    sentence_secs: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    group: str = ""
    attempts: int = 1
    winner: str | None = None


def prose(words: int) -> str:
    """Random words after one that no other prompt has."""
    return " ".join([uuid4().hex, *random.choices(WORDS, k=words)])


# ---- callers


class HTTPCaller:
    """Speaks HTTP itself."""

    def __init__(self, target: Target):
        self._target = target

    async def __aenter__(self) -> HTTPCaller:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ASK_SECS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, text: str, *, priority: int = 0, tokens: int = TOKENS) -> Answer:
        """Send what a service would send."""
        body = {
            "model": self._target.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "priority": priority,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._target.extra_body,
        }
        url = f"{self._target.base_url}/chat/completions"
        began, times, usage = time.monotonic(), list[float](), dict[str, Any]()
        async with self._session.post(url, json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    usage = chunk.get("usage") or usage
                    if any(choice["delta"].get("content") for choice in chunk["choices"]):
                        times.append(time.monotonic() - began)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(times[0], times[-1], usage["prompt_tokens"], cached)


class PipelineCaller:
    """Asks a service in a pipeline."""

    def __init__(self, llm: LLMService[Any], *before: FrameProcessor):
        self.line = Line(llm, before=before)

    async def __aenter__(self) -> PipelineCaller:
        await self.line.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.line.__aexit__(*error)

    async def ask(self, text: str) -> Answer:
        """Ask for one answer."""
        self.line.forget()
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(ASK_SECS):
            await self.line.ask(text)
        times = self.line.times(LLMTextFrame)
        if not times:
            raise RuntimeError(f"no text: {[error.error for error in self.line.errors]}")
        metrics = [data for frame in self.line.frames(MetricsFrame) for data in frame.data]
        usage = [data.value for data in metrics if isinstance(data, LLMUsageMetricsData)]
        prompt = usage[-1].prompt_tokens if usage else 0
        cached = usage[-1].cache_read_input_tokens or 0 if usage else 0
        return Answer(times[0] - began, times[-1] - began, prompt, cached)


def vllm_service(target: Target, *, system: str | None = None, warm: bool = False) -> VLLMService:
    """A service whose answers have ``TOKENS`` tokens."""
    extra = {"extra_body": {"min_tokens": TOKENS, **target.extra_body}}
    settings = VLLMService.Settings(max_tokens=TOKENS, extra=extra, system_instruction=system)
    return VLLMService(base_url=target.base_url, settings=settings, warm=warm)


def openai_service(target: Target) -> OpenAILLMService:
    """Pipecat's own service with the same request."""
    extra = {"extra_body": {"min_tokens": TOKENS, "priority": 0, **target.extra_body}}
    settings = OpenAILLMService.Settings(model=target.model, max_tokens=TOKENS, extra=extra)
    return OpenAILLMService(base_url=target.base_url, api_key="EMPTY", settings=settings)


CLIENTS: dict[str, Callable[[Target], HTTPCaller | PipelineCaller]] = {
    "plain": HTTPCaller,
    "pipecat": lambda target: PipelineCaller(openai_service(target)),
    "service": lambda target: PipelineCaller(vllm_service(target)),
}

# ---- what the callers of one process do; ``mine`` are their numbers


async def together() -> None:
    """Wait until all processes are here."""
    await asyncio.to_thread(_barrier.wait, ASK_SECS)


async def ladder(mine: range, *, target: Target, client: str, words: int) -> list[Answer]:
    """Ask with a new prompt (cold), and three times with it and another question (warm)."""
    found: list[Answer] = []
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(CLIENTS[client](target)) for _ in mine]
        await asyncio.gather(*(caller.ask("Hello?") for caller in callers))  # connects
        prompts = [prose(words) for _ in mine]
        for cache in ("cold", "warm", "warm", "warm"):
            await together()
            asked = (c.ask(f"{p} {prose(20)}") for c, p in zip(callers, prompts, strict=True))
            group = f"{client}, {cache}"
            found += [replace(answer, group=group) for answer in await asyncio.gather(*asked)]
    return found


async def first_turns(mine: range, *, target: Target, words: int, rounds: int) -> list[Answer]:
    """First turns of sessions, with and without the prefill at the session's start."""
    found: list[Answer] = []
    for warm in (False, True) * rounds if mine else ():
        llm = vllm_service(target, warm=warm, system=prose(words))
        pair = LLMContextAggregatorPair(LLMContext())
        async with PipelineCaller(llm, pair.user()) as caller:
            await asyncio.sleep(GREETING_SECS)
            answer = await caller.ask("A table for two, please.")
        found.append(replace(answer, group="warm=True" if warm else "warm=False"))
    return found


MODES = ("hosted alone", "local alone", "after(0.6)", "race(2)")


def racing(mode: str, target: Target, turns: int) -> HedgedLLMService:
    """A hosted provider with a median of 0.5 s and each tenth turn 3 s, and the vLLM."""
    waits = [random.choices((random.lognormvariate(-0.7, 0.2), 3.0), (9, 1)) for _ in range(turns)]
    scripts = ([Wait(wait), Say("We are open until nine.")] for (wait,) in waits)
    hosted = Provider("hosted", ScriptedLLMService(*scripts))
    local = Provider("local", vllm_service(target))
    providers, policy = {
        "hosted alone": ([hosted], HedgePolicy.fallback(1)),
        "local alone": ([local], HedgePolicy.fallback(1)),
        "after(0.6)": ([hosted, local], HedgePolicy.after(0.6)),
        "race(2)": ([hosted, local], HedgePolicy.race(2, probes=False)),
    }[mode]
    return HedgedLLMService(providers, policy=policy, warm=False)


async def race(mine: range, *, target: Target, words: int, mode: str, turns: int) -> list[Answer]:
    """Turns of callers who speak at different moments; a caller's first turn does not count."""
    await together()

    async def call() -> list[Answer]:
        found, prompt = list[Answer](), prose(words)
        async with PipelineCaller(racing(mode, target, turns + 1)) as caller:
            for _ in range(turns + 1):
                await asyncio.sleep(random.random())
                found.append(await _reported(caller, f"{prompt} {prose(20)}", mode))
        return found[1:]

    return [answer for found in await asyncio.gather(*(call() for _ in mine)) for answer in found]


async def _reported(caller: PipelineCaller, text: str, group: str) -> Answer:
    answer = await caller.ask(text)
    report = await caller.line.report()
    return replace(answer, group=group, attempts=len(report.attempts), winner=report.winner)


async def full_server(mine: range, *, target: Target, words: int, secs: float) -> list[Answer]:
    """More callers than seats, at priority 5; caller 0 asks beside them."""
    found: list[Answer] = []
    await together()
    until = time.monotonic() + secs

    async def load() -> None:
        async with HTTPCaller(target) as caller:
            while time.monotonic() < until:
                answer = await caller.ask(prose(words), priority=5, tokens=150)
                found.append(replace(answer, group="the queue"))

    async def beside() -> None:
        service = racing("race(2)", target, 1000)
        async with HTTPCaller(target) as plain, PipelineCaller(service) as both:
            await asyncio.sleep(secs / 5)  # the queue is there, and the load was read
            while time.monotonic() < until - secs / 5:
                answers = await asyncio.gather(
                    plain.ask(prose(words), priority=5),
                    plain.ask(prose(words)),
                    _reported(both, prose(words), "race(2)"),
                )
                groups = ("priority 5", "priority 0", "race(2)")
                found.extend(replace(a, group=g) for a, g in zip(answers, groups, strict=True))

    await asyncio.gather(*(load() if number else beside() for number in mine))
    return found


# ---- the processes

_barrier: Any


def _begin(barrier: Any) -> None:
    global _barrier
    _barrier = barrier
    logger.remove()


def _work(part: Callable[..., Awaitable[list[Answer]]], mine: range, **options: Any) -> Any:
    try:
        return asyncio.run(part(mine, **options))  # pyright: ignore[reportArgumentType]
    except BrokenBarrierError:  # another process failed
        raise
    except Exception as error:
        _barrier.abort()
        raise RuntimeError(repr(error)) from None  # not all errors can be pickled


class Clients(ProcessPoolExecutor):
    """Processes that share the callers of a part."""

    def __init__(self, processes: int):
        spawn = multiprocessing.get_context("spawn")
        super().__init__(processes, spawn, _begin, (spawn.Barrier(processes),))
        self._count = processes

    def run(
        self, part: Callable[..., Awaitable[list[Answer]]], callers: int, **options: Any
    ) -> list[Answer]:
        """Have so many callers do a part; raises the first error of a process."""
        shares = [range(first, callers, self._count) for first in range(self._count)]
        futures = [self.submit(_work, part, mine, **options) for mine in shares]
        wait(futures)
        if errors := [error for future in futures if (error := future.exception())]:
            raise min(errors, key=lambda error: isinstance(error, BrokenBarrierError))
        return [answer for future in futures for answer in future.result()]
