"""The ways a provider fails, as a table: name, what happens, one line of documentation.

Each fault is a shape: a function from a `Scene` to steps. The table is the only list of faults; the
command line, the error messages and the documentation are made from it.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipecat_hedge.tools.simulator.timeline import (
    Cut,
    End,
    Garbage,
    Headers,
    InBandError,
    KeepAlive,
    Refusal,
    Reset,
    Scene,
    Silence,
    Step,
    Text,
    Thought,
    content,
    ending,
    healthy,
    last_token_secs,
    opening,
    tokenize,
    tokens,
)

_SENTENCE_ENDS = (".", "!", "?")
# What never ends must not flood the client when it is asked to come "now".
_MIN_INTERVAL_SECS = 0.001


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail.

    Parameters:
        name: What ``fault=`` calls it.
        shape: The steps of a response with this fault.
        summary: What the client sees, in one line.
        is_failure: Whether the ledger calls a request that was played to its end ``failed``.
        delay_secs: The fault's own delay if ``delay=`` does not set one; 0 for faults without.
        wants_tool: Whether the model should call a tool, whatever the caller said.
    """

    name: str
    shape: Callable[[Scene], Iterator[Step]]
    summary: str
    is_failure: bool = True
    delay_secs: float = 0.0
    wants_tool: bool = False


def strike_after(scene: Scene) -> int:
    """How many tokens are sent before a stall or a cut.

    In the middle of the second sentence, so that something was already spoken; of the first if
    there is no other.
    """
    if scene.after_tokens is not None:
        return scene.after_tokens
    if scene.reply.tool is not None:
        return 1 + len(scene.reply.tool.fragments) // 2
    words = scene.reply.tokens
    ends = [n + 1 for n, word in enumerate(words) if word.rstrip().endswith(_SENTENCE_ENDS)]
    start = ends[0] if len(ends) > 1 else 0
    stop = ends[1] if len(ends) > 1 else len(words)
    return (start + stop) // 2


def _status(status: int) -> Callable[[Scene], Iterator[Step]]:
    def shape(scene: Scene) -> Iterator[Step]:
        yield Step(scene.headers_secs, Refusal(status))

    return shape


def _reset(scene: Scene) -> Iterator[Step]:
    yield Step(scene.headers_secs, Reset())


def _hang(scene: Scene) -> Iterator[Step]:
    yield Step(scene.headers_secs, Silence())


def _headers_then_silence(scene: Scene) -> Iterator[Step]:
    yield Step(scene.headers_secs, Headers())
    yield Step(scene.headers_secs, Silence())


