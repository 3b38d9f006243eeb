"""Runs a drill: starts providers and workers, applies events, and collects what is written.

A worker is a process of callers, this module's `main`. It reads its task, one JSON line, from
standard input, and exits when that is closed. Times are seconds on the machine's monotonic clock,
which all processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from loguru import logger
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits
from pydantic import BaseModel, Field, TypeAdapter

from pipecat_hedge import (
    AttemptReport,
    HedgedLLMService,
    HedgePolicy,
    Provider,
    ProviderStats,
    TurnReport,
)
from pipecat_hedge.fleet import RedisStore
from pipecat_hedge.providers import SIMULATED_HEADER
from pipecat_hedge.race import HedgeError
from pipecat_hedge.tools.bench.drill.scenarios import ANSWER, Drill, Event, Variant
from pipecat_hedge.tools.bench.redis_process import RedisProcess, has_redis
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline
from pipecat_hedge.tools.simulator import SimulatorProcess, parse_model, tokenize

MARGIN = 1.5
"""Each provider's capacity over the usual need: each can serve all callers alone."""
Counts = npt.NDArray[np.int64]
"""One count per second."""
READY = "ready"
FALLBACK = "One moment please."
GIVE_UP_SECS = 30.0
REPORT_SECS = 5.0
PREMIUM_EVERY = 10
CONNECTIONS = 1000

Outcome: TypeAlias = Literal["answered", "degraded", "lost"]
"""The complete answer, the fallback text (also after a partial answer), or neither."""


class Task(BaseModel):
    """A worker's task.

    Attributes:
        worker: Its number, from 0.
        sessions: The number of its callers.
        think_secs: The mean time between a caller's turns.
        seed: The same seed gives the same callers.
        variant: The service in their pipelines.
        models: By provider, its ``base_url`` and its model.
        out: The output file.
        redis_url: The Redis server that the workers share; None without one.
    """

    worker: int
    sessions: int
    think_secs: float
    seed: int
    variant: Variant
    models: dict[str, tuple[str, str]]
    out: str
    redis_url: str | None = None


class Began(BaseModel):
    """A turn began."""

    kind: Literal["began"] = "began"
    at: float


class Sent(BaseModel):
    """A request left the process; refused connections and SDK retries are included."""

    kind: Literal["sent"] = "sent"
    at: float
    provider: str


class Turn(BaseModel):
    """A turn that has ended.

    Attributes:
        at: Its beginning.
        outcome: What the caller got.
        why: Of a lost turn: ``silence``, ``broken off`` or ``no end within 30 s``.
        ttft_secs: To the first text; None without text, and for lost turns.
        premium: Whether the caller has the premium tier.
        requests: Its attempts that sent a request, if the service reports them.
    """

    kind: Literal["turn"] = "turn"
    at: float
    outcome: Outcome
    why: str | None = None
    ttft_secs: float | None
    premium: bool = False
    requests: tuple[AttemptReport, ...] = ()

    @property
    def replacements(self) -> list[AttemptReport]:
        """The requests that replaced a failed or a silent one.

        One launched beside a silent attempt that answers in the end is a hedge, not a replacement.
        """
        slow, found = False, list[AttemptReport]()
        for request in self.requests:
            reason = request.launch_reason
            if reason == "failure" or (reason in ("silence", "stall") and not slow):
                found.append(request)
            slow |= request.ttft_secs is not None and request.outcome != "failed"
        return found


