"""Providers whose next answers a test writes down, and a call that asks them turn by turn."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pytest
from aiohttp import web
from pipecat.frames.frames import InterruptionFrame, LLMTextFrame
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats, TurnReport
from tests.live.faulty_upstream import events
from tests.support.line import Line
from tests.support.simulated import close, simulated

ANSWER = ("We are ", "open till nine.", " The kitchen ", "closes at eight.", " Do come by.")
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}
End: TypeAlias = Literal["whole", "hangs", "keeps alive", "resets", "breaks", "stalls"]


@dataclass(frozen=True)
class Reply:
    """How a provider treats one request.

    Parameters:
        end: ``whole`` answers; ``hangs`` never responds; ``keeps alive`` sends headers and comments
            only; ``resets`` closes the connection at once; ``breaks`` (closes) and ``stalls`` do so
            after the first words of the answer.
        first_secs: The time to the first token of the answer.
        thinks: Whether reasoning is sent until then.
        status: The status of an error; None is none.
        retry_after: The value of the error's header.
    """

    end: End = "whole"
    first_secs: float = 0.1
    thinks: bool = False
    status: int | None = None
    retry_after: str | None = None


HANGS, RESETS = Reply("hangs"), Reply("resets")


@dataclass
class Request:
    """A request as it came: the loop's time, the turn that it asks, and the body."""

    at: float
    turn: int
    body: dict[str, Any]


@dataclass
class ScriptedProvider:
    """A provider on a port of its own.

    Attributes:
        name: Its name in the race.
        wire: ``openai`` or ``anthropic``.
        once: The replies to the next requests, in order.
        reply: The reply to every other request, or a function of the request's body.
        requests: What came so far.
        service: A new Pipecat service of it.
    """

    name: str
    wire: str
    reply: Reply | Callable[[dict[str, Any]], Reply] = field(default_factory=Reply)
    once: list[Reply] = field(default_factory=list[Reply])
    requests: list[Request] = field(default_factory=list[Request])
    url: str = ""
    _runner: web.AppRunner | None = None

    def service(self) -> LLMService[Any]:
        """A new Pipecat service that asks this provider."""
        return simulated(self.wire, None, "m", url=self.url)

    def asked(self, turn: int) -> int:
        """The number of requests of a turn."""
        return sum(request.turn == turn for request in self.requests)

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=256).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def shut(self) -> None:
        """Close every connection, and accept no more from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"object": "list", "data": [], "has_more": False})
        raw = await request.text()
        turns = re.findall(r"Question (\d+)", raw)
        body = json.loads(raw)
        now = asyncio.get_running_loop().time()
        self.requests.append(Request(now, int(turns[-1]) if turns else 0, body))
        if self.once:
            reply = self.once.pop(0)
        else:
            reply = self.reply if isinstance(self.reply, Reply) else self.reply(body)
        try:
            return await self._reply(request, reply, is_stream=bool(body.get("stream")))
        except ConnectionError:
            return web.Response()

    async def _reply(
        self, request: web.Request, reply: Reply, *, is_stream: bool
    ) -> web.StreamResponse:
        assert request.transport is not None
        if reply.status is not None:
            headers = {} if reply.retry_after is None else {"retry-after": reply.retry_after}
            error = {"type": ERRORS[reply.status], "message": "not this one"}
            found = {"type": "error", "error": error}
            return web.json_response(found, status=reply.status, headers=headers)
        if reply.end == "hangs":
            await asyncio.Event().wait()
        if reply.end == "resets":
            request.transport.abort()
            return web.Response()
        if not is_stream:
            await asyncio.sleep(reply.first_secs)
            return web.json_response(self._whole("".join(ANSWER)))
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        if reply.end == "keeps alive":
            while True:
                await out.write(b": well\n\n")
                await asyncio.sleep(0.2)
        stream = events(self.wire, ANSWER)
        head = 3 if self.wire == "anthropic" else 1
        if reply.thinks:
            stream = await self._think(out, stream, reply.first_secs)
            head = 0
        else:
            for part in stream[:head]:
                await out.write(part)
            await asyncio.sleep(reply.first_secs)
        end = None if reply.end == "whole" else head + 3
        for part in stream[head:end]:
            await out.write(part)
            await asyncio.sleep(0.005)
        if reply.end == "breaks":
            await asyncio.sleep(0.05)  # what was sent has been read
            request.transport.abort()
        elif reply.end == "stalls":
            await asyncio.Event().wait()
        await out.write_eof()
        return out

    async def _think(
        self, out: web.StreamResponse, stream: list[bytes], secs: float
    ) -> list[bytes]:
        """Send reasoning for some seconds; returns the rest of the stream."""
        if self.wire == "openai":
            delta = events("openai", ("hm ",))[1].replace(b'"content"', b'"reasoning_content"')
            await out.write(stream[0])
            rest = stream[1:]
        else:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            start = {"type": "content_block_start", "index": 0, "content_block": block}
            step = {"type": "thinking_delta", "thinking": "hm "}
            delta = _event({"type": "content_block_delta", "index": 0, "delta": step})
            await out.write(stream[0] + _event(start))
            stop = _event({"type": "content_block_stop", "index": 0})
            rest = [part.replace(b'"index": 0', b'"index": 1') for part in stream[1:]]
            rest.insert(0, stop)
        until = asyncio.get_running_loop().time() + secs
        while asyncio.get_running_loop().time() < until:
            await out.write(delta)
            await asyncio.sleep(0.1)
        return rest

    def _whole(self, text: str) -> dict[str, Any]:
        if self.wire == "openai":
            message = {"role": "assistant", "content": text}
            return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        content = [{"type": "text", "text": text}]
        usage = {"input_tokens": 9, "output_tokens": 9}
        found = {"id": "m1", "type": "message", "role": "assistant", "model": "m"}
        return {**found, "content": content, "stop_reason": "end_turn", "usage": usage}


def _event(found: dict[str, Any]) -> bytes:
    return f"event: {found['type']}\ndata: {json.dumps(found)}\n\n".encode()


@asynccontextmanager
async def scripted_providers(*providers: ScriptedProvider) -> AsyncIterator[None]:
    """Have providers listen."""
    async with AsyncExitStack() as stack:
        for provider in providers:
            await provider.start()
            stack.push_async_callback(provider.shut)
        yield


# ---- calls


@dataclass(frozen=True)
class Turn:
    """What the caller heard of a turn.

    Parameters:
        wait_secs: The time to the first text; None if none came within the limit.
        ended_secs: The time to the end of the response; None if it was still open then.
        text: The text.
        errors: The error frames.
        framing: See ``Line.framing``.
    """

    wait_secs: float | None
    ended_secs: float | None
    text: str
    errors: int
    framing: str

    def waited(self, most_secs: float) -> bool:
        """Whether an answer came in time."""
        return self.wait_secs is not None and self.wait_secs <= most_secs


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
        return Turn(
            heard_at[0] - began if heard_at else None,
            ended_secs,
            line.text[texts:],
            len(line.errors) - errors,
            "".join(line.framing[framing:]),
        )

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
                yield Call(line, providers)
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