def _keepalives(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    interval_secs = max(scene.delay_secs, _MIN_INTERVAL_SECS)
    for number in itertools.count(1):
        yield Step(scene.headers_secs + number * interval_secs, KeepAlive())


def _begun(scene: Scene) -> tuple[list[Step], float]:
    """The opening and the tokens before the fault, and the time of the next one."""
    after = strike_after(scene)
    sent = list(itertools.islice(content(scene), after))
    return [*opening(scene), *sent], scene.ttft_secs + len(sent) * scene.interval_secs


def _first_or_asked(scene: Scene) -> tuple[list[Step], float]:
    """Like `_begun`, but the fault strikes instead of the first token unless ``after=`` is set."""
    sent = list(itertools.islice(content(scene), scene.after_tokens or 0))
    return [*opening(scene), *sent], scene.ttft_secs + len(sent) * scene.interval_secs


def _in_band(status: int | None) -> Callable[[Scene], Iterator[Step]]:
    def shape(scene: Scene) -> Iterator[Step]:
        steps, at_secs = _first_or_asked(scene)
        yield from steps
        yield Step(at_secs, InBandError(status))
        yield Step(at_secs, End())

    return shape


def _malformed_sse(scene: Scene) -> Iterator[Step]:
    steps, at_secs = _first_or_asked(scene)
    yield from steps
    yield Step(at_secs, Garbage())
    yield Step(at_secs, End())


def _empty(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    yield from ending(scene, scene.ttft_secs)


def _whitespace(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    for number, blank in enumerate((" ", "\n", "  ")):
        at_secs = scene.ttft_secs + number * scene.interval_secs
        yield Step(at_secs, Text(blank, is_answer=False))
    yield from ending(scene, scene.ttft_secs + 2 * scene.interval_secs)


_REASONING = tokenize(" The caller asks about the restaurant, so I should think about it.")


def _reasoning_forever(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    interval_secs = max(scene.interval_secs, _MIN_INTERVAL_SECS)
    for number, word in enumerate(itertools.cycle(_REASONING)):
        yield Step(scene.ttft_secs + number * interval_secs, Thought(word))


def _think_tags(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    inside = ["<think>", *_REASONING, "</think>", "\n\n"]
    events = [*(Text(word, is_answer=False) for word in inside), *tokens(scene.reply)]
    for number, event in enumerate(events):
        yield Step(scene.ttft_secs + number * scene.interval_secs, event)
    yield from ending(scene, scene.ttft_secs + (len(events) - 1) * scene.interval_secs)


def _dribble(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    events = tokens(scene.reply)
    for number, event in enumerate(events):
        yield Step(scene.ttft_secs + number * scene.delay_secs, event)
    yield from ending(scene, scene.ttft_secs + max(0, len(events) - 1) * scene.delay_secs)


def _stall(scene: Scene) -> Iterator[Step]:
    steps, at_secs = _begun(scene)
    yield from steps
    yield Step(at_secs, Silence())


def _cut(scene: Scene) -> Iterator[Step]:
    steps, at_secs = _begun(scene)
    yield from steps
    yield Step(at_secs, Cut())


def _slow_close(scene: Scene) -> Iterator[Step]:
    yield from opening(scene)
    yield from content(scene)
    yield from ending(scene, last_token_secs(scene), linger_secs=scene.delay_secs)


def _slow_headers(scene: Scene) -> Iterator[Step]:
    for step in healthy(scene):
        yield Step(step.at_secs + scene.delay_secs, step.act)


_STATUSES = {
    400: "the request is called invalid",
    401: "the key is called invalid",
    402: "the account is called out of credit",
    403: "the key may not use this model",
    404: "the model is called unknown",
    422: "the request is called unprocessable",
    429: "too many requests, with a retry-after header (retry_after=, default 1)",
    500: "internal error",
    503: "unavailable",
    529: "overloaded",
}

_FAULTS = (
    *(Fault(str(status), _status(status), text) for status, text in _STATUSES.items()),
    Fault("reset", _reset, "the connection is reset (TCP RST) before a byte is sent"),
    Fault("hang", _hang, "the request is accepted and nothing is ever sent"),
    Fault("headers_then_silence", _headers_then_silence, "status 200 and headers, then nothing"),
    Fault(
        "keepalives",
        _keepalives,
        "role-only deltas, comments or pings for ever, one every delay= (default 0.5)",
        delay_secs=0.5,
    ),
    Fault(
        "error_in_band",
        _in_band(None),
        "status 200, then an error event instead of the first token (after= tokens if set)",
    ),
    Fault(
        "busy_in_band",
        _in_band(429),
        "the same, and the error is that of too many requests",
    ),
    Fault(
        "malformed_sse",
        _malformed_sse,
        "status 200, then an event that is not JSON instead of the first token (or after= tokens)",
    ),
    Fault("empty", _empty, "a proper end without any content", is_failure=False),
    Fault("whitespace", _whitespace, "a proper end after blank text only", is_failure=False),
    Fault("reasoning_forever", _reasoning_forever, "reasoning that never becomes an answer"),
    Fault(
        "think_tags",
        _think_tags,
        "inline <think>…</think> before the answer",
        is_failure=False,
    ),
    Fault(
        "dribble",
        _dribble,
        "the first token on time, then one every delay= (default 2)",
        is_failure=False,
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
        is_failure=False,
        delay_secs=5.0,
    ),
    Fault(
        "slow_headers",
        _slow_headers,
        "everything, headers included, comes delay= later (default 5)",
        is_failure=False,
        delay_secs=5.0,
    ),
)

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _FAULTS}
"""Every fault by its name."""
