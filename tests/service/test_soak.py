"""Thousands of turns with faults at random, on virtual time: none is lost, and nothing piles up."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from loguru import logger
from pipecat.frames.frames import LLMContextFrame, LLMFullResponseEndFrame, LLMThoughtTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.race.task_scope import CLOSE_SECS
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import NEVER
from tests.support.line import Line

pytestmark = pytest.mark.slow

TURNS, MEASURED_AFTER = 6_000, 1_500
MOST_BYTES = 1_000
"""What a turn may add to the process. Caches that fill take half of it; a kept report more."""

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
SORRY = "I am sorry, one moment please."
WHOLE = {ANSWER[: i + 1] for i, char in enumerate(ANSWER) if char == "."}
WORDS: list[Step] = [Say(word if i == 0 else f" {word}") for i, word in enumerate(ANSWER.split())]


class Raises(Exception):
    """What a service lets out that forgot to catch it."""


def faults() -> dict[str, Callable[[float, int], Sequence[Step | Raises]]]:
    """What can go wrong, given the time to the first token and the word at which it strikes."""
    return {
        "none": lambda secs, at: [Wait(secs), *WORDS],
        "slow": lambda secs, at: [Wait(secs + 8), *WORDS],
        "error": lambda secs, at: [Wait(secs), Error()],
        "raises": lambda secs, at: [Wait(secs), Raises()],
        "hang": lambda secs, at: [Wait(NEVER)],
        "empty": lambda secs, at: [Wait(secs)],
        "whitespace": lambda secs, at: [Wait(secs), Say("\n"), Say(" ")],
        "reasoning for ever": lambda secs, at: [
            *[Wait(0.1), LLMThoughtTextFrame("Hm.")] * 40,
            Wait(NEVER),
        ],
        "dribble": lambda secs, at: [step for word in WORDS for step in (Wait(2.0), word)],
        "stall": lambda secs, at: [Wait(secs), *WORDS[:at], Wait(NEVER)],
        "cut": lambda secs, at: [Wait(secs), *WORDS[:at], Error()],
        "raises in mid-answer": lambda secs, at: [Wait(secs), *WORDS[:at], Raises()],
        "slow to close": lambda secs, at: [Wait(secs), *WORDS, Wait(1.0)],
    }


class Faulty(ScriptedLLMService):
    """Meets a fault in half of its turns, drawn by a seed."""

    def __init__(self, seed: int, seen: Counter[str]):
        super().__init__([])
        self._random = random.Random(seed)
        self._seen = seen

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        self.contexts.clear()
        kinds = faults()
        kind = "none" if self._random.random() < 0.5 else self._random.choice([*kinds])
        self._seen[kind] += 1
        secs, at = self._random.uniform(0.05, 0.6), self._random.randrange(1, len(WORDS))
        for step in kinds[kind](secs, at):
            if isinstance(step, Raises):
                raise step
            await super()._play([step], context)


def resident_bytes() -> int:
    """What the process holds, without what it has freed.

    The allocator keeps freed pages for later, as it finds its arenas full or holed: some megabytes
    more or less from run to run, which are nobody's leak. It is told to hand them back first.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def what_was(line: Line, report: TurnReport) -> str:
    """What the caller heard of a turn, in a word; "lost" if it is nothing that may be."""
    framed_once = line.framing.count("<") == line.framing.count(">") == 1
    told_once = len(line.errors) == (report.outcome == "failed")
    again = sum(  # may continue it
        a.outcome == "superseded" or a.error_category == "stalled" for a in report.attempts
    )
    if not framed_once or not told_once or len(report.attempts) > 3 + again:
        return "lost"
    text = line.text
    if text == ANSWER:
        return "the answer"
    if text == SORRY:
        return "the fallback"
    if report.commit_reason == "silence":
        return "lost" if text.strip() else "a silence that is meant"
    # A stream broke off. Its continuation ended at once, as it may after a whole sentence; or there
    # was none, and the caller heard the fallback.
    broke_off = any(a.outcome == "failed" and a.ttft_secs is not None for a in report.attempts)
    part = text.removesuffix(f" {SORRY}")
    if part not in WHOLE or not broke_off or (part == text) == (report.outcome == "failed"):
        return "lost"
    return "a part" if part == text else "a part and the fallback"


async def soak(turns: int, measured_after: int, seed: int) -> dict[str, Any]:
    """Hold the turns, interrupting every tenth.

    Args:
        turns: How many.
        measured_after: The turn after which memory is measured first; it is measured again at the
            end.
        seed: Of the dice.

    Returns:
        ``heard``, ``faults`` and ``outcomes`` as counts, and ``first_bytes`` and ``bytes``.
    """
    seen: Counter[str] = Counter()
    heard: Counter[str] = Counter()
    providers = [
        Provider(name, Faulty(seed + number, seen), timeout_secs=10)
        for number, name in enumerate("abc")
    ]
    policy = HedgePolicy.after(
        0.8, max_attempts=3, commit="first_sentence", stall_secs=1.0, fallback_text=SORRY
    )
    rng = random.Random(seed)
    first_bytes = 0
    async with Line(HedgedLLMService(providers, policy=policy)) as line:
        for turn in range(1, turns + 1):
            context = LLMContext([{"role": "user", "content": "Hello?"}])
            await line.send(LLMContextFrame(context))
            if rng.random() < 0.1:
                await asyncio.sleep(rng.uniform(0, 2))
                await line.interrupt()
                heard[f"{(await line.report()).outcome}, interrupted"] += 1
            else:
                await line.until(lambda: bool(line.frames(LLMFullResponseEndFrame)))
                report = await line.report()
                heard[what_was(line, report)] += 1
            line.forget()
            if turn == measured_after:
                first_bytes = resident_bytes()
        await asyncio.sleep(2 * CLOSE_SECS)
        at_the_end = resident_bytes()
    return {
        "heard": dict(heard.most_common()),
        "faults": dict(seen.most_common()),
        "first_bytes": first_bytes,
        "bytes": at_the_end,
    }


def run() -> dict[str, Any]:
    logger.disable("pipecat")
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        return runner.run(soak(TURNS, measured_after=MEASURED_AFTER, seed=0))


@pytest.mark.timeout(300)
def test_thousands_of_turns_end_and_leak_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, so that the memory that is measured is the soak's."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        result = process.submit(run).result(280)
    grown = (result["bytes"] - result["first_bytes"]) / (TURNS - MEASURED_AFTER)
    with capsys.disabled():
        print(f"\n{TURNS} turns, {grown:+.0f} bytes a turn: {result}")
    assert sum(result["heard"].values()) == TURNS
    assert result["heard"].get("lost", 0) == 0
    assert grown < MOST_BYTES
    assert set(result["faults"]) == set(faults())
