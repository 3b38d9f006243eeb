"""One process of the fleet: its sessions, and what it writes down of their turns.

Started with its task as JSON on the standard input, which stays open: when the parent is gone, this
process is, too. It ends by being killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from loguru import logger

from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.tools.bench.drill.records import Answered, Asked, Turn, turn_line
from pipecat_hedge.tools.bench.drill.variants import ANSWER, FALLBACK, Builder, Variant
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline

__all__ = ["READY", "Task", "main"]

READY = "ready"
GIVE_UP_SECS = 30.0
REPORT_SECS = 5.0
LAG_SECS = 0.05
PREMIUM_EVERY = 10
PREFIX = "drill"


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker has to do.

    Parameters:
        worker: Its number, from 0.
        sessions: How many callers it has.
        think_secs: How long a caller listens and thinks between two turns, on average.
        seed: The same seed gives the same callers.
        variant: What stands in their pipelines.
        models: By provider, its ``base_url`` and its model.
        out: The file to write to.
        redis_url: Where what is learned is shared with the other workers; None is nowhere.
    """

    worker: int
    sessions: int
    think_secs: float
    seed: int
    variant: Variant
    models: dict[str, tuple[str, str]]
    out: str
    redis_url: str | None = None

    def as_json(self) -> str:
        """The task as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The task that a line of JSON tells.

        Args:
            text: The line.
        """
        told = json.loads(text)
        models = {name: (url, model) for name, (url, model) in told.pop("models").items()}
        return cls(**{**told, "variant": Variant(**told["variant"]), "models": models})


def main() -> None:
    """Do what the standard input says, until the end of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    task = Task.from_json(sys.stdin.readline())
    logger.remove()  # hundreds of callers whose provider is down are not to fill the screen
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_work(task))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What production servers run on, if it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


async def _work(task: Task) -> None:
    # Line by line: what a worker wrote before it was killed counts.
    with open(task.out, "w", buffering=1, encoding="utf-8") as out:  # noqa: ASYNC230

        def write(text: str) -> None:
            out.write(text + "\n")

        def sent(provider: str) -> None:
            write(json.dumps({"at": time.monotonic(), "to": provider}))

        builder = Builder(task.variant, task.models, sent, _stats(task))
        async with TaskScope() as scope:
            lag = scope.start(_watch_lag(write), name="lag")
            for number in range(task.sessions):
                session = _Session(task, number, builder, write)
                scope.start(session.run(), name=f"session {number}")
            print(READY, flush=True)
            await lag


def _stats(task: Task) -> ProviderStats:
    """What the worker's services learn, shared with the fleet where there is a Redis."""
    if task.redis_url is None:
        return ProviderStats()
    return ProviderStats(RedisStore(task.redis_url, prefix=PREFIX))


async def _watch_lag(write: Callable[[str], None]) -> None:
    """Tell each second by how much the loop was late at worst."""
    worst, second = 0.0, int(time.monotonic())
    while True:
        asked_at = time.monotonic()
        await asyncio.sleep(LAG_SECS)
        now = time.monotonic()
        worst = max(worst, now - asked_at - LAG_SECS)
        if int(now) > second:
            write(json.dumps({"at": now, "lag": round(worst, 4)}))
            worst, second = 0.0, int(now)


class _Session:
    """One caller: asks, listens to the answer, thinks, and asks again."""

    def __init__(self, task: Task, number: int, builder: Builder, write: Callable[[str], None]):
        self._task = task
        self._number = task.worker * task.sessions + number
        self._rng = random.Random(f"{task.seed} {self._number}")
        self._builder = builder
        self._write = write
        self._reports: asyncio.Queue[TurnReport] = asyncio.Queue()
        self._is_premium = self._number % PREMIUM_EVERY == 0

    async def run(self) -> None:
        """Call until this process ends; an error of the drill's own ends it."""
        try:
            await self._call()
        except Exception:
            traceback.print_exc()
            os._exit(1)

    async def _call(self) -> None:
        await asyncio.sleep(self._rng.random() * self._task.think_secs)
        llm = self._builder.service(is_premium=self._is_premium)
        if isinstance(llm, HedgedLLMService):
            llm.add_event_handler("on_turn_report", self._reported)
        line_in = TimedPipeline(llm)
        await line_in.start()
        while True:
            await self._turn(line_in, tells=isinstance(llm, HedgedLLMService))
            await asyncio.sleep(self._task.think_secs * (0.5 + self._rng.random()))

    async def _reported(self, _: Any, report: TurnReport) -> None:
        self._reports.put_nowait(report)

    async def _turn(self, line_in: TimedPipeline, *, tells: bool) -> None:
        at = time.monotonic()
        self._write(json.dumps({"at": at}))
        turn = await line_in.turn("Are you open?", GIVE_UP_SECS)
        took_secs = time.monotonic() - at
        if not turn.is_over:
            await line_in.interrupt()
        asked: tuple[Asked, ...] = ()
        if tells:
            with contextlib.suppress(TimeoutError):
                report = await asyncio.wait_for(self._reports.get(), REPORT_SECS)
                asked = _asked(report, at)
        kind, why = _heard(turn.text, is_over=turn.is_over)
        ttft_secs = turn.ttft_secs if kind != "lost" else math.inf
        told = Turn(at, kind, ttft_secs, took_secs, self._is_premium, asked, why)
        self._write(turn_line(told))


def _heard(text: str, *, is_over: bool) -> tuple[Answered, str | None]:
    """What the caller heard, and if neither answer nor fallback text, why not."""
    if text.endswith(FALLBACK):  # after a part of the answer, too
        return "degraded", None
    if not is_over:
        return "lost", "no end within 30 s"
    if text.strip() == ANSWER:
        return "answered", None
    return "lost", "broken off" if text.strip() else "silence"


def _asked(report: TurnReport, at: float) -> tuple[Asked, ...]:
    """The requests that were sent; one that there was no room for was not."""
    return tuple(
        Asked(
            a.provider,
            at + a.sent_secs,
            a.launch_reason,
            a.outcome,
            a.ttft_secs is not None,
        )
        for a in report.attempts
        if a.sent_secs is not None
    )


if __name__ == "__main__":
    main()
