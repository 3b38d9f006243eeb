"""Parses a model name into a request's behaviour: ``profile?key=value&key=value``.

``profile@key=value,key=value`` is equivalent, for places where ``?`` and ``&`` are not allowed: a
Gemini model is part of the URL's path, and Google's SDK rejects both characters.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic import ValidationError as PydanticError

from pipecat_hedge.providers import PROFILES, LatencyProfile
from pipecat_hedge.tools.simulator.script import (
    Prompt,
    booking_arguments,
    reply_to,
    spoken,
    tool_call,
)
from pipecat_hedge.tools.simulator.timeline import (
    FAULTS,
    SPEECH_FAULTS,
    VOICE_FAULTS,
    Fault,
    Reply,
    Scene,
    Step,
    healthy,
)

# A separator counts only before a key, so that answers and JSON may contain it.
_SEPARATOR = re.compile(r"[&,](?=[a-z_]+=)")
_PROFILE_END = re.compile(r"[?@]")
# Recognisers and voices have no published latencies: they answer as the profile "fixed".
_SPEECH = re.compile(r"nova|flux|whisper|transcribe|sonic|eleven|aura|tts")
_HEADERS_SHARE = 0.5  # assumption: headers arrive halfway to the first token
_RETRY_AFTER_SECS = 1.0
ALL_FAULTS = {**FAULTS, **SPEECH_FAULTS, **VOICE_FAULTS}
"""The faults of models, recognisers and voices; one that a wire cannot have does nothing there."""


class BehaviourError(ValueError):
    """A model name with an unknown profile, key or value.

    Args:
        message: Names the field and its allowed values.
        status: The HTTP status of a provider: 404 for an unknown model, else 400.
    """

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def _fault(value: Any) -> Any:
    if isinstance(value, str) and value in ALL_FAULTS:
        return ALL_FAULTS[value]
    raise ValueError


def _parsed_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


_Secs = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]
_Text = Annotated[str, StringConstraints(pattern=r"\S")]
_Object = Annotated[dict[str, Any], BeforeValidator(_parsed_json)]
_Trace = Annotated[
    tuple[Annotated[tuple[_Secs, ...], Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(_parsed_json),
]
_Fault = Annotated[Fault, BeforeValidator(_fault)]


def _key(default: Any, meaning: str, **limits: Any) -> Any:
    return Field(default, description=meaning, **limits)


class Behaviour(BaseModel):
    """How one request is served: a latency profile, and the keys that a model name may set.

    None leaves a key to the profile, the fault or the script.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    profile: LatencyProfile
    ttft: _Secs | None = _key(None, "seconds to the first token, 0 or more")
    headers: _Secs | None = _key(None, "seconds to the headers, 0 or more")
    tps: float | None = _key(None, "tokens per second, more than 0 (inf: all at once)", gt=0)
    fault: _Fault | None = _key(None, "the name of a fault")
    rate: float = _key(1.0, "share of requests that get the fault, from 0 to 1", ge=0, le=1)
    after: _Count | None = _key(None, "tokens before the fault, a whole number, 0 or more")
    delay: _Secs | None = _key(None, "the fault's own delay in seconds, 0 or more")
    retry_after: _Secs | None = _key(None, "seconds in the retry-after header, 0 or more")
    requests_left: _Count | None = _key(
        None, "remaining requests in the rate-limit headers, a whole number, 0 or more"
    )
    tokens_left: _Count | None = _key(
        None, "remaining tokens in the rate-limit headers, a whole number, 0 or more"
    )
    reset: _Secs = _key(1.0, "seconds until the rate limit is reset, in its headers (default 1)")
    answer: _Text | None = _key(None, "the text to answer, URL-encoded, not blank")
    tool: _Text | None = _key(None, "the name of a tool to call, not blank")
    args: _Object | None = _key(None, "a JSON object, the arguments of that call")
    region: _Text | None = _key(None, "the region that conditions can be set for, not blank")
    trace: _Trace | None = _key(
        None,
        "a JSON list of turns, each a list of seconds to the first tokens of its requests (further "
        "ones have the last)",
    )
    turn: _Count | None = _key(
        None, "the request's turn in the trace, a whole number, 0 or more (default: the next one)"
    )
    slow: float = _key(
        1.0, "a factor on all times of the answer, more than 0", gt=0, allow_inf_nan=False
    )

    @property
    def limits_left(self) -> dict[str, int]:
        """The remaining ``requests`` and ``tokens`` in the rate-limit headers, where set."""
        left = {"requests": self.requests_left, "tokens": self.tokens_left}
        return {kind: count for kind, count in left.items() if count is not None}


KEYS = {
    name: field.description or ""
    for name, field in Behaviour.model_fields.items()
    if name != "profile"
}
"""The keys that may follow the profile, each with its allowed values."""


@lru_cache(maxsize=1024)
def parse_model(model: str) -> Behaviour:
    """Parse a model name.

    Args:
        model: ``profile``, ``profile?key=value&…`` or ``profile@key=value,…``.

    Raises:
        BehaviourError: If the profile, a key or a value is unknown; names the known ones.
    """
    name, *rest = _PROFILE_END.split(model, maxsplit=1)
    profile = "fixed" if name not in PROFILES and _SPEECH.search(name) else name
    if profile not in PROFILES:
        known = ", ".join(PROFILES)
        raise BehaviourError(f"model: unknown profile {name!r}; known profiles: {known}", 404)
    behaviour = Behaviour(profile=PROFILES[profile])
    return override(behaviour, rest[0]) if rest else behaviour


