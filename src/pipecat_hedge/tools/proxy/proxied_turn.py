"""One request of a client as a race between the upstreams of its model."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
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
from pipecat_hedge.tools.proxy.response import MAX_UNREAD_BYTES, Response
from pipecat_hedge.tools.proxy.sse import EventSplitter
from pipecat_hedge.tools.proxy.upstream import ProxiedRequest, Reply, Upstream, UpstreamRefused
from pipecat_hedge.tools.proxy.wires import STATUSES, EventReader, Signs, Wire

__all__ = ["ProxiedTurn", "estimate_tokens"]

CHARS_PER_TOKEN = 4
WHOLE_ANSWER_SECS = 60.0
"""The silence after which another upstream gets a request that is not streamed."""


def estimate_tokens(request: ProxiedRequest) -> int:
    """Estimate the tokens of a request from its length."""
    return math.ceil(len(request.body) / CHARS_PER_TOKEN)


class _Cut(Exception):
    """A committed answer broke off and is not continued."""


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
        self._replies: dict[int, Reply] = {}
        self._released: list[ProviderAttempt] = []
        self._committed_at: float | None = None
        self._posted = self._delivered = 0
        self._has_room = asyncio.Event()
        self._said = ""  # before it was cut
        self._texts: dict[int, str] = {}
        self._readers: dict[int, EventReader] = {}
        self._with_tools: set[int] = set()
        self._was_interrupted = self._was_cut = False

    async def run(self, drains: TaskScope | None) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that run on.
        """
        runner, response = self._runner, self._response
        try:
            async with TaskScope() as scope:
                try:
                    secs = None if self._request.is_stream else WHOLE_ANSWER_SECS
                    if await runner.admit(stall_secs=secs):
                        await runner.run(scope, self._deliver, self._execute, drains)
                except _Cut:
                    self._was_cut = True
                except asyncio.CancelledError:
                    self._was_interrupted = True
                    raise
                finally:
                    self._ended_at = self._loop.time()
                if self._was_cut or (runner.failure is not None and response.has_begun):
                    body = self._wire.error(502, "the upstream's answer broke off")
                    await response.write(self._wire.error_event(body))
                    response.end(is_whole=False)
                elif runner.failure is not None:
                    self._fail()
                else:
                    if len(self._released) > 1:
                        await response.write(self._wire.end_events(self._like))
                    response.end()
        finally:
            if response.has_begun and not response.is_over:
                response.end(is_whole=False)

    async def wait_for_probes(self) -> None:
        """Wait until the losers that run on as latency probes are closed."""
        await self._runner.wait_for_probes()

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed upstream with its error."""
        return self._runner.errors

    @property
    def has_answer(self) -> bool:
        """Whether something usable was released whole."""
        return self._response.is_whole and bool(self._released)

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
            has_tools = winner.number in self._with_tools
            return "answered_with_tools" if has_tools else "answered"
        return "interrupted" if self._was_interrupted else "failed"

    # ---- the attempts

    async def _send(
        self, launch: Launch, attempt: ProviderAttempt, sink: AttemptSink[bytes], upstream: Upstream
    ) -> None:
        reply = self._replies[attempt.number] = Reply()
        request, is_rest = self._request, bool(self._said)
        if is_rest:
            request = self._rest_of(request)
        stats = attempt.stats
        try:
            async with aclosing(upstream.send(request, reply, stats)) as chunks:
                if request.is_stream:
                    await self._stream(chunks, attempt, reply, sink, is_rest=is_rest)
                else:
                    reply.body += b"".join([chunk async for chunk in chunks])
                    self._take_whole(bytes(reply.body), attempt, sink)
            stats.completed = reply.is_whole = True
            upstream.answers += 1
        finally:
            if stats.keeps_text and attempt.outcome == "superseded":
                now = self._loop.time()
                self._drained(report_drained(self._number, attempt, self._planner, now))

    async def _stream(
        self,
        chunks: AsyncGenerator[bytes],
        attempt: ProviderAttempt,
        reply: Reply,
        sink: AttemptSink[bytes],
        *,
        is_rest: bool,
    ) -> None:
        splitter, reader, stats = EventSplitter(), self._wire.reader(), attempt.stats
        self._readers[attempt.number] = reader
        rest = Continuation(self._said) if is_rest else None
        has_ended = False
        async for chunk in chunks:
            events = splitter.feed(chunk)
            if not events:
                continue
            if self._is_plain(attempt) and not any(map(self._wire.rare.search, events)):
                stats.chars += CHARS_PER_TOKEN * len(events)
                piece = b"".join(events)
                sink.piece(piece, usable=True)
                self._posted += len(piece)
                await self._room(attempt)
                continue
            for event in events:
                signs = reader.read(event)
                if reader.usage is not None:
                    stats.usage = reader.usage
                if signs.error is not None:
                    reply.body += event
                    reply.is_whole = True
                    raise UpstreamRefused(_status_of(signs.error), reply.headers, signs.error)
                has_ended = has_ended or signs.ends
                usable = signs.is_usable
                stats.chars += len(signs.text)
                if stats.keeps_text:
                    stats.text += signs.text
                    stats.first_text_at = stats.first_text_at or self._loop.time()
                if usable:
                    stats.record_answer()
                if not self._released:
                    reply.body += event
                if signs.has_tool:
                    self._with_tools.add(attempt.number)
                piece, text = event, signs.text
                if rest is not None:  # only what is missing, in the form of what was cut
                    text = rest.feed(text)
                    piece = self._wire.text_event(text, self._like) if text else b""
                    usable = bool(text)
                if self._continues:
                    self._texts[attempt.number] = self._texts.get(attempt.number, "") + text
                self._posted += len(piece)
                if piece:
                    sink.piece(piece, usable=usable)
            await self._room(attempt)
        if not has_ended:
            raise ConnectionResetError("the stream ended before the answer did")
        if left := splitter.finish():
            sink.piece(left, usable=False)

    def _take_whole(self, body: bytes, attempt: ProviderAttempt, sink: AttemptSink[bytes]) -> None:
        try:
            found = json.loads(body)
            signs, usage = Signs(is_usable=True), None
            if self._request.path.partition("?")[0] == self._wire.path:
                signs, usage = self._wire.read_whole(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConnectionResetError(f"the answer is no answer: {error!r}") from error
        attempt.stats.usage = usage
        attempt.stats.chars += len(signs.text)
        if signs.has_tool:
            self._with_tools.add(attempt.number)
        if signs.is_usable:
            attempt.stats.record_answer()
        sink.piece(body, usable=signs.is_usable)

    def _is_plain(self, attempt: ProviderAttempt) -> bool:
        """Whether an attempt's text is passed on without being read."""
        return bool(self._released) and self._released[-1] is attempt and not self._continues

    async def _room(self, attempt: ProviderAttempt) -> None:
        """Wait while the client is far behind; the upstream's connection then waits as well."""
        while self._is_plain(attempt) and self._posted - self._delivered > MAX_UNREAD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    # ---- the answer

    async def _deliver(self, piece: bytes, at: float) -> None:
        await self._response.write(piece)
        self._delivered += len(piece)
        self._has_room.set()

    async def _execute(self, command: Commit | Continue | StreamBroken) -> None:
        if isinstance(command, StreamBroken):
            self._said = "".join(self._texts.get(a.number, "") for a in self._released)
            is_text = not any(a.number in self._with_tools for a in self._released)
            if not (self._continues and is_text and self._said):
                raise _Cut
            return
        attempt = self._runner.attempts[command.attempt]
        self._released.append(attempt)
        if isinstance(command, Continue):
            return
        self._committed_at = self._loop.time()
        self._posted = self._delivered = 0
        reply = self._replies[attempt.number]
        secs = self._committed_at - self._started_at
        headers = {
            **reply.headers,
            "x-hedge-winner": attempt.provider,
            "x-hedge-attempts": str(len(self._runner.attempts)),
            "x-hedge-ttft-ms": f"{1000 * secs:.0f}",
        }
        self._response.begin(reply.status, headers)

    def _fail(self) -> None:
        """Answer with an upstream's own response, if one was whole, or an error of the proxy's."""
        whole = [r for r in self._replies.values() if r.is_whole and r.status]
        failure = self._runner.failure
        if whole:
            # The first's, as without a proxy; but an overload is not the last word of a refusal.
            reply = min(whole, key=lambda r: r.status in (429, 503, 529))
            self._response.refuse(reply.status, bytes(reply.body), reply.headers)
            return
        has_no_room = failure is not None and bool(failure.reason)
        status = self._wire.overloaded if has_no_room else 502
        body = json.dumps(self._wire.error(status, str(failure))).encode()
        self._response.refuse(status, body)

    # ---- the rest of an answer that was cut

    def _rest_of(self, request: ProxiedRequest) -> ProxiedRequest:
        messages = self._wire.continued(request.found["messages"], self._said, CONTINUE)
        found = {**request.found, "messages": messages}
        return ProxiedRequest(request.path, request.headers, json.dumps(found).encode(), found)

    @property
    def _like(self) -> Mapping[str, Any]:
        """An event of the first released answer with text."""
        return self._readers[self._released[0].number].like


def _status_of(error: object) -> int:
    """The status of an error that came as an event."""
    inner = error.get("error") if isinstance(error, dict) else None
    kinds = [inner.get(name) for name in ("type", "code")] if isinstance(inner, dict) else []
    found = [status for status, names in STATUSES.items() if set(names) & set(map(str, kinds))]
    return found[-1] if found else 500
