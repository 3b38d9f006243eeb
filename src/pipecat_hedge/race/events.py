"""The race's events and commands.

An event is something that happened; a command is something to do. Both are frozen values, so a
race can be recorded as a table of events with their times, and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pipecat_hedge.race.errors import AttemptError

LaunchReason: TypeAlias = Literal["primary", "hedge", "failure", "silence", "stall"]
"""Why an attempt was launched: first in order, to overtake a slow one, to replace a failed one,
beside a silent one, or to continue an answer that stalled."""

CancelCause: TypeAlias = Literal["superseded", "interrupted", "deadline", "stall", "shutdown"]
"""Why an attempt was cancelled. No cause counts against its provider."""

AttemptOutcome: TypeAlias = Literal["won", "superseded", "failed", "interrupted"]
TurnOutcome: TypeAlias = Literal[
    "answered", "answered_with_tools", "interrupted", "failed", "withdrawn"
]

# ---- events


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The context frame arrived."""


@dataclass(frozen=True, slots=True)
class TurnConfirmed:
    """The caller's turn has ended, which was only expected when the race started."""


@dataclass(frozen=True, slots=True)
class UsableToken:
    """The attempt produced answer text."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ToolsCalled:
    """The attempt produced complete tool calls. Its answer needs nothing more."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SentenceReady:
    """The attempt completed a unit that the text-to-speech can speak."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """The attempt produces output that is not delivered yet: reasoning, or tool call arguments.

    Parameters:
        attempt: The attempt's number.
        at: When the latest output came; None if the stream cannot be read.
        is_call: Whether it is a part of a tool call: an answer that is on its way.
        is_whole: Whether the stream has marked the end of an answer without tool calls.
    """

    attempt: int
    at: float | None
    is_call: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The attempt's answer ended normally."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt ended in an error."""

    attempt: int
    error: AttemptError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The caller spoke, the turn was withdrawn, or the pipeline shuts down."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time in ``Race.wake_at`` has come."""


@dataclass(frozen=True, slots=True)
class HedgeEligibilityChanged:
    """Which providers can take requests and hedges. Replaces the previous event of this type.

    Parameters:
        reasons: Why a provider gets no hedge, by its name.
        reluctance: How much to avoid a provider for replacements, by its name. The lowest is
            preferred; a provider that is not listed has 0.
        slow: The providers that answer other requests now: slow, not silent.
        full: The providers that get no further request, because the turn sheds.
    """

    reasons: Mapping[str, str]
    reluctance: Mapping[str, int] = field(default_factory=dict[str, int])
    slow: frozenset[str] = frozenset()
    full: frozenset[str] = frozenset()


AttemptEvent: TypeAlias = (
    UsableToken | ToolsCalled | SentenceReady | Progressed | AttemptFinished | AttemptFailed
)
TurnEvent: TypeAlias = TurnStarted | TurnConfirmed | Interrupted | TimerFired
Event: TypeAlias = TurnEvent | AttemptEvent | HedgeEligibilityChanged

# ---- commands


@dataclass(frozen=True, slots=True)
class Launch:
    """Send a request to a provider.

    Parameters:
        attempt: The attempt's number within the turn, from 0.
        provider: The provider's name.
        reason: Why the attempt is launched.
    """

    attempt: int
    provider: str
    reason: LaunchReason


@dataclass(frozen=True, slots=True)
class Commit:
    """Release this attempt's answer: what is buffered now, and the rest as it comes."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The committed answer ended early. Release its whole sentences and drop the rest."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Continue:
    """The committed answer broke off. Continue with this attempt's answer, without repetition."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Close this attempt's request."""

    attempt: int
    cause: CancelCause


@dataclass(frozen=True, slots=True)
class Fail:
    """No attempt is left. Before a commit the turn failed; after it the answer ends early.

    Parameters:
        errors: A pair ``(provider, error)`` per failed attempt, in the order of launch.
    """

    errors: tuple[tuple[str, AttemptError], ...]


Command: TypeAlias = Launch | Commit | StreamBroken | Continue | Cancel | Fail

# ---- a race's settings


CommitOn: TypeAlias = Literal["first_sentence", "first_token"]
"""What an attempt must have to win: a speakable unit, or a usable token."""

FillerCause: TypeAlias = Literal["slow", "tool", "failing"]
"""Why an answer is late: it is slow, a tool runs, or all attempts so far have failed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One request that may be made.

    Parameters:
        provider: The provider's name.
        silent_secs: The silence guard: the wait for its first usable token after which another
            provider gets a request as well; None is never.
        stall_secs: The silence after its first token after which another provider gets a request;
            None is never.
        timeout_secs: The silence after which the attempt counts as failed; None is never.
        late_secs: The wait for its first usable token after which it is late (its p95, at most
            ``silent_secs``). Before, no failed request is repeated beside it.
        retries: How many times the request may be repeated after a transient failure.
        tries: How many times it has been sent in this turn.
    """

    provider: str
    silent_secs: float | None = None
    stall_secs: float | None = None
    timeout_secs: float | None = None
    late_secs: float = 0.0
    retries: int = 0
    tries: int = 0


# ---- launch rules


@dataclass(frozen=True, slots=True)
class InFlight:
    """An attempt that has neither ended nor been committed.

    Parameters:
        provider: The provider's name.
        launched_at: When it was launched, in the race's clock.
        last_token_at: When its latest usable token came; None if none has come.
        first_token_at: When its first usable token came; None if none has come.
    """

    provider: str
    launched_at: float
    last_token_at: float | None
    first_token_at: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn without an answer yet that may launch another attempt.

    Parameters:
        started_at: When the turn started; of a speculative turn, when it was confirmed.
        in_flight: The live attempts in the order of launch; never empty.
        next_provider: The provider of the next attempt.
        now: The time, in the race's clock.
    """

    started_at: float
    in_flight: tuple[InFlight, ...]
    next_provider: str
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class LaunchDecision:
    """When to launch the next attempt if no event comes before.

    Parameters:
        at: A time in the race's clock; None is never.
        reason: Why, in words.
        is_put_off: Whether the attempt is due but cannot be sent now. It may become possible at any
            time, so consult the rule again soon.
    """

    at: float | None
    reason: str
    is_put_off: bool = False


class LaunchRule(Protocol):
    """Decides when a turn that is still waiting gets another request."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Decide when to launch the next attempt."""
        ...