def override(behaviour: Behaviour, keys: str) -> Behaviour:
    """Return the behaviour with some fields replaced.

    Args:
        behaviour: The behaviour to start from.
        keys: ``key=value&key=value``, values URL-encoded.

    Raises:
        BehaviourError: If a key or a value is unknown; names the known ones.
    """
    values: dict[str, str] = {}
    for pair in _SEPARATOR.split(keys):
        key, equals, text = pair.partition("=")
        if not equals:
            raise unknown_key(key)
        values[key] = unquote(text)
    return behaviour.model_copy(update=read_keys(values))


def read_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check keys and their values, as text or as JSON values.

    Returns:
        The fields of a `Behaviour` that they set.

    Raises:
        BehaviourError: If a key or a value is unknown; names the known ones.
    """
    for key, value in values.items():
        if key not in KEYS:
            raise unknown_key(key)
        if value is None:
            raise BehaviourError(f"{key}: expected {KEYS[key]}, got null")
    try:
        checked = Behaviour(profile=PROFILES["fixed"], **values)
    except PydanticError as error:
        key = str(error.errors()[0]["loc"][0])
        if key == "fault":
            known = ", ".join(ALL_FAULTS)
            message = f"fault: unknown fault {values[key]!r}; known faults: {known}"
        else:
            message = f"{key}: expected {KEYS[key]}, got {values[key]!r}"
        raise BehaviourError(message) from None
    return {key: getattr(checked, key) for key in values}


def unknown_key(key: str, *others: str) -> BehaviourError:
    """Return the error for an unknown key; ``others`` are known besides those of a model name."""
    known = ", ".join((*KEYS, *others))
    return BehaviourError(f"{key or 'model'}: unknown key; known keys: {known}")


def read_conditions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check conditions: a model's keys with text or JSON values, and ``capacity``.

    Returns:
        The fields of a behaviour that they set, and ``capacity`` if given.

    Raises:
        BehaviourError: If a key or a value is unknown; names the known ones.
    """
    if unknown := values.keys() - KEYS.keys() - {"capacity"}:
        raise unknown_key(min(unknown), "capacity")
    fields = read_keys({key: value for key, value in values.items() if key != "capacity"})
    if "capacity" in values:
        try:
            fields["capacity"] = checked_capacity(values["capacity"])
        except ValueError as error:
            raise BehaviourError(str(error)) from None
    return fields


def checked_capacity(capacity: Any) -> int | None:
    """Return the capacity if it is None or a whole number of at least 1.

    Raises:
        ValueError: If it is something else.
    """
    is_count = isinstance(capacity, int) and not isinstance(capacity, bool) and capacity >= 1
    if capacity is not None and not is_count:
        raise ValueError(f"capacity: expected a whole number, 1 or more, or none, got {capacity!r}")
    return capacity


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request will be served.

    Parameters:
        fault: The request's fault, if any.
        steps: The timed steps of the response; may be endless.
        retry_after_secs: The ``retry-after`` header of an error status; None sends none.
    """

    fault: Fault | None
    steps: Iterator[Step]
    retry_after_secs: float | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """What chance decides of a request or an utterance: its latency, and its fault, if any."""

    ttft_secs: float
    fault: Fault | None
    delay_secs: float

    @property
    def fault_name(self) -> str | None:
        """The fault's name."""
        return self.fault.name if self.fault else None


def draw(behaviour: Behaviour, rng: random.Random) -> Drawn:
    """Draw the same two numbers with or without a fault, so that it does not shift later draws."""
    drawn_secs = behaviour.profile.sample(rng)
    fault = behaviour.fault if rng.random() < behaviour.rate else None
    return Drawn(
        _first_set(behaviour.ttft, drawn_secs),
        fault,
        _first_set(behaviour.delay, fault.delay_secs if fault else 0.0),
    )


def plan(behaviour: Behaviour, prompt: Prompt, rng: random.Random) -> Plan:
    """Decide how to serve a request.

    Args:
        behaviour: The model name's behaviour.
        prompt: The request.
        rng: For `draw`.
    """
    drawn = draw(behaviour, rng)
    fault, ttft_secs = drawn.fault, drawn.ttft_secs
    headers_secs = _first_set(behaviour.headers, ttft_secs * _HEADERS_SHARE)
    scene = Scene(
        reply=_reply(behaviour, prompt, fault),
        ttft_secs=ttft_secs,
        headers_secs=min(headers_secs, ttft_secs),
        interval_secs=1 / (behaviour.tps or behaviour.profile.tokens_per_sec),
        after_tokens=behaviour.after,
        delay_secs=drawn.delay_secs,
    )
    retry_after_secs = behaviour.retry_after
    if retry_after_secs is None and fault is not None and fault.name == "429":
        retry_after_secs = _RETRY_AFTER_SECS
    steps = fault.shape(scene) if fault else healthy(scene)
    if behaviour.slow != 1:
        steps = (Step(step.at_secs * behaviour.slow, step.act) for step in steps)
    return Plan(fault, steps, retry_after_secs)


def _first_set(value: float | None, default: float) -> float:
    return default if value is None else value


def _reply(behaviour: Behaviour, prompt: Prompt, fault: Fault | None) -> Reply:
    if behaviour.tool is not None and not prompt.has_tool_result:
        return Reply(tool=tool_call(behaviour.tool, behaviour.args or {}))
    if prompt.transcript is not None:
        return spoken(behaviour.answer or prompt.transcript, None)
    scripted = reply_to(prompt)
    if fault is not None and fault.wants_tool:
        name = prompt.tools[0] if prompt.tools else "book_table"
        return Reply(tool=scripted.tool or tool_call(name, booking_arguments(prompt.user_texts)))
    if behaviour.answer is not None:
        return spoken(behaviour.answer, prompt.max_tokens)
    return scripted