Line: TypeAlias = Annotated[Began | Sent | Turn, Field(discriminator="kind")]
LINE: TypeAdapter[Began | Sent | Turn] = TypeAdapter(Line)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The callers.

    Parameters:
        processes: Worker processes.
        sessions: Callers per process.
        think_secs: The mean time between a caller's turns.
        seed: The same seed gives the same callers and the same latencies.
        start_secs: Calling time before the measurement begins.
        tail_secs: The longest time for turns to end after it; callers give up after 30 s.
    """

    processes: int = 8
    sessions: int = 40
    think_secs: float = 6.0
    seed: int = 1
    start_secs: float = 10.0
    tail_secs: float = 31.0


@dataclass(frozen=True, slots=True)
class Record:
    """The results of one run. Times are seconds from the beginning of the measurement.

    Parameters:
        turns: The turns that began during the measurement and have ended, by their beginning.
        began: Turns that began, including those of a killed worker and unended ones.
        sent: By provider, the requests that the workers sent.
        arrived: By provider, the requests that its current process counted.
        busy_share: The mean share of the machine's processors in use; None if unknown.
    """

    turns: list[Turn]
    began: Counts
    sent: dict[str, Counts]
    arrived: dict[str, Counts]
    busy_share: float | None = None


def need(model: str, sessions: int, think_secs: float) -> float:
    """Return the mean requests in flight if one provider serves all callers (Little's law).

    Args:
        model: The simulator's model.
        sessions: The number of callers.
        think_secs: The mean time between a caller's turns.
    """
    behaviour = parse_model(model)
    ttft_secs = float(behaviour.profile.samples(20_000, seed=0).mean())
    tokens_per_sec = behaviour.tps or behaviour.profile.tokens_per_sec
    answer_secs = ttft_secs + (len(tokenize(ANSWER)) - 1) / tokens_per_sec
    return sessions / (think_secs + answer_secs) * answer_secs


def run_drill(
    drill: Drill, variant: Variant, fleet: Fleet, tick: Callable[[], None] = lambda: None
) -> Record:
    """Run one drill with one variant.

    Args:
        drill: The drill.
        variant: The service in the callers' pipelines.
        fleet: The callers.
        tick: Called each second.

    Raises:
        HedgeError: If a worker exits.
    """
    secs = drill.secs(variant)
    events = list(drill.events)
    with ExitStack() as stack:
        processes = _Processes(drill, variant, fleet, stack)
        began_at = float(round(time.monotonic() + fleet.start_secs))
        _sleep_until(began_at)
        ticks = _processor_ticks()
        for second in range(secs):
            while events and events[0].at_secs < second + 1:
                event = events.pop(0)
                _sleep_until(began_at + event.at_secs)
                processes.apply(event)
            _sleep_until(began_at + second + 1)
            processes.check()
            tick()
        busy_share = _busy_share(ticks, _processor_ticks())
        arrived = processes.arrivals(began_at, secs)
        while True:
            record = read_lines(processes.lines(), began_at, secs, list(drill.models))
            is_over = int(record.began.sum()) == len(record.turns)
            if is_over or time.monotonic() > began_at + secs + fleet.tail_secs:
                return replace(record, arrived=arrived, busy_share=busy_share)
            time.sleep(1.0)


def read_lines(lines: list[str], began_at: float, secs: int, providers: list[str]) -> Record:
    """Parse the workers' output; ``arrived`` stays empty.

    Args:
        lines: The lines of all workers.
        began_at: The beginning of the measurement, on the machine's clock.
        secs: Its length. Turns and requests outside of it are omitted.
        providers: The providers' names.
    """
    turns: list[Turn] = []
    began = np.zeros(secs, np.int64)
    sent = {name: np.zeros(secs, np.int64) for name in providers}
    for text in lines:
        line = LINE.validate_json(text)
        line.at -= began_at
        if not 0 <= line.at < secs:
            continue
        match line:
            case Turn():
                turns.append(line)
            case Sent():
                sent[line.provider][int(line.at)] += 1
            case Began():
                began[int(line.at)] += 1
    turns.sort(key=lambda turn: turn.at)
    return Record(turns, began, sent, {})


class _Processes:
    """The providers, the Redis server and the workers of one run."""

    def __init__(self, drill: Drill, variant: Variant, fleet: Fleet, stack: ExitStack):
        """Start the processes; all are killed when ``stack`` closes."""
        self._drill, self._seed = drill, fleet.seed
        callers = fleet.processes * fleet.sessions
        needs = [need(model, callers, fleet.think_secs) for model in drill.models.values()]
        self._need = needs[0]
        self._capacity = math.ceil(MARGIN * max(needs))
        self._providers: dict[str, SimulatorProcess] = {}
        self._ports: dict[str, int] = {}
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(self._stop)
        self._start(tuple(drill.models))
        self._redis: RedisProcess | None = None
        if variant.kind == "hedged" and has_redis():
            self._redis = stack.enter_context(RedisProcess())
        models = {
            name: (self._providers[name].openai_url, model) for name, model in drill.models.items()
        }
        for number in range(fleet.processes):
            task = Task(
                worker=number,
                sessions=fleet.sessions,
                think_secs=fleet.think_secs,
                seed=fleet.seed,
                variant=variant,
                models=models,
                out=str(self._folder / f"{number}.jsonl"),
                redis_url=self._redis.url if self._redis else None,
            )
            self._workers[number] = self._start_worker(task)
        for worker in self._workers.values():
            assert worker.stdout is not None
            if worker.stdout.readline().strip() != READY:
                worker.wait()
        self.check()

    def _stop(self) -> None:
        for worker in self._workers.values():
            _kill(worker)
        for simulator in self._providers.values():
            simulator.__exit__(None, None, None)

    def _start_worker(self, task: Task) -> subprocess.Popen[str]:
        # Errors go to a file: a full pipe would block the process.
        with self._errors_of(task.worker).open("w", encoding="utf-8") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "pipecat_hedge.tools.bench.drill.running"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert worker.stdin is not None
        worker.stdin.write(task.model_dump_json() + "\n")
        worker.stdin.flush()
        return worker

    def _errors_of(self, worker: int) -> Path:
        return self._folder / f"{worker}.err"

    def _start(self, names: tuple[str, ...]) -> None:
        """Start providers concurrently, each on its previous port."""
        made = {
            name: SimulatorProcess(
                self._ports.get(name, 0), seed=1000 * self._seed + index, capacity=self._capacity
            )
            for index, name in enumerate(self._drill.models)
            if name in names
        }
        with ThreadPoolExecutor(len(made)) as pool:
            for name, started in zip(
                made, pool.map(SimulatorProcess.__enter__, made.values()), strict=True
            ):
                self._providers[name] = started
                self._ports[name] = int(started.url.rsplit(":", 1)[1])

    def apply(self, event: Event) -> None:
        """Apply an event."""
        match event.action:
            case "kill":
                for name in event.providers:
                    self._providers[name].kill()
                for name in event.providers:
                    self._providers.pop(name).__exit__(None, None, None)
            case "start":
                self._start(event.providers)
            case "conditions":
                conditions: dict[str, Any] = dict(event.conditions)
                if (of_need := conditions.pop("of_need", None)) is not None:
                    capacity = of_need * self._need / len(event.providers)
                    conditions["capacity"] = max(1, round(capacity))
                for name in event.providers:
                    self._providers[name].set_conditions(**conditions)
            case "kill_worker":
                _kill(self._workers.pop(0))
            case "kill_redis" if self._redis:
                self._redis.kill()
            case "start_redis" if self._redis:
                self._redis.start()
            case _:  # no Redis
                pass

    def check(self) -> None:
        """Check that no worker has exited."""
        for number, worker in self._workers.items():
            if worker.poll() is not None:
                errors = self._errors_of(number).read_text("utf-8").splitlines() or ["no message"]
                raise HedgeError(f"a worker of the drill exited: {errors[-1]}")

    def arrivals(self, began_at: float, secs: int) -> dict[str, Counts]:
        """Return the requests that each provider's current process counted per second."""
        arrived = {name: np.zeros(secs, np.int64) for name in self._drill.models}
        for name, simulator in self._providers.items():
            ledger = simulator.ledger()
            offset = time.monotonic() - ledger["now_secs"] - began_at
            for request in ledger["requests"]:
                if 0 <= (at := request["started_secs"] + offset) < secs:
                    arrived[name][int(at)] += 1
        return arrived

    def lines(self) -> list[str]:
        """Return the complete lines that the workers have written so far."""
        texts = [path.read_text("utf-8") for path in self._folder.glob("*.jsonl")]
        return [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]


def _kill(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()  # closes its pipes


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _processor_ticks() -> tuple[int, int]:
    """Return the processors' total and idle time since boot; zero if unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    # user, nice, system, idle, iowait, irq, softirq, steal; user includes the guests' times
    ticks = [int(text) for text in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def _busy_share(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    passed, idle = after[0] - before[0], after[1] - before[1]
    return 1.0 - idle / passed if passed else None


# ---- a worker


class _Services:
    """Creates a worker's services, which share one HTTP client and the statistics."""

    def __init__(self, task: Task, write: Callable[[BaseModel], None]):
        self._variant = task.variant
        store = RedisStore(task.redis_url, prefix="drill") if task.redis_url else None
        self._stats = ProviderStats(store)
        by_port = {url.split(":")[2].split("/")[0]: name for name, (url, _) in task.models.items()}

        async def count(request: Any) -> None:
            if request.method == "POST":
                write(Sent(at=time.monotonic(), provider=by_port[str(request.url.port)]))

        async def unmark(response: Any) -> None:  # a drill is about what the workers share
            response.headers.pop(SIMULATED_HEADER, None)

        limits = connection_limits(
            max_keepalive_connections=CONNECTIONS,
            max_connections=CONNECTIONS,
            keepalive_expiry=None,
        )
        http = DefaultAsyncHttpxClient(
            limits=limits, event_hooks={"request": [count], "response": [unmark]}
        )
        retrying = task.variant.kind == "retry"
        options: dict[str, Any] = {"max_retries": 2, "timeout": 5.0} if retrying else {}
        options = {"api_key": "any", "http_client": http, "max_retries": 0, **options}
        self._clients = {
            name: (
                AsyncOpenAI(base_url=url, **options),
                f"{model}{'&' if '?' in model else '?'}answer={quote(ANSWER)}",
            )
            for name, (url, model) in task.models.items()
        }

    def service(self, *, premium: bool) -> LLMService[Any]:
        """Create one session's service."""
        services = {name: _SharedClient(*made) for name, made in self._clients.items()}
        if self._variant.kind != "hedged":
            return next(iter(services.values()))
        return HedgedLLMService(
            [Provider(name, service) for name, service in services.items()],
            policy=HedgePolicy.adaptive(
                self._variant.budget,
                order=self._variant.order,
                max_attempts=3,
                fallback_text=FALLBACK,
            ),
            stats=self._stats,
            admission=self._variant.admission,
            tier="premium" if premium else "standard",
        )


class _SharedClient(OpenAILLMService):
    """Uses an existing client."""

    def __init__(self, client: AsyncOpenAI, model: str):
        self._shared = client
        super().__init__(api_key="any", settings=OpenAILLMService.Settings(model=model))

    def create_client(self, *_: Any, **__: Any) -> AsyncOpenAI:
        return self._shared


async def _call(
    task: Task, number: int, services: _Services, write: Callable[[BaseModel], None]
) -> None:
    """One caller: asks, listens, thinks, and repeats until the process ends."""
    caller = task.worker * task.sessions + number
    rng = random.Random(f"{task.seed} {caller}")
    premium = caller % PREMIUM_EVERY == 0
    reports: asyncio.Queue[TurnReport] = asyncio.Queue()

    async def reported(_: Any, report: TurnReport) -> None:
        reports.put_nowait(report)

    await asyncio.sleep(rng.random() * task.think_secs)
    llm = services.service(premium=premium)
    if isinstance(llm, HedgedLLMService):
        llm.add_event_handler("on_turn_report", reported)
    pipeline = TimedPipeline(llm)
    await pipeline.start()
    while True:
        at = time.monotonic()
        write(Began(at=at))
        timed = await pipeline.turn("Are you open?", GIVE_UP_SECS)
        if not timed.is_over:
            await pipeline.interrupt()
        outcome, why = outcome_of(timed.text, is_over=timed.is_over)
        turn = Turn(at=at, outcome=outcome, why=why, ttft_secs=None, premium=premium)
        if outcome != "lost":
            turn.ttft_secs = timed.ttft_secs
        if isinstance(llm, HedgedLLMService):
            with contextlib.suppress(TimeoutError):
                report = await asyncio.wait_for(reports.get(), REPORT_SECS)
                turn.requests = tuple(a for a in report.attempts if a.sent_secs is not None)
        write(turn)
        await asyncio.sleep(task.think_secs * (0.5 + rng.random()))


def outcome_of(text: str, *, is_over: bool) -> tuple[Outcome, str | None]:
    """Classify a turn, and name the reason of a lost one."""
    if text.endswith(FALLBACK):
        return "degraded", None
    if not is_over:
        return "lost", "no end within 30 s"
    if text.strip() == ANSWER:
        return "answered", None
    return "lost", "broken off" if text.strip() else "silence"


async def _work(task: Task) -> None:
    # Line-buffered: lines written before the process is killed count.
    with open(task.out, "w", buffering=1, encoding="utf-8") as out:  # noqa: ASYNC230

        def write(line: BaseModel) -> None:
            out.write(line.model_dump_json() + "\n")

        services = _Services(task, write)
        async with asyncio.TaskGroup() as group:
            for number in range(task.sessions):
                group.create_task(_call(task, number, services, write))
            print(READY, flush=True)


def main() -> None:
    """Run the task from standard input until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    task = Task.model_validate_json(sys.stdin.readline())
    logger.remove()  # hundreds of callers would log every failure
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_work(task))
    except* Exception as errors:
        traceback.print_exception(errors.exceptions[0])
        os._exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Use uvloop if installed, as production servers do."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
