"""Records every request, socket and voice's context: arrival, what was sent, end; no texts.

An entry is open from the request's arrival until it is `completed` (sent to its end), `failed` (an
error status, a reset, a cut: caused by the provider) or `aborted` (the client disconnected). The
last 100,000 ended entries are kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["open", "completed", "aborted", "failed"]

MAX_ENDED = 100_000


@dataclass(slots=True)
class LedgerEntry:
    """One request, or one socket of a recogniser. Fields fill in as it is served.

    Times are seconds since the simulator started.

    Parameters:
        id: Its number, from 1.
        wire: ``openai``, ``anthropic`` or ``google``; of recognisers ``deepgram`` (a socket) or
            ``openai-stt``; of voices ``cartesia``, ``elevenlabs`` (contexts), ``deepgram-tts``
            (what is spoken up to a flush) or ``openai-tts``, and ``cartesia socket`` and so on.
        model: The model name of the request, including its behaviour.
        started_secs: Arrival.
        profile: The latency profile, None if the model name was rejected.
        fault: The request's fault, if any; of a socket that of the last utterance.
        stream: Whether a stream was requested.
        began_secs: Start of serving; later than the arrival if the request was queued.
        headers_secs: Status and headers sent.
        first_token_secs: First token of the answer, the start of a tool call, or the first word
            that can be heard, sent.
        ended_secs: End.
        outcome: How it ended.
        status: The HTTP status, None if none was sent.
        tokens_sent: Tokens sent, reasoning included; of a voice words.
        prompt_tokens: Estimated length of the prompt.
        utterances: Utterances heard on a socket.
        interims: Interim transcripts sent on it.
        finals: Final transcripts sent on it, empty ones aside.
        characters: Characters that a voice was to speak.
    """

    id: int
    wire: str
    model: str
    started_secs: float
    profile: str | None = None
    fault: str | None = None
    stream: bool = False
    began_secs: float | None = None
    headers_secs: float | None = None
    first_token_secs: float | None = None
    ended_secs: float | None = None
    outcome: Outcome = "open"
    status: int | None = None
    tokens_sent: int = 0
    prompt_tokens: int = 0
    utterances: int = 0
    interims: int = 0
    finals: int = 0
    characters: int = 0


class Ledger:
    """All requests of one simulator, in order of arrival.

    Args:
        clock: Seconds since the simulator's start.
    """

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self._last_id = 0
        self._open: dict[int, LedgerEntry] = {}
        self._ended: deque[LedgerEntry] = deque(maxlen=MAX_ENDED)
        self._changed = asyncio.Event()

    @property
    def open(self) -> list[LedgerEntry]:
        """The requests that have not ended."""
        return list(self._open.values())

    @property
    def requests(self) -> list[LedgerEntry]:
        """All kept requests, in order of arrival."""
        return sorted([*self._ended, *self._open.values()], key=lambda entry: entry.id)

    def arrived(self, wire: str) -> LedgerEntry:
        """Add an open entry."""
        self._last_id += 1
        entry = LedgerEntry(self._last_id, wire, "", self.clock())
        self._open[entry.id] = entry
        self.announce()
        return entry

    def ended(self, entry: LedgerEntry, outcome: Outcome) -> None:
        """Record an entry's end; only the first call counts."""
        if self._open.pop(entry.id, None) is None:
            return
        entry.outcome = outcome
        entry.ended_secs = self.clock()
        self._ended.append(entry)
        self.announce()

    def clear(self) -> None:
        """Delete the ended requests."""
        self._ended.clear()

    def announce(self) -> None:
        """Wake all `wait_until` calls."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, is_reached: Callable[["Ledger"], bool], timeout_secs: float) -> None:
        """Wait until a condition on the ledger holds.

        It is checked when a request arrives, is served, sends headers or a first token, or ends,
        and when a recogniser's socket hears an utterance or sends a transcript.

        Args:
            is_reached: The condition.
            timeout_secs: The longest wait.

        Raises:
            TimeoutError: If it does not hold in time; names the open requests.
        """
        try:
            async with asyncio.timeout(timeout_secs):
                while not is_reached(self):
                    await self._changed.wait()
        except TimeoutError:
            names = ", ".join(f"#{e.id} {e.wire} {e.model}" for e in self._open.values())
            raise TimeoutError(
                f"not reached in {timeout_secs:g} s; open requests: {names or 'none'}"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        requests = [asdict(entry) for entry in self.requests]
        return {"requests": requests, "open": len(self._open), "now_secs": self.clock()}
