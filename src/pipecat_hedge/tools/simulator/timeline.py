"""A provider's timed steps, healthy or with a fault, as values. Pure.

Steps are ordered by time and may be endless. `FAULTS` is the only list of faults: the command's
help, the error messages and the documentation use it.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

_SENTENCE_ENDS = (".", "!", "?")
_MIN_INTERVAL_SECS = 0.001  # endless faults must not flood the client


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream's first event, before any content: a role-only delta, ``message_start``."""


@dataclass(frozen=True, slots=True)
class Text:
    """One token of answer text, with its leading blank.

    Parameters:
        text: The token.
        is_answer: False for text that is not spoken, such as ``<think>``.
    """

    text: str
    is_answer: bool = True


@dataclass(frozen=True, slots=True)
class Thought:
    """One token of reasoning, separate from the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The beginning of a tool call."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """One fragment of a tool call's arguments, a JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """An event without content: an empty delta, a ping, a comment."""


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error event inside a stream that began with status 200.

    Parameters:
        status: The HTTP status of the error; None for the protocol's usual one.
    """

    status: int | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """An event whose data is not JSON."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The stop reason, usage and terminator.

    Parameters:
        reason: ``stop``, ``length`` or ``tool_calls``.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """An error status instead of an answer."""

    status: int


class Signal(Enum):
    """An action of the provider on the connection, other than sending events."""

    HEADERS = auto()
    """Sends status 200 and the headers."""
    END = auto()
    """Ends the response properly."""
    SILENCE = auto()
    """Sends nothing more and leaves the connection open."""
    CUT = auto()
    """Closes the connection without the end of the response."""
    RESET = auto()
    """Resets the connection (TCP RST)."""


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


@dataclass(frozen=True, slots=True)
class Step:
    """One action and its time, in seconds since serving began."""

    at_secs: float
    act: Event | Signal | ErrorStatus


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, with its arguments in the fragments that are streamed."""

    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer.

    Parameters:
        tokens: The answer; joined they are the text.
        tool: A tool call, instead of text.
        is_truncated: Whether the answer reached ``max_tokens``.
    """

    tokens: tuple[str, ...] = ()
    tool: ToolCall | None = None
    is_truncated: bool = False

    @property
    def events(self) -> list[Event]:
        """The events of the reply, one per token."""
        if self.tool is None:
            return [Text(token) for token in self.tokens]
        return [ToolStart(self.tool.name), *map(ToolArguments, self.tool.fragments)]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that shapes one response.

    Parameters:
        reply: The model's answer.
        ttft_secs: The time of the first token.
        headers_secs: The time of status, headers and the opening event.
        interval_secs: The time between two tokens.
        after_tokens: Tokens before a fault; None leaves it to the fault.
        delay_secs: The fault's own delay.
    """

    reply: Reply
    ttft_secs: float
    headers_secs: float
    interval_secs: float
    after_tokens: int | None = None
    delay_secs: float = 0.0

    def opening(self) -> list[Step]:
        """Return status, headers and the event before any content."""
        acts = (Signal.HEADERS, Opened())
        return [Step(self.headers_secs, act) for act in acts]

    def spaced(self, events: Iterable[Event], interval_secs: float) -> Iterator[Step]:
        """Yield events from the first token's time on, one every ``interval_secs``."""
        for number, event in enumerate(events):
            yield Step(self.ttft_secs + number * interval_secs, event)

    def answer(
        self, events: list[Event], *, interval_secs: float | None = None, linger_secs: float = 0.0
    ) -> Iterator[Step]:
        """Yield a complete response; it ends ``linger_secs`` after its last event."""
        interval_secs = self.interval_secs if interval_secs is None else interval_secs
        reply = self.reply
        reason = "length" if reply.is_truncated else "tool_calls" if reply.tool else "stop"
        last_secs = self.ttft_secs + max(0, len(events) - 1) * interval_secs
        yield from self.opening()
        yield from self.spaced(events, interval_secs)
        yield Step(last_secs, Finished(reason))
        yield Step(last_secs + linger_secs, Signal.END)

    def mid_sentence(self) -> int:
        """Return the tokens up to the middle of the second sentence, or else of the first.

        So a part of the answer has been spoken before a stall or a cut. In a tool call: up to half
        of its arguments.
        """
        if self.reply.tool is not None:
            return 1 + len(self.reply.tool.fragments) // 2
        tokens = self.reply.tokens
        ends = [n + 1 for n, token in enumerate(tokens) if token.rstrip().endswith(_SENTENCE_ENDS)]
        start, stop = (ends[0], ends[1]) if len(ends) > 1 else (0, len(tokens))
        return (start + stop) // 2


