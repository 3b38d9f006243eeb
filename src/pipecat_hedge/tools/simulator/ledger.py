"""What became of every request: when it came, when bytes went out, how it ended; not what was said.

An entry is open from the request's arrival until it is `completed` (sent to its end), `failed` (an
error status, a reset, a cut: caused by the provider) or `aborted` (the client left, recorded when
its socket closes). The last 100,000 that have ended are kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["open", "completed", "aborted", "failed"]

MAX_ENDED = 100_000


@dataclass(slots=True)
class LedgerEntry:
    """One request. Fields fill in as it is served; times are seconds since the simulator started.

    Parameters:
        id: Its number, from 1.
        wire: ``openai``, ``anthropic`` or ``google``.
        model: The model name as it was sent, behaviour included.
        started_secs: When it arrived.
        profile: The latency profile, None if the model name was refused.
        fault: The fault that it got, None if none.
        stream: Whether a stream was asked for.
        began_secs: When it began to be served: later than it arrived if it waited for a place.
        headers_secs: When status and headers were sent.
        first_byte_secs: When the first byte of the body was sent.
        first_token_secs: When the first token of the answer was sent, or the start of a tool call.
        ended_secs: When it ended.
        outcome: How it ended.
        status: The HTTP status, None if none was sent.
        tokens_sent: Tokens sent, reasoning included.
        prompt_tokens: Estimated length of the prompt.
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
    first_byte_secs: float | None = None
    first_token_secs: float | None = None
    ended_secs: float | None = None
    outcome: Outcome = "open"
    status: int | None = None
    tokens_sent: int = 0
    prompt_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
        """Every request that is kept, in order of arrival."""
        return sorted([*self._ended, *self._open.values()], key=lambda entry: entry.id)

    def arrived(self, wire: str) -> LedgerEntry:
        """A new open entry."""
        self._last_id += 1
        entry = LedgerEntry(self._last_id, wire, "", self.clock())
        self._open[entry.id] = entry
        self.announce()
        return entry

    def ended(self, entry: LedgerEntry, outcome: Outcome) -> None:
        """Record how an entry ended; the first ending counts."""
        if self._open.pop(entry.id, None) is None:
            return
        entry.outcome = outcome
        entry.ended_secs = self.clock()
        self._ended.append(entry)
        self.announce()

    def clear(self) -> None:
        """Forget the requests that have ended."""
        self._ended.clear()

    def announce(self) -> None:
        """Wake every `wait_until`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, is_reached: Callable[["Ledger"], bool], timeout_secs: float) -> None:
        """Wait until a condition on the ledger holds.

        It is checked when a request arrives, ends, or sends headers, a first byte or a first token.

        Args:
            is_reached: The condition.
            timeout_secs: How long to wait.

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

    def as_dict(self, *, open_only: bool = False) -> dict[str, Any]:
        """The ledger as JSON values.

        Args:
            open_only: Leave out the requests that have ended.
        """
        entries = self.open if open_only else self.requests
        return {"requests": [entry.as_dict() for entry in entries], "open": len(self._open)}
