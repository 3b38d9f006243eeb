"""Providers whose next answers a test writes down, and a call that asks them turn by turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import pytest
from pipecat.frames.frames import InterruptionFrame, LLMTextFrame
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats, TurnReport
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import close, simulated

FREEZE_SECS = 0.5
ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
End: TypeAlias = Literal["whole", "hangs", "keeps alive", "resets", "breaks", "stalls"]
FAULTS: dict[End, str] = {
    "hangs": "hang",
    "keeps alive": "keepalives,delay=0.2",
    "resets": "reset",
    "breaks": "cut",
    "stalls": "stall",
}


@dataclass(frozen=True)
class Reply:
    """How a provider treats one request.

    Parameters:
        end: ``whole`` answers; ``hangs`` never responds; ``keeps alive`` sends headers and comments
            only; ``resets`` closes the connection at once; ``breaks`` (closes) and ``stalls`` do so
            in the second sentence of the answer.
        first_secs: The time to the first token of the answer.
        thinks: Whether reasoning is sent until then.
        status: The status of an error; None is none.
        retry_after: The seconds in the error's header.
    """

    end: End = "whole"
    first_secs: float = 0.1
    thinks: bool = False
    status: int | None = None
    retry_after: str | None = None

    @property
    def behaviour(self) -> str:
        """The simulator's name of it."""
        keys = {"headers": 0, "ttft": self.first_secs, "tps": 200, "answer": quote(ANSWER)}
        if self.thinks:
            keys |= {"ttft": 0, "tps": 20, "fault": f"reasoning,delay={self.first_secs}"}
        elif self.status is not None:
            keys |= {"ttft": 0, "fault": self.status}
        elif self.end != "whole":
            keys["fault"] = FAULTS[self.end]
        if self.retry_after is not None:
            keys["retry_after"] = self.retry_after
        return "fixed@" + ",".join(f"{key}={value}" for key, value in keys.items())


HANGS, RESETS = Reply("hangs"), Reply("resets")


@dataclass
class Request:
    """A request as it came: the loop's time, the turn that it asks, and the body."""

    at: float
    turn: int
    body: dict[str, Any]


class ScriptedProvider(Simulator):
    """A provider on a port of its own.

    Attributes:
        name: Its name in the race.
        wire: ``openai`` or ``anthropic``.
        reply: The reply to every request, or a function of the request's body.
        once: The replies to the next requests, in order, before that.
        requests: What came so far.
    """

    def __init__(
        self,
        name: str,
        wire: str,
        reply: Reply | Callable[[dict[str, Any]], Reply] | None = None,
        once: Sequence[Reply] = (),
    ):
        super().__init__(seed=1)
        self.name, self.wire, self.reply, self.once = name, wire, reply or Reply(), [*once]
        self.requests: list[Request] = []

    def behaviour_of(self, body: dict[str, Any]) -> str:
        turns = re.findall(r"Question (\d+)", json.dumps(body))
        now = asyncio.get_running_loop().time()
        self.requests.append(Request(now, int(turns[-1]) if turns else 0, body))
        if self.once:
            return self.once.pop(0).behaviour
        return (self.reply if isinstance(self.reply, Reply) else self.reply(body)).behaviour

    def service(self) -> LLMService[Any]:
        """A new Pipecat service that asks this provider."""
        return simulated(self.wire, self, "m")

    def asked(self, turn: int) -> int:
        """The number of requests of a turn."""
        return sum(request.turn == turn for request in self.requests)

    async def shut(self) -> None:
        """Close every connection, and refuse new ones from now on."""
        await self.__aexit__()


@asynccontextmanager
async def scripted_providers(*providers: ScriptedProvider) -> AsyncIterator[None]:
    """Have providers listen."""
    async with AsyncExitStack() as stack:
        for provider in providers:
            await stack.enter_async_context(provider)
        yield


# ---- calls


@dataclass(frozen=True)
class Turn:
    """What the caller heard of a turn.

    Parameters:
        wait_secs: The time to the first text; None if none came within the limit.
        frozen_secs: How long of that the event loop stood still: the machine's time, not the bot's.
        ended_secs: The time to the end of the response; None if it was still open then.
        text: The text.
        errors: The error frames.
        framing: See ``Line.framing``.
    """

    wait_secs: float | None
    frozen_secs: float
    ended_secs: float | None
    text: str
    errors: int
    framing: str

    def waited(self, most_secs: float) -> bool:
        """Whether an answer came in time."""
        return self.wait_secs is not None and self.wait_secs - self.frozen_secs <= most_secs


