"""What a provider does and when, as values: steps with times counted from the request's beginning.

Nothing here writes or waits. A healthy answer is `healthy`; the ways to go wrong are in `faults`.
Steps come in rising order of time and may be endless; whoever plays them stops when the client
leaves.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream's first event, before any content: a role-only delta, ``message_start``."""


@dataclass(frozen=True, slots=True)
class Text:
    """One token of answer text.

    Parameters:
        text: The token with the blank before it.
        is_answer: False for text that is not meant to be heard, such as ``<think>``.
    """

    text: str
    is_answer: bool = True


@dataclass(frozen=True, slots=True)
class Thought:
    """One token of reasoning, apart from the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins.

    Parameters:
        name: The tool's name.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """One fragment of a tool call's arguments.

    Parameters:
        text: Part of a JSON object.
    """

    text: str


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Something that is not content: an empty delta, a ping, a comment."""


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error event inside a stream that began with status 200.

    Parameters:
        status: The HTTP status in whose words it speaks; None for the provider's own choice.
    """

    status: int | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """An event whose data is not JSON."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The stop reason, usage and terminator.

    Parameters:
        reason: ``stop``, ``length`` or ``tool_calls``; each wire has words of its own for these.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Headers:
    """Status 200 and the response's headers."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error status with the wire's own error body, instead of an answer.

    Parameters:
        status: The HTTP status.
    """

    status: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (TCP RST)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed without the end of the response."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing more is sent and the connection stays open."""


@dataclass(frozen=True, slots=True)
class End:
    """The response ends as it should."""


Event = (
    Opened
    | Text
    | Thought
    | ToolStart
    | ToolArguments
    | KeepAlive
    | InBandError
    | Garbage
    | Finished
)
Signal = Headers | Refusal | Reset | Cut | Silence | End


@dataclass(frozen=True, slots=True)
class Step:
    """One act at its time.

    Parameters:
        at_secs: Seconds since the request began to be served.
        act: What the provider sends or does.
    """

    at_secs: float
    act: Event | Signal


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model makes.

    Parameters:
        name: The tool's name.
        fragments: Its arguments, a JSON object, as they are streamed.
    """

    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model has to say.

    Parameters:
        tokens: The answer; joined they are the text.
        tool: A tool call, instead of text.
        is_truncated: The answer reached ``max_tokens``.
    """

    tokens: tuple[str, ...] = ()
    tool: ToolCall | None = None
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that shapes one response.

    Parameters:
        reply: What the model has to say.
        ttft_secs: When the first token is sent.
        headers_secs: When status, headers and the opening event are sent.
        interval_secs: Between one token and the next.
        after_tokens: Tokens before a fault strikes; None leaves it to the fault.
        delay_secs: The fault's own delay: between dribbled tokens, before late headers, before a
            late end.
    """

    reply: Reply
    ttft_secs: float
    headers_secs: float
    interval_secs: float
    after_tokens: int | None = None
    delay_secs: float = 0.0


def tokenize(text: str) -> tuple[str, ...]:
    """A text as tokens: words, each with the blank before it. Joined they are the text again."""
    return tuple(re.findall(r"\s*\S+|\s+$", text))


def opening(scene: Scene) -> Iterator[Step]:
    """Status, headers and the event before any content."""
    yield Step(scene.headers_secs, Headers())
    yield Step(scene.headers_secs, Opened())


def content(scene: Scene) -> Iterator[Step]:
    """The answer's tokens, or its tool call, without the end."""
    for number, event in enumerate(tokens(scene.reply)):
        yield Step(scene.ttft_secs + number * scene.interval_secs, event)


def ending(scene: Scene, at_secs: float, *, linger_secs: float = 0.0) -> Iterator[Step]:
    """Stop reason and usage, then the end of the response ``linger_secs`` later."""
    reply = scene.reply
    reason = "length" if reply.is_truncated else "tool_calls" if reply.tool else "stop"
    yield Step(at_secs, Finished(reason))
    yield Step(at_secs + linger_secs, End())


def tokens(reply: Reply) -> list[Event]:
    """A reply as the events that carry it, one a token."""
    if reply.tool is None:
        return [Text(token) for token in reply.tokens]
    return [ToolStart(reply.tool.name), *map(ToolArguments, reply.tool.fragments)]


def last_token_secs(scene: Scene) -> float:
    """When the last token of a healthy answer is sent."""
    return scene.ttft_secs + max(0, len(tokens(scene.reply)) - 1) * scene.interval_secs


def healthy(scene: Scene) -> Iterator[Step]:
    """An answer as it should be."""
    yield from opening(scene)
    yield from content(scene)
    yield from ending(scene, last_token_secs(scene))
