"""One process of the fleet: its callers, and the results that it writes.

It reads its task, one JSON line, from standard input, and exits when that is closed. Times are
seconds on the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote

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
from pipecat_hedge.policy import SIMULATED_HEADER
from pipecat_hedge.tools.bench.drill.scenarios import ANSWER, Variant
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline

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
