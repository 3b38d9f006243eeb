"""One request of a client as a race between the upstreams of its model."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pipecat_hedge.race import (
    AttemptError,
    AttemptSink,
    Commit,
    Continuation,
    Continue,
    DrainedAnswer,
    Launch,
    StreamBroken,
    TaskScope,
    TurnOutcome,
    TurnReport,
)
from pipecat_hedge.service import (
    CONTINUE,
    Admission,
    AttemptRunner,
    ProviderAttempt,
    TurnPlanner,
    report_drained,
    report_turn,
)
from pipecat_hedge.tools.proxy.response import Response
from pipecat_hedge.tools.proxy.upstream import ProxiedRequest, Reply, Upstream, UpstreamRefused
from pipecat_hedge.tools.proxy.wires import EventReader, EventSplitter, Signs, Wire

__all__ = ["ProxiedTurn", "estimate_tokens"]

CHARS_PER_TOKEN = 4
WHOLE_ANSWER_SECS = 60.0
"""The silence after which another upstream gets a request that is not streamed."""
MAX_HELD_BYTES = 32 * 2**20
"""The most of an answer that is held: before anything usable in it, or until it is whole."""
MAX_UNREAD_BYTES = 2**20
"""How far a continued answer may be ahead of its client."""


def estimate_tokens(request: ProxiedRequest) -> int:
    """Estimate the tokens of a request from its length."""
    return math.ceil(len(request.body) / CHARS_PER_TOKEN)


class _Cut(Exception):
    """A committed answer broke off and is not continued."""


@dataclass(slots=True)
class _Answer(Reply):
    """What an attempt has received.

    Parameters:
        reader: Reads its events.
        text: Its text, if it may have to be continued.
        has_tool: Whether it calls a tool.
        is_usable: Whether anything usable came.
        posted: The bytes that were posted to the race.
        delivered: Those of them that were released.
    """

    reader: EventReader | None = None
    text: str = ""
    has_tool: bool = False
    is_usable: bool = False
    posted: int = 0
    delivered: int = 0


class ProxiedTurn:
    """Races one request and writes the response."""

    def __init__(
        self,
        number: int,
        request: ProxiedRequest,
        wire: Wire,
        planner: TurnPlanner[Upstream],
        admission: Admission,
        response: Response,
        *,
        continues: bool,
        drained: Callable[[DrainedAnswer], None],
    ):
        """Prepare a race; it starts on creation.

        Args:
            number: Its number within its model, from 1.
            request: What to ask.
            wire: The API.
            planner: Its plan.
            admission: Its permits.
            response: Gets what wins.
            continues: Whether a text answer that is cut is continued.
            drained: Called with the answer of each loser that finished.
        """
        self._loop = asyncio.get_running_loop()
        self._started_at = self._ended_at = self._loop.time()
        self._number, self._request, self._wire = number, request, wire
        self._planner, self._admission, self._response = planner, admission, response
        self._continues = continues and request.is_stream
        self._drained = drained
        self._runner = AttemptRunner[bytes, Upstream](
            planner, admission, "primary", self._send, rescues=self._continues
        )
        self._answers: dict[int, _Answer] = {}
        self._released: list[ProviderAttempt] = []
        self._committed_at: float | None = None
        self._has_room = asyncio.Event()
        self._said = ""  # before it was cut
        self._was_interrupted = self._was_cut = self._has_error = False

    async def run(self, drains: TaskScope | None) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that run on.
        """
        runner, response = self._runner, self._response
        async with TaskScope() as scope:
            try:
                secs = None if self._request.is_stream else WHOLE_ANSWER_SECS
                if await runner.admit(stall_secs=secs):
                    await runner.run(scope, self._deliver, self._execute, drains)
            except _Cut:
                self._was_cut = True
            except asyncio.CancelledError:
                self._was_interrupted = not response.is_whole
                raise
            finally:
                if not response.is_over:
                    self._ended_at = self._loop.time()
            if self._was_cut or (runner.failure is not None and response.has_begun):
                if not self._has_error:
                    body = self._wire.error(502, "the upstream's answer broke off")
                    await response.write(self._wire.error_event(body))
                response.end(is_whole=False)
            elif runner.failure is not None:
                await self._fail(runner.failure)
            else:
                if len(self._released) > 1:
                    await response.write(self._wire.end_events(self._like))
                response.end()

    async def wait_for_probes(self) -> None:
        """Wait until the losers that run on as latency probes are closed."""
        await self._runner.wait_for_probes()

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed upstream with its error."""
        return self._runner.errors

    def report(self) -> TurnReport:
        """Report the finished race."""
        return report_turn(
            self._number,
            self._runner,
            self._planner,
            self._admission,
            outcome=self._outcome(),
            released=self._released,
            started_at=self._started_at,
            committed_at=self._committed_at,
            ended_at=self._ended_at,
            degraded_reason="the answer broke off" if self._was_cut else None,
        )

    def _outcome(self) -> TurnOutcome:
        winner = self._runner.winner
        if self._was_cut:
            return "failed"
        if winner is not None and winner.outcome == "won":
            has_tools = self._answers[winner.number].has_tool
            return "answered_with_tools" if has_tools else "answered"
        return "interrupted" if self._was_interrupted else "failed"

    # ---- the attempts

    async def _send(
        self, launch: Launch, attempt: ProviderAttempt, sink: AttemptSink[bytes], upstream: Upstream
    ) -> None:
        answer = self._answers[attempt.number] = _Answer()
        request = self._rest_of(self._request) if self._said else self._request
        stats = attempt.stats
        await sink.opened()  # a hedge beside it that has no room yet is tried again
        try:
            async with aclosing(upstream.send(request, answer, stats)) as chunks:
                if request.is_stream:
                    await self._stream(chunks, attempt, answer, sink)
                else:
                    await self._take_whole(chunks, attempt, answer, sink)
            stats.completed = answer.is_whole = True
            upstream.answers += 1
        finally:
            if stats.keeps_text and attempt.outcome == "superseded":
                now = self._loop.time()
                self._drained(report_drained(self._number, attempt, self._planner, now))

    async def _stream(
        self,
        chunks: AsyncGenerator[bytes],
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        splitter, reader, stats = EventSplitter(), self._wire.reader(), attempt.stats
        answer.reader, rare = reader, self._wire.rare
        rest = Continuation(self._said) if self._said else None
        is_complete = is_direct = False
        async for chunk in chunks:
            piece = splitter.feed(chunk)
            is_direct = is_direct or self._is_direct(attempt, answer)
            if is_direct and piece and rare.search(piece) is None:
                stats.chars += CHARS_PER_TOKEN * piece.count(b"data:")
                await self._response.write(piece)
                continue
            if not is_direct:
                stats.stages.record_chunk(chunk)
            for event in splitter.split(piece):
                before = len(answer.body)
                signs = self._read(event, attempt, answer, rest)
                is_complete = is_complete or signs.ends
                answer.is_whole = answer.is_whole or signs.is_last
                if signs.error is not None:
                    await self._refuse(signs.error, before, attempt, answer, sink)
            await self._pass_on(attempt, answer, sink, is_direct=is_direct)
            if answer.is_whole:
                break
        if not is_complete:
            raise ConnectionResetError("the stream ended before the answer did")
        answer.body += splitter.rest
        await self._pass_on(attempt, answer, sink, is_direct=is_direct)
        if is_direct:
            self._ended_at = self._loop.time()
            self._response.end()

    def _read(
        self, event: bytes, attempt: ProviderAttempt, answer: _Answer, rest: Continuation | None
    ) -> Signs:
        """Read an event, and append what is to be passed on of it to the answer's body."""
        reader, stats = answer.reader, attempt.stats
        assert reader is not None
        signs = reader.read(event)
        stats.usage = reader.usage or stats.usage
        stats.chars += len(signs.text)
        answer.has_tool = answer.has_tool or signs.has_tool
        if stats.keeps_text:
            stats.text += signs.text
            stats.first_text_at = stats.first_text_at or self._loop.time()
        text, usable = signs.text, signs.is_usable
        if rest is not None and signs.error is None:  # only what is missing, as what was cut
            text = rest.feed(text)
            event, usable = self._wire.text_event(text, self._like) if text else b"", bool(text)
        if usable:
            stats.record_answer()
            answer.is_usable = True
        if self._continues:
            answer.text += text
        answer.body += event
        return signs

    async def _refuse(
        self,
        error: Mapping[str, Any],
        before: int,
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        """End an attempt whose stream reports an error, behind ``before`` bytes of its body."""
        if self._is_released(attempt):
            self._has_error = self._is_direct(attempt, answer)
            if not self._has_error:
                del answer.body[before:]
            await self._pass_on(attempt, answer, sink, is_direct=self._has_error)
        answer.is_whole = True
        raise UpstreamRefused(self._wire.status_of(error), answer.headers, error)

    async def _pass_on(
        self,
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
        *,
        is_direct: bool,
    ) -> None:
        """Pass the answer's body on to the client, or to the race if it is not decided."""
        piece = answer.body
        if not piece:
            return
        if not (is_direct or answer.is_usable):
            if len(piece) > MAX_HELD_BYTES:
                raise ConnectionResetError("too much without an answer in it")
            return
        answer.body = bytearray()
        if is_direct:
            await self._response.write(bytes(piece))
            return
        answer.posted += len(piece)
        await sink.piece(bytes(piece), usable=True)
        while self._is_released(attempt) and answer.posted - answer.delivered > MAX_UNREAD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    async def _take_whole(
        self,
        chunks: AsyncGenerator[bytes],
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        async for chunk in chunks:
            answer.body += chunk
            if len(answer.body) > MAX_HELD_BYTES:
                raise ConnectionResetError("the answer is too long")
        try:
            found = json.loads(answer.body)
            signs, usage = Signs(is_usable=True), None
            if self._request.path.partition("?")[0] == self._wire.path:
                signs, usage = self._wire.read_whole(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConnectionResetError("the answer is no answer") from error
        attempt.stats.usage = usage
        attempt.stats.chars += len(signs.text)
        answer.has_tool = signs.has_tool
        if signs.is_usable:
            attempt.stats.record_answer()
        await sink.piece(bytes(answer.body), usable=signs.is_usable)

    def _is_released(self, attempt: ProviderAttempt) -> bool:
        return bool(self._released) and self._released[-1] is attempt

    def _is_direct(self, attempt: ProviderAttempt, answer: _Answer) -> bool:
        """Whether an attempt's bytes go to the client without a detour through the race."""
        is_free = self._is_released(attempt) and not self._continues
        return is_free and answer.posted == answer.delivered

    # ---- the answer

    async def _deliver(self, piece: bytes, at: float) -> None:
        await self._response.write(piece)
        self._answers[self._released[-1].number].delivered += len(piece)
        self._has_room.set()

    async def _execute(self, command: Commit | Continue | StreamBroken) -> None:
        if isinstance(command, StreamBroken):
            released = [self._answers[a.number] for a in self._released]
            self._said = "".join(answer.text for answer in released)
            if not (self._said and not any(answer.has_tool for answer in released)):
                raise _Cut
            return
        attempt = self._runner.attempts[command.attempt]
        self._released.append(attempt)
        if isinstance(command, Continue):
            return
        self._committed_at = self._loop.time()
        reply = self._answers[attempt.number]
        secs = self._committed_at - self._started_at
        headers = {
            **reply.headers,
            "x-hedge-winner": attempt.provider,
            "x-hedge-attempts": str(len(self._runner.attempts)),
            "x-hedge-ttft-ms": f"{1000 * secs:.0f}",
        }
        self._response.begin(reply.status, headers)

    async def _fail(self, failure: Exception) -> None:
        """Answer with an upstream's own response, if one was whole, or an error of the proxy's."""
        whole = [r for r in self._answers.values() if r.is_whole and r.status]
        if whole:
            # The first's, as without a proxy; but an overload is not the last word of a refusal.
            reply = min(whole, key=lambda r: r.status in (429, 503, 529))
            await self._response.refuse(reply.status, bytes(reply.body), reply.headers)
            return
        status = self._wire.overloaded if getattr(failure, "reason", "") else 502
        await self._response.refuse(status, self._wire.refusal(status, str(failure)))

    # ---- the rest of an answer that was cut

    def _rest_of(self, request: ProxiedRequest) -> ProxiedRequest:
        messages = self._wire.continued(request.found["messages"], self._said, CONTINUE)
        found = {**request.found, "messages": messages}
        return ProxiedRequest(request.path, request.headers, json.dumps(found).encode(), found)

    @property
    def _like(self) -> Mapping[str, Any]:
        """An event of the first released answer with text."""
        reader = self._answers[self._released[0].number].reader
        return {} if reader is None else reader.like