class Call:
    """A call of one bot, bare or hedged, on scripted providers.

    Attributes:
        line: Its line.
        providers: Its providers, in the given order.
        turns: Its turns so far.
        wrong: What should be so and was not.
    """

    def __init__(self, line: Line, providers: Sequence[ScriptedProvider]):
        self.line, self.providers = line, providers
        self.turns: list[Turn] = []
        self.wrong: list[str] = []
        self._freezes: list[tuple[float, float]] = []  # when each began and ended

    def expect(self, holds: bool, what: str) -> None:
        """Record what should be so and is not."""
        if not holds:
            self.wrong.append(what)

    async def ask(
        self, turns: int = 1, *, limit_secs: float = 7.0, pause_secs: float = 0.1
    ) -> Turn:
        """Ask some questions one after another; returns the last turn."""
        for _ in range(turns):
            if self.turns:
                await asyncio.sleep(pause_secs)
            self.turns.append(await self._ask(f"Question {len(self.turns) + 1}?", limit_secs))
        return self.turns[-1]

    async def _ask(self, question: str, limit_secs: float) -> Turn:
        line, loop = self.line, asyncio.get_running_loop()
        texts, errors, framing = len(line.text), len(line.errors), len(line.framing)
        before, began = len(line.times(LLMTextFrame)), loop.time()
        ended_secs: float | None = None
        try:
            async with asyncio.timeout(limit_secs):
                await line.ask(question)
                ended_secs = loop.time() - began
        except TimeoutError:
            interrupted = len(line.frames(InterruptionFrame))
            await line.interrupt()
            await line.until(lambda: len(line.frames(InterruptionFrame)) > interrupted)
        heard_at = line.times(LLMTextFrame)[before:]
        frozen = (
            min(ends, heard_at[0]) - max(starts, began)
            for starts, ends in self._freezes
            if heard_at
        )
        return Turn(
            heard_at[0] - began if heard_at else None,
            sum(secs for secs in frozen if secs > 0),
            ended_secs,
            line.text[texts:],
            len(line.errors) - errors,
            "".join(line.framing[framing:]),
        )

    async def watch(self) -> None:
        """Note when the event loop stands still for ``FREEZE_SECS``, as on a paused machine."""
        loop = asyncio.get_running_loop()
        while True:
            slept_at = loop.time()
            await asyncio.sleep(FREEZE_SECS / 10)  # a clock, no wait for something
            if (now := loop.time()) - slept_at > FREEZE_SECS:
                self._freezes.append((slept_at, now))

    @property
    def waits(self) -> list[float | None]:
        """The waits for the first text so far, rounded."""
        return [None if t.wait_secs is None else round(t.wait_secs, 2) for t in self.turns]

    @property
    def reports(self) -> list[TurnReport]:
        """The turn reports, in the order of their turns; complete after the call."""
        return sorted(self.line.reports, key=lambda report: report.turn)

    def asked(self, turn: int) -> str:
        """The providers that were asked in a turn, counted from 1, in the order of requests."""
        found = [(r.at, p.name) for p in self.providers for r in p.requests if r.turn == turn]
        return "".join(name for _, name in sorted(found))

    def __repr__(self) -> str:
        waits = ", ".join("lost" if secs is None else f"{secs:.2f}" for secs in self.waits)
        ends = ", ".join(
            "open" if turn.ended_secs is None else f"{turn.ended_secs:.2f}" for turn in self.turns
        )
        asked = " ".join(self.asked(turn + 1) or "-" for turn in range(len(self.turns)))
        return f"waits {waits} s; ends {ends} s; asked {asked}"


@asynccontextmanager
async def calling(
    *providers: ScriptedProvider, policy: HedgePolicy | None = None, bare: bool = False
) -> AsyncIterator[Call]:
    """Call a bot of providers that listen: hedged with fresh statistics, or the first one bare."""
    async with scripted_providers(*providers):
        services = [provider.service() for provider in providers]
        bot: LLMService[Any] = services[0]
        if not bare:
            named = [Provider(p.name, s) for p, s in zip(providers, services, strict=True)]
            bot = HedgedLLMService(named, policy=policy, stats=ProviderStats())
        try:
            async with Line(bot) as line:
                call = Call(line, providers)
                watch = asyncio.create_task(call.watch())
                try:
                    yield call
                finally:
                    watch.cancel()
        finally:
            await close(*services)


@dataclass
class Case:
    """A call that is checked beside others.

    Parameters:
        name: Its name.
        steps: Speaks the call, and says what it expects with ``Call.expect``.
        providers: Its providers.
        policy: Its policy; None is the default.
        bare: Whether the first provider's service is called, and no race.
        after: Checks what is complete after the call: the reports.
    """

    name: str
    steps: Callable[[Call], Awaitable[None]]
    providers: Sequence[ScriptedProvider]
    policy: HedgePolicy | None = None
    bare: bool = False
    after: Callable[[Call], None] = lambda call: None

    async def run(self, start: Callable[[], Awaitable[None]]) -> list[str]:
        """Run it; returns what was wrong.

        Args:
            start: Returns when the first turn may begin.
        """
        async with calling(*self.providers, policy=self.policy, bare=self.bare) as call:
            await start()
            await self.steps(call)
        self.after(call)
        print(f"{self.name}: {call}")
        return [f"{self.name}: {what} ({call})" for what in call.wrong]


STAGGER_SECS = 0.06
"""Between the starts of two cases: turns that begin in the same instant wait for each other."""


async def together(*cases: Case) -> None:
    """Run independent cases at the same time. Their turns begin when all clients are made."""
    wires = {provider.wire for case in cases for provider in case.providers}
    for wire in wires:  # the first request of a process imports what a client needs
        async with calling(ScriptedProvider("a", wire), bare=True) as call:
            await call.ask()
    ready = asyncio.Barrier(len(cases))

    async def run(number: int, case: Case) -> list[str]:
        async def start() -> None:
            await ready.wait()
            await asyncio.sleep(number * STAGGER_SECS)

        try:
            return await case.run(start)
        except Exception as error:
            await ready.abort()  # the others do not wait for it
            return [f"{case.name}: {error!r}"]

    results = await asyncio.gather(*(run(n, case) for n, case in enumerate(cases)))
    failed = [wrong for wrong in results if wrong]
    if failed:
        count = f"{len(failed)} of {len(cases)} cases fail"
        pytest.fail("\n".join([count, *itertools.chain(*failed)]), pytrace=False)
