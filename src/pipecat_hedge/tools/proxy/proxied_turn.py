"""One request of a client as a race between the upstreams of its model."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.race import (
    AttemptError,
    AttemptSink,
    Commit,
    Continuation,
    Continue,
    DrainedAnswer,
    StreamBroken,
    TaskScope,
    TurnReport,
)
from pipecat_hedge.service import (
    CONTINUE,
    ProviderAttempt,
    ProviderRace,
    TurnRecord,
    WireEvent,
    is_rare,
    report_drained,
    report_turn,
)
from pipecat_hedge.tools.proxy.request import ProxiedRequest, read_request
from pipecat_hedge.tools.proxy.response import Response
from pipecat_hedge.tools.proxy.upstream import Reply, Upstream, UpstreamError
from pipecat_hedge.tools.proxy.wires import MAX_READ_BYTES, AnswerReader, EventSplitter, Wire

CHARS_PER_TOKEN = 4
WHOLE_ANSWER_SECS = 60.0
"""The silence after which another upstream gets a request that is not streamed."""
WORK_SECS = 10.0
"""How long an upstream may work at an answer that is not streamed, of which nothing is seen, before
another one's rejection of the request ends the turn."""
MAX_HELD_BYTES = 32 * 2**20
"""The most of an answer that is held before anything usable in it."""
SKIPPED_BYTES = 4096
"""As much of the events that passed unread is kept: the end shows whether an answer is whole."""
TAIL_SECS = 0.3
"""How long a client waits for further bytes behind its answer's end mark, if the upstream does not
end its response. Servers that send any do so at once."""
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
        splitter: Splits them.
        skipped: The end of the events that were not read.
        seen: The body of an answer that is not streamed.
        texts: Its text, if it may have to be continued.
        has_tool: Whether it calls a tool.
        is_known: Whether all of it is understood.
        is_usable: Whether anything usable came.
        has_end: Whether its end was marked.
        rest: Finds what is missing in it, if it continues another.
        is_posted: Whether any of it was posted to the race.
        posted: The bytes that were posted to the race.
        delivered: Those of them that were released.
    """

    reader: AnswerReader | None = None
    splitter: EventSplitter = field(default_factory=EventSplitter)
    skipped: bytes = b""
    seen: bytearray = field(default_factory=bytearray)
    texts: list[str] = field(default_factory=list[str])
    has_tool: bool = False
    is_known: bool = True
    is_usable: bool = False
    has_end: bool = False
    rest: Continuation | None = None
    is_posted: bool = False
    posted: int = 0
    delivered: int = 0


class ProxiedTurn:
    """Races one request and writes the response."""

    def __init__(
        self,
        number: int,
        request: ProxiedRequest,
        wire: Wire,
        race: ProviderRace[bytes, Upstream],
        response: Response,
        *,
        upstreams: int,
        drained: Callable[[DrainedAnswer], None],
    ):
        """Prepare a race; it starts on creation.

        Args:
            number: Its number within its model, from 1.
            request: What to ask.
            wire: The API.
            race: Its race, not run yet.
            response: Gets what wins.
            upstreams: The number of the model's upstreams. With one nothing is held back.
            drained: Called with the answer of each loser that finished.
        """
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._record = TurnRecord(number, race, now, now)
        self._request, self._wire, self._response = request, wire, response
        self._upstreams, self._is_alone = upstreams, upstreams == 1
        self._continues = race.spec.rescues
        self._drained = drained
        self._race = race
        self._answers: dict[int, _Answer] = {}
        self._has_room = asyncio.Event()
        self._has_error = False
        self._error: Mapping[str, Any] | None = None  # what the upstream reported in its stream

    async def run(self, drains: TaskScope | None) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that run on.
        """
        race, response, record = self._race, self._response, self._record
        async with TaskScope() as scope:
            try:
                await race.run(self, scope, drains)
            except _Cut:
                record.was_cut = True
            except asyncio.CancelledError:
                record.was_interrupted = not response.is_whole
                raise
            finally:
                if not response.is_complete:
                    record.ended_at = self._loop.time()
            if record.was_cut or (race.failure is not None and response.has_begun):
                await self._break_off()
            elif race.failure is not None:
                await self._fail(race.failure)
            else:
                if len(self._record.released) > 1:
                    await response.write(self._wire.end_events(self._like))
                answers = [self._answers[a.number] for a in record.released]
                response.complete(is_whole=all(a.is_usable and a.has_end for a in answers))
                if len(answers) == 1:
                    await self._pass_tail(answers[0])
                response.end()

    async def wait_for_observed(self) -> None:
        """Wait until observed losers are closed."""
        await self._race.wait_for_observed()

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed upstream with its error."""
        return self._race.errors

    def report(self) -> TurnReport:
        """Report the finished race."""
        winner, record = self._race.winner, self._record
        record.has_tools = winner is not None and self._answers[winner.number].has_tool
        record.degraded_reason = "the answer broke off" if record.was_cut else None
        return report_turn(record)

    def close(self) -> None:
        """Drop the attempts, which refer back to this, after the report.

        Where a loser runs on, the garbage collector does it.
        """
        if self._race.is_idle:
            self._race.close()
            del self._race, self._record

    # ---- the attempts

    async def send(
        self, attempt: ProviderAttempt, sink: AttemptSink[bytes], instance: Upstream
    ) -> None:
        """See ``TurnHost``."""
        answer = self._answers[attempt.number] = _Answer()
        request = self._request
        if self._continues and (said := self._text()):
            request, answer.rest = await self._rest_of(request, said), Continuation(said)
        stats = attempt.stats
        if self._is_alone and self._response.has_begun:
            raise _Cut  # nothing may follow what another attempt has sent
        try:
            async with aclosing(instance.send(request, answer, stats)) as chunks:
                try:
                    await self._receive(chunks, attempt, answer, sink)
                except ConnectionResetError:
                    if not (self._continues and answer.has_end) or answer.has_tool:
                        raise
                await self._finish(attempt, answer, sink, instance)
            stats.completed = answer.is_whole = True
            instance.answers += 1
        except UpstreamError as error:
            if self._response.has_begun and self._is_passed(attempt):
                self._error = error.body if isinstance(error.body, dict) else None
            raise
        finally:
            is_whole = answer.rest is None  # not only the rest of another answer
            if stats.keeps_text and attempt.outcome == "superseded" and is_whole:
                now = self._loop.time()
                self._drained(report_drained(self._record, attempt, now))

    async def _receive(
        self,
        chunks: AsyncGenerator[bytes],
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        """Pass an answer on as it comes, and read it as far as the race has to know.

        There are two cases: 1. If it may be continued, whole events pass, so that an error does
        not. 2. Otherwise every byte passes, at once if nothing else may be released.
        """
        stats, race = attempt.stats, self._race.race
        async for chunk in chunks:
            if answer.reader is None and self._has_events(answer):
                answer.reader = AnswerReader(self._wire)
            if self._is_alone:
                self._begin(attempt)
            is_direct = self._is_direct(attempt, answer)
            if is_direct and chunk:
                await self._response.write(chunk)
                if race is not None and race.winner is attempt:
                    race.token(attempt.number, self._loop.time())
            elif not (self._continues and answer.reader):
                answer.body += chunk
            if chunk and not answer.is_posted:
                stats.stages.record_chunk(chunk)
            if answer.reader is None:
                answer.seen += chunk[: MAX_READ_BYTES + 1 - len(answer.seen)]
                if len(answer.seen) > MAX_READ_BYTES:
                    self._take(WireEvent(is_usable=True, is_known=False), attempt, answer)
            else:
                for piece, is_read in answer.splitter.feed(chunk):
                    if is_read and is_direct and answer.is_posted and self._skips(piece, answer):
                        stats.chars += CHARS_PER_TOKEN * piece.count(b"data:")
                    elif is_read:
                        await self._read(piece, attempt, answer, sink)
                    else:
                        self._take(WireEvent(is_usable=True, is_known=False), attempt, answer)
                        if self._continues and answer.rest is None:
                            answer.body += piece
            await self._pass_on(attempt, answer, sink)
            if answer.is_whole:
                break

    def _has_events(self, answer: _Answer) -> bool:
        """Whether an upstream answers with events, whatever was asked for."""
        kind = next((v for k, v in answer.headers.items() if k.lower() == "content-type"), "")
        return "event-stream" in kind or (self._request.is_stream and "json" not in kind)

    def _skips(self, piece: bytes, answer: _Answer) -> bool:
        """Whether events need not be read."""
        if is_rare(piece):
            return False
        answer.skipped = (answer.skipped + piece[-SKIPPED_BYTES:])[-SKIPPED_BYTES:]
        return True

    async def _read(
        self,
        events: bytes,
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        """Read events; if the answer may be continued, append to its body what passes of them."""
        reader = answer.reader
        assert reader is not None
        for event in answer.splitter.split(events):
            found = reader.read(event)
            if found.error is not None:
                if self._continues and not self._is_released(attempt):
                    answer.body += event
                await self._raise_error(found.error, attempt, answer, sink)
            attempt.stats.usage = reader.usage or attempt.stats.usage
            if answer.rest is not None:  # only what is missing, in the form of what was cut
                found.text = answer.rest.feed(found.text)
                found.is_usable = bool(found.text)
                event = self._wire.text_event(found.text, self._like) if found.text else b""
            if self._continues:
                answer.body += event
            answer.has_end = answer.has_end or found.ends
            answer.is_whole = answer.is_whole or found.is_last
            answer.has_tool = bool(reader.calls)
            self._take(found, attempt, answer)

    def _take(self, found: WireEvent, attempt: ProviderAttempt, answer: _Answer) -> None:
        """Note what a part of an answer means."""
        stats = attempt.stats
        stats.chars += len(found.text)
        answer.is_known = answer.is_known and found.is_known
        if stats.keeps_text:
            stats.text += found.text
        if found.is_usable:
            stats.record_answer()
            answer.is_usable = True
        if self._continues:
            answer.texts.append(found.text)
            if not _may_be_continued(answer):
                attempt.stall_secs = None

    async def _raise_error(
        self,
        error: Mapping[str, Any],
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
    ) -> None:
        """End an attempt whose answer is an error, or has one in it."""
        status = self._wire.status_of(error)
        if self._is_passed(attempt):
            self._has_error = not self._continues
            await self._pass_on(attempt, answer, sink)
            status = answer.status  # the request is not repeated
        answer.is_whole = True
        raise UpstreamError(status, answer.headers, error)

    async def _finish(
        self,
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
        upstream: Upstream,
    ) -> None:
        """Decide what an answer is whose last byte has come.

        There are three cases: 1. It is cut. 2. It has nothing in it, or is not in the wire's form:
        another upstream is asked, and if that has nothing better, it is accepted. 3. It is whole.
        """
        reader = answer.reader
        if reader is not None:
            await self._read(bytes(answer.splitter.rest), attempt, answer, sink)
            upstream.sends_marks = upstream.sends_marks or answer.has_end
            if answer.is_known and not answer.has_end:
                self._check_end(attempt, answer, reader, sends_marks=upstream.sends_marks)
            if not answer.is_known:
                self._take(WireEvent(is_usable=True), attempt, answer)
        elif len(answer.seen) <= MAX_READ_BYTES:
            whole = AnswerReader(self._wire)
            found = whole.read_whole(answer.seen)
            answer.has_tool, attempt.stats.usage = bool(whole.calls), whole.usage
            if found.error is not None:
                await self._raise_error(found.error, attempt, answer, sink)
            self._take(found, attempt, answer)
        answer.has_end = answer.has_end or reader is None
        is_direct = self._is_direct(attempt, answer)
        await self._pass_on(attempt, answer, sink, is_whole=True)
        if is_direct:
            self._ended_at = self._loop.time()
            self._response.complete(is_whole=answer.is_usable and answer.has_end)

    def _check_end(
        self, attempt: ProviderAttempt, answer: _Answer, reader: AnswerReader, *, sends_marks: bool
    ) -> None:
        """Raise if an answer without an end mark is not whole by its content."""
        if answer.is_usable or reader.calls:
            for event in answer.splitter.split(answer.skipped):
                reader.read(event)
            if not reader.seems_whole(sends_marks=sends_marks):
                raise ConnectionResetError("the stream ended before the answer did")
            self._take(WireEvent(is_usable=True), attempt, answer)
        elif reader.has_read:
            raise ConnectionResetError("the stream ended before the answer began")

    async def _pass_on(
        self,
        attempt: ProviderAttempt,
        answer: _Answer,
        sink: AttemptSink[bytes],
        *,
        is_whole: bool = False,
    ) -> None:
        """Post the answer's body to the race, which delivers it or keeps it until it is decided.

        Of an answer that has passed directly, the race learns only that it is usable.
        """
        if not (answer.is_usable or is_whole):
            if len(answer.body) > MAX_HELD_BYTES:
                raise ConnectionResetError("too much without an answer in it")
            return
        if not answer.body and answer.is_posted:
            return
        piece, answer.body = bytes(answer.body), bytearray()
        answer.is_posted = True
        answer.posted += len(piece)
        await sink.piece(piece, usable=answer.is_usable)
        while self._is_released(attempt) and answer.posted - answer.delivered > MAX_UNREAD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    def _is_passed(self, attempt: ProviderAttempt) -> bool:
        """Whether the client gets what an attempt receives."""
        return self._is_alone or self._is_released(attempt)

    def _is_released(self, attempt: ProviderAttempt) -> bool:
        return bool(self._record.released) and self._record.released[-1] is attempt

    def _is_direct(self, attempt: ProviderAttempt, answer: _Answer) -> bool:
        """Whether an attempt's bytes go to the client without a detour through the race."""
        is_free = self._is_released(attempt) and not self._continues
        return self._is_alone or (is_free and answer.posted == answer.delivered)

    # ---- the answer

    async def deliver(self, piece: bytes, at: float) -> None:
        """See ``TurnHost``."""
        await self._response.write(piece)
        self._answers[self._record.released[-1].number].delivered += len(piece)
        self._has_room.set()

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """See ``TurnHost``."""
        if isinstance(command, StreamBroken):
            released = [self._answers[a.number] for a in self._record.released]
            if not self._text() or not all(map(_may_be_continued, released)):
                raise _Cut
            return
        attempt = self._race.attempts[command.attempt]
        self._record.released.append(attempt)
        if isinstance(command, Commit):
            self._record.committed_at = self._loop.time()
            self._begin(attempt)

    def _begin(self, attempt: ProviderAttempt) -> None:
        """Begin the response with an attempt's headers, if it has not begun."""
        if self._response.has_begun:
            return
        reply, secs = self._answers[attempt.number], self._loop.time() - self._record.started_at
        headers = {
            **reply.headers,
            "x-hedge-winner": attempt.provider,
            "x-hedge-attempts": str(len(self._race.attempts)),
            "x-hedge-ttft-ms": f"{1000 * secs:.0f}",
        }
        self._response.begin(reply.status, headers)

    async def _pass_tail(self, answer: _Answer) -> None:
        """Pass on what follows an answer's end mark, until its upstream ends or is quiet."""
        with suppress(TimeoutError):
            while answer.tail is not None:
                async with asyncio.timeout(TAIL_SECS):
                    chunk = await answer.tail.get()
                if not chunk:
                    return
                await self._response.write(chunk)

    async def _break_off(self) -> None:
        """End a response that has begun: by an event if it has events, or by its connection."""
        answer = next((a for a in reversed(self._answers.values()) if a.status), None)
        has_events = answer is not None and answer.reader is not None
        if has_events and not self._has_error:
            body = self._error or self._wire.error(502, "the upstream's answer broke off")
            await self._response.write(self._wire.error_event(body))
        elif answer is not None and self._has_error:
            await self._pass_tail(answer)
        self._response.end(is_whole=False, is_cut=not (has_events or self._has_error))

    async def _fail(self, failure: Exception) -> None:
        """Answer with an upstream's own response, if one was whole, or an error of the proxy's."""
        whole = [r for r in self._answers.values() if r.is_whole and r.status]
        if whole:
            # The first's, as without a proxy; an overload only if there is no other error.
            reply = min(whole, key=lambda r: r.status in (429, 503, 529))
            sent = [a for a in self._race.attempts if a.sent_at is not None]
            has_repeated = len(sent) > self._upstreams
            # Both SDKs obey: or else each would repeat what has been repeated here.
            more = {"x-should-retry": "false"} if has_repeated else {}
            await self._response.reject(reply.status, bytes(reply.body), {**reply.headers, **more})
            return
        status = self._wire.overloaded if getattr(failure, "reason", "") else 502
        await self._response.reject(status, self._wire.error_body(status, str(failure)))

    # ---- the rest of an answer that was cut

    def _text(self) -> str:
        """What was released."""
        released = (self._answers[attempt.number] for attempt in self._record.released)
        return "".join(itertools.chain.from_iterable(answer.texts for answer in released))

    async def _rest_of(self, request: ProxiedRequest, said: str) -> ProxiedRequest:
        found = request.found
        messages = self._wire.continued(found["messages"], said, CONTINUE)
        body = bytearray(json.dumps({**found, "messages": messages}).encode())
        return await read_request(request.path, request.headers, body)

    @property
    def _like(self) -> Mapping[str, Any]:
        """An event of the first released answer with text."""
        reader = self._answers[self._record.released[0].number].reader
        return {} if reader is None else reader.like


def _may_be_continued(answer: _Answer) -> bool:
    """Whether another attempt can continue an answer, if it has text."""
    return answer.is_known and not answer.has_tool and not answer.has_end