Shape = Callable[[Scene], Iterator[Step]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of failure.

    Parameters:
        name: Its name in ``fault=``.
        shape: The steps of a response with this fault.
        summary: The effect on the client, in one line.
        delay_secs: The fault's own delay unless ``delay=`` sets one.
        wants_tool: Whether the model always calls a tool.
    """

    name: str
    shape: Shape
    summary: str
    delay_secs: float = 0.0
    wants_tool: bool = False


def tokenize(text: str) -> tuple[str, ...]:
    """Split a text into words with their leading blanks. Joined they are the text."""
    return tuple(re.findall(r"\s*\S+|\s+$", text))


def healthy(scene: Scene) -> Iterator[Step]:
    """Yield an answer without a fault."""
    return scene.answer(scene.reply.events)


_REASONING = tokenize(" The caller asks about the restaurant, so I should think about it.")


def _at_headers(*acts: Signal | ErrorStatus) -> Shape:
    return lambda scene: iter([Step(scene.headers_secs, act) for act in acts])


def _at_token(*acts: Event | Signal, mid_sentence: bool = False) -> Shape:
    """Send these after ``after=`` tokens; by default in mid-sentence or before the first one."""

    def shape(scene: Scene) -> Iterator[Step]:
        count = scene.after_tokens
        if count is None:
            count = scene.mid_sentence() if mid_sentence else 0
        sent = scene.reply.events[:count]
        at_secs = scene.ttft_secs + len(sent) * scene.interval_secs
        yield from scene.opening()
        yield from scene.spaced(sent, scene.interval_secs)
        yield from (Step(at_secs, act) for act in acts)

    return shape


def _empty(scene: Scene) -> Iterator[Step]:
    return scene.answer([])


def _whitespace(scene: Scene) -> Iterator[Step]:
    return scene.answer([Text(blank, is_answer=False) for blank in (" ", "\n", "  ")])


def _think_tags(scene: Scene) -> Iterator[Step]:
    texts = ("<think>", *_REASONING, "</think>", "\n\n")
    return scene.answer([*(Text(text, is_answer=False) for text in texts), *scene.reply.events])


def _keepalives(scene: Scene) -> Iterator[Step]:
    yield from scene.opening()
    interval_secs = max(scene.delay_secs, _MIN_INTERVAL_SECS)
    for number in itertools.count(1):
        yield Step(scene.headers_secs + number * interval_secs, KeepAlive())


def _reasoning_forever(scene: Scene) -> Iterator[Step]:
    yield from scene.opening()
    thoughts = map(Thought, itertools.cycle(_REASONING))
    yield from scene.spaced(thoughts, max(scene.interval_secs, _MIN_INTERVAL_SECS))


def _reasoning(scene: Scene) -> Iterator[Step]:
    thoughts = map(Thought, itertools.cycle(_REASONING))
    count = int(scene.delay_secs / max(scene.interval_secs, _MIN_INTERVAL_SECS))
    return scene.answer([*itertools.islice(thoughts, count), *scene.reply.events])


def _endless(scene: Scene) -> Iterator[Step]:
    yield from scene.opening()
    tokens = itertools.cycle(scene.reply.events)
    yield from scene.spaced(tokens, max(scene.interval_secs, _MIN_INTERVAL_SECS))


def _dribble(scene: Scene) -> Iterator[Step]:
    return scene.answer(scene.reply.events, interval_secs=scene.delay_secs)


def _slow_close(scene: Scene) -> Iterator[Step]:
    return scene.answer(scene.reply.events, linger_secs=scene.delay_secs)


def _slow_headers(scene: Scene) -> Iterator[Step]:
    return (Step(step.at_secs + scene.delay_secs, step.act) for step in healthy(scene))


def _status(status: int, summary: str) -> Fault:
    return Fault(str(status), _at_headers(ErrorStatus(status)), summary)


_stall = _at_token(Signal.SILENCE, mid_sentence=True)
_cut = _at_token(Signal.CUT, mid_sentence=True)

_FAULTS = (
    _status(400, "invalid request"),
    _status(401, "invalid API key"),
    _status(402, "the account is out of credit"),
    _status(403, "the key may not use this model"),
    _status(404, "unknown model"),
    _status(413, "the request is too large"),
    _status(422, "the request cannot be processed"),
    _status(429, "too many requests, with a retry-after header (retry_after=, default 1)"),
    _status(500, "internal error"),
    _status(503, "unavailable"),
    _status(529, "overloaded"),
    Fault(
        "reset",
        _at_headers(Signal.RESET),
        "the connection is reset (TCP RST) before a byte is sent",
    ),
    Fault("hang", _at_headers(Signal.SILENCE), "the request is accepted and nothing is ever sent"),
    Fault(
        "headers_then_silence",
        _at_headers(Signal.HEADERS, Signal.SILENCE),
        "status 200 and headers, then nothing",
    ),
    Fault(
        "keepalives",
        _keepalives,
        "role-only deltas, comments or pings without end, one every delay= (default 0.5)",
        delay_secs=0.5,
    ),
    Fault(
        "error_in_band",
        _at_token(InBandError(), Signal.END),
        "status 200, then an error event instead of the first token (after= tokens if set)",
    ),
    Fault(
        "busy_in_band",
        _at_token(InBandError(429), Signal.END),
        "the same, and the error is that of too many requests",
    ),
    Fault(
        "malformed_sse",
        _at_token(Garbage(), Signal.END),
        "status 200, then an event that is not JSON instead of the first token (or after= tokens)",
    ),
    Fault("empty", _empty, "a proper end without any content"),
    Fault("whitespace", _whitespace, "a proper end after blank text only"),
    Fault("reasoning_forever", _reasoning_forever, "reasoning that never becomes an answer"),
    Fault("reasoning", _reasoning, "reasoning for delay= (default 2), then the answer", 2.0),
    Fault("endless", _endless, "the answer's tokens again and again, without end"),
    Fault("think_tags", _think_tags, "inline <think>…</think> before the answer"),
    Fault(
        "dribble",
        _dribble,
        "the first token on time, then one every delay= (default 2)",
        delay_secs=2.0,
    ),
    Fault("stall", _stall, "silence in mid-sentence, the connection stays open"),
    Fault("cut", _cut, "the connection is closed in mid-sentence, without an end"),
    Fault(
        "cut_in_tool",
        _cut,
        "the connection is closed in the middle of a tool call's arguments",
        wants_tool=True,
    ),
    Fault(
        "slow_close",
        _slow_close,
        "the whole answer, but the response ends delay= later (default 5)",
        delay_secs=5.0,
    ),
    Fault(
        "slow_headers",
        _slow_headers,
        "everything, headers included, comes delay= later (default 5)",
        delay_secs=5.0,
    ),
)

FAULTS = {fault.name: fault for fault in _FAULTS}
"""Every fault of a model by its name."""

_hang = _at_headers(Signal.SILENCE)


def _half_open(scene: Scene) -> Iterator[Step]:
    """Be silent at once, or after so many words."""
    if scene.after_tokens is None:
        return iter([Step(0.0, Signal.SILENCE)])
    return _at_token(Signal.SILENCE)(scene)


_SPEECH_FAULTS = (
    Fault("late", _slow_headers, "finals come delay= later (default 3)", delay_secs=3.0),
    Fault("never_final", _hang, "interims, and no final"),
    Fault("silent", _hang, "no message about the utterance"),
    Fault(
        "half_open",
        _half_open,
        "from the utterance on audio is accepted, and not even a ping or a close is answered",
    ),
    Fault(
        "stops_reading",
        _hang,
        "no byte is read from the utterance on, for delay= (default: for ever)",
        delay_secs=math.inf,
    ),
    Fault("1008", _cut, "the socket is closed with code 1008 in the middle of the utterance"),
    Fault(
        "two_finals",
        healthy,
        "one half of the utterance in a final of its own, the other delay= later (default 0.3)",
        delay_secs=0.3,
    ),
)

SPEECH_FAULTS = {fault.name: fault for fault in _SPEECH_FAULTS}
"""A streaming recogniser's own faults by name; the shape is that of a single response."""


def _silence_only(scene: Scene) -> Iterator[Step]:
    return scene.answer([Text(token, is_answer=False) for token in scene.reply.tokens])


_VOICE_FAULTS = (
    Fault("silence_only", _silence_only, "audio in which nothing is to be heard"),
    Fault("wrong_context", healthy, "words have the name of the context that was begun before"),
    Fault("no_timestamps", healthy, "words without their times"),
)

VOICE_FAULTS = {fault.name: fault for fault in _VOICE_FAULTS}
"""A voice's own faults by name; it also has those of models, its words being the tokens."""
