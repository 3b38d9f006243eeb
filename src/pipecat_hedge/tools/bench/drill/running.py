"""Runs one drill with one variant: starts all, has happen what is to happen, and ends all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipecat_hedge.tools.bench.drill.machine import Processors
from pipecat_hedge.tools.bench.drill.plans import (
    Act,
    Drill,
    Kill,
    KillRedis,
    KillWorker,
    SetConditions,
    Start,
    StartRedis,
)
from pipecat_hedge.tools.bench.drill.providers import Providers
from pipecat_hedge.tools.bench.drill.records import Load, Record, read_lines
from pipecat_hedge.tools.bench.drill.redis_process import RedisProcess, has_redis
from pipecat_hedge.tools.bench.drill.variants import Variant
from pipecat_hedge.tools.bench.drill.worker import Task
from pipecat_hedge.tools.bench.drill.worker_process import WorkerProcess

__all__ = ["SETTLE_SECS", "Fleet", "run_drill"]

SETTLE_SECS = 10.0
TAIL_SECS = 31.0
"""A caller gives up after 30 s."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who calls.

    Parameters:
        processes: How many workers there are.
        sessions: How many callers each has.
        think_secs: How long a caller listens and thinks between two turns, on average.
        seed: The same seed gives the same callers, and providers that answer alike.
        settle_secs: How long they call before it counts; a caller's first turn is somewhen in the
            first ``think_secs``.
        tail_secs: How long at most those who have asked may wait yet when what begins does not
            count any more.
    """

    processes: int = 8
    sessions: int = 40
    think_secs: float = 6.0
    seed: int = 1
    settle_secs: float = SETTLE_SECS
    tail_secs: float = TAIL_SECS

    @property
    def callers(self) -> int:
        """All of them."""
        return self.processes * self.sessions


def run_drill(
    drill: Drill, variant: Variant, fleet: Fleet, tick: Callable[[], None] = lambda: None
) -> Record:
    """Run one drill with one variant.

    Args:
        drill: What happens.
        variant: What stands in the callers' pipelines.
        fleet: Who calls.
        tick: Called each second.
    """
    secs = drill.secs(variant)
    think_secs = drill.think_times * fleet.think_secs
    settle_secs = max(fleet.settle_secs, think_secs) if think_secs > fleet.think_secs else None
    fleet = replace(fleet, think_secs=think_secs, settle_secs=settle_secs or fleet.settle_secs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        providers = stack.enter_context(
            Providers(
                drill.profiles,
                sessions=fleet.callers,
                think_secs=fleet.think_secs,
                seed=1000 * fleet.seed,
            )
        )
        shares = variant.kind == "hedged" and has_redis()
        redis = stack.enter_context(RedisProcess()) if shares else None
        workers = stack.enter_context(_workers(variant, fleet, providers, redis, folder))
        began_at = float(round(time.monotonic() + fleet.settle_secs))
        cpu = Processors()
        busy: list[tuple[float, float]] = []
        acts = list(drill.acts)
        for second in range(secs):
            while acts and acts[0][0] < second + 1:
                at, act = acts.pop(0)
                _sleep_until(began_at + at)
                _do(act, providers, redis, workers)
            _sleep_until(began_at + second + 1)
            for worker in workers:
                worker.check()
            in_use = cpu.shares([*(worker.pid for worker in workers), *providers.pids()])
            if second and in_use is not None:  # the first one counts the settling too
                busy.append(in_use)
            tick()
        arrived = providers.counts(began_at, secs)
        while True:
            written = read_lines(_lines(workers), began_at, secs, drill.profiles)
            have_ended = int(written.began.sum()) == len(written.turns)
            if have_ended or time.monotonic() > began_at + secs + fleet.tail_secs:
                break
            time.sleep(1.0)
        for worker in workers:
            worker.kill()
    return Record(
        drill.name,
        variant.name,
        written.turns,
        written.began,
        written.asked,
        arrived,
        Load(tuple(all_ for all_, _ in busy), tuple(own for _, own in busy), written.lag_secs),
    )


def _lines(workers: list[WorkerProcess]) -> list[str]:
    """What the workers have written, as far as lines are whole."""
    texts = (worker.out.read_text("utf-8") for worker in workers)
    return [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def _workers(
    variant: Variant,
    fleet: Fleet,
    providers: Providers,
    redis: RedisProcess | None,
    folder: Path,
) -> Iterator[list[WorkerProcess]]:
    """The workers' processes, from when the last one is ready to when all have been killed."""
    workers: list[WorkerProcess] = []
    try:
        for number in range(fleet.processes):
            task = Task(
                number,
                fleet.sessions,
                fleet.think_secs,
                fleet.seed,
                variant,
                providers.models(),
                str(folder / f"{number}.jsonl"),
                redis.url if redis is not None else None,
            )
            workers.append(WorkerProcess(task))
        for worker in workers:
            worker.wait_ready()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def _do(
    act: Act,
    providers: Providers,
    redis: RedisProcess | None,
    workers: list[WorkerProcess],
) -> None:
    match act:
        case Kill(names):
            providers.kill(names)
        case Start(names):
            providers.start(names)
        case SetConditions():
            providers.set_conditions(act)
        case KillRedis():
            if redis is not None:
                redis.kill()
        case StartRedis():
            if redis is not None:
                redis.start()
        case KillWorker():
            workers[0].kill()


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
