"""The words of the race: facts go in, orders come out.

A fact is something that happened, an order something to do. Both are plain frozen values, so a
race can be written down as a table of facts with their times and replayed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pipecat_hedge.race.errors import AttemptError

LaunchReason: TypeAlias = Literal["primary", "hedge", "failure", "stall"]
"""Why an attempt was launched: first in line, to overtake a slow one, to replace a broken one."""

CancelCause: TypeAlias = Literal["superseded", "interrupted", "deadline", "stall", "shutdown"]
"""Why an attempt was cancelled. None of them says that its provider is unhealthy."""

AttemptOutcome: TypeAlias = Literal["won", "superseded", "failed", "interrupted"]
TurnOutcome: TypeAlias = Literal["answered", "answered_with_tools", "interrupted", "failed"]

# ---- facts


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The context frame arrived: the caller is waiting."""


@dataclass(frozen=True, slots=True)
class AttemptOpened:
    """The attempt's request is on its way to the provider."""

    attempt: int


@dataclass(frozen=True, slots=True)
class UsableToken:
    """The attempt produced answer text."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ToolsCalled:
    """The attempt produced complete tool calls: what it still says is not needed to go on."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SentenceReady:
    """The attempt has completed a unit that the text-to-speech would speak."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """The attempt is writing what is not handed on yet: reasoning, or the arguments of a tool call.

    Parameters:
        attempt: The attempt's number.
        at: When the latest of it came; None where its stream cannot be read and it may be writing.
    """

    attempt: int
    at: float | None


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The attempt's answer ended as the provider meant it to."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt ended in an error."""

    attempt: int
    error: AttemptError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The caller spoke, the turn was withdrawn, or the pipeline is shutting down."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time named by ``wake_at`` has come."""


@dataclass(frozen=True, slots=True)
class HedgeEligibilityChanged:
    """Who is to get no hedge from now on, in place of whoever it was before.

    Parameters:
        reasons: By provider, why, for a person to read.
        reluctance: By provider, how little a request in another's place should go to it: the
            least reluctant is asked. Who is not in it is well, as 0.
    """

    reasons: Mapping[str, str]
    reluctance: Mapping[str, int] = field(default_factory=dict[str, int])


AttemptEvent: TypeAlias = (
    AttemptOpened
    | UsableToken
    | ToolsCalled
    | SentenceReady
    | Progressed
    | AttemptFinished
    | AttemptFailed
)
Event: TypeAlias = TurnStarted | AttemptEvent | Interrupted | TimerFired | HedgeEligibilityChanged

# ---- orders


@dataclass(frozen=True, slots=True)
class Launch:
    """Send the turn to a provider.

    Parameters:
        attempt: The attempt's number within the turn, from 0.
        provider: The provider's name.
        reason: Why now.
        detail: What the launch rule said, if it was asked.
    """

    attempt: int
    provider: str
    reason: LaunchReason
    detail: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Release this attempt's answer, what is buffered at once and the rest as it comes."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The committed answer will not go on: let out what is whole of it, and forget the rest."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Continue:
    """The committed answer broke off; go on with this attempt's, repeating nothing."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Close this attempt's request at the provider."""

    attempt: int
    cause: CancelCause


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing is left to try. Before a commit the turn has failed, after it the answer ends early.

    Parameters:
        errors: One ``(provider, error)`` an attempt that failed, in the order of their launch.
    """

    errors: tuple[tuple[str, AttemptError], ...]


Command: TypeAlias = Launch | Commit | StreamBroken | Continue | Cancel | Fail

# ---- what a race is given


CommitOn: TypeAlias = Literal["first_sentence", "first_token"]
"""What an attempt must have to win: a speakable unit, or a usable token."""

FillerCause: TypeAlias = Literal["slow", "tool", "failing"]
"""Why an answer is late: it is slow, a tool runs, or whoever has been asked so far has failed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the lineup: one request that may be made.

    Parameters:
        provider: The provider's name.
        stall_secs: The silence after which it is worth asking somebody else; None is never.
        timeout_secs: The silence after which it counts as failed; None is never.
        slowest_secs: How long its first token may take and still be usual, as far as is known:
            before that it is slow and not silent.
        retries: How often it may be made again after it has failed in passing.
    """

    provider: str
    stall_secs: float | None = None
    timeout_secs: float | None = None
    slowest_secs: float = 0.0
    retries: int = 0


# ---- what a launch rule is asked


@dataclass(frozen=True, slots=True)
class InFlight:
    """An attempt that has neither ended nor been committed.

    Parameters:
        provider: The provider's name.
        launched_at: When it was launched, in the race's clock.
        last_token_at: When its latest usable token came, or None if none has come.
        first_token_at: When its first usable token came, or None if none has come.
    """

    provider: str
    launched_at: float
    last_token_at: float | None
    first_token_at: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn that nobody has answered yet, and that has another attempt to spare.

    Parameters:
        started_at: When the turn started.
        in_flight: The live attempts in the order of their launch; never empty.
        next_provider: Whom a further attempt would ask.
        now: The time, on the race's clock.
    """

    started_at: float
    in_flight: tuple[InFlight, ...]
    next_provider: str
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class LaunchDecision:
    """When to launch the next attempt, should nothing happen until then.

    Parameters:
        at: A time on the race's clock; None is never.
        reason: Why then, for a person to read.
        is_put_off: Whether it should be sent already, and cannot be just now. It may be possible at
            any time, so ask again soon; at the named time it replaces what has been silent so long.
        ask_again_at: When the decision may be another, should nothing happen until then; None is
            never.
    """

    at: float | None
    reason: str
    is_put_off: bool = False
    ask_again_at: float | None = None


class LaunchRule(Protocol):
    """Decides when a turn that is still waiting is worth another request."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Say when to launch the next attempt.

        Args:
            waiting: The turn as it stands.
        """
        ...
