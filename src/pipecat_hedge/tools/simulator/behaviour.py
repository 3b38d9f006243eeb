"""How one request is to be served, read from its model name: ``profile?key=value&key=value``.

The same with ``@`` and commas, ``profile@key=value,key=value``, for places where ``?`` and ``&``
cannot stand: a Gemini model is part of the URL's path, and Google's SDK refuses both characters.
Either spelling works on every wire.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from pipecat_hedge.policy.profiles import PROFILES, LatencyProfile
from pipecat_hedge.tools.simulator.faults import FAULTS, Fault

# A separator counts only before a key, so that answers and JSON may contain it.
_SEPARATOR = re.compile(r"[&,](?=[a-z_]+=)")
_PROFILE_ENDS = re.compile(r"[?@]")


class BehaviourError(ValueError):
    """A model name that asks for something unknown.

    Args:
        message: Names the field and what it may be.
        status: The HTTP status that a provider would give: 404 for an unknown model, else 400.
    """

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one request is served.

    Parameters:
        profile: Draws the time to first token and paces the tokens.
        ttft: Seconds to the first token, instead of a draw.
        headers: Seconds to status and headers; half the time to first token if None.
        tps: Tokens per second, instead of the profile's.
        fault: The way to fail, if any.
        rate: The share of requests that get the fault.
        after: Tokens sent before the fault strikes; None leaves it to the fault.
        delay: The fault's own delay in seconds; None leaves it to the fault.
        retry_after: Seconds in the ``retry-after`` header; None sends one with 429 only.
        requests_left: Requests that the headers say may still be made; None tells nothing of them.
        tokens_left: Tokens that they say may still be sent; None tells nothing of them.
        reset: In how many seconds they say that both limits are whole again.
        answer: Said instead of the scripted answer.
        tool: A tool called instead of an answer.
        args: Arguments of that call.
        slow: All times of the answer are so many times as long.
    """

    profile: LatencyProfile
    ttft: float | None = None
    headers: float | None = None
    tps: float | None = None
    fault: Fault | None = None
    rate: float = 1.0
    after: int | None = None
    delay: float | None = None
    retry_after: float | None = None
    requests_left: int | None = None
    tokens_left: int | None = None
    reset: float = 1.0
    answer: str | None = None
    tool: str | None = None
    args: dict[str, Any] | None = None
    slow: float = 1.0


def _secs(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return value


def _tokens_per_sec(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def _factor(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _fault(text: str) -> Fault:
    if text not in FAULTS:
        raise BehaviourError(f"fault: unknown fault {text!r}; known faults: {', '.join(FAULTS)}")
    return FAULTS[text]


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


KEYS: dict[str, tuple[Callable[[str], Any], str]] = {
    "ttft": (_secs, "seconds to the first token, 0 or more"),
    "headers": (_secs, "seconds to the headers, 0 or more"),
    "tps": (_tokens_per_sec, "tokens per second, more than 0 (inf: all at once)"),
    "fault": (_fault, "the name of a fault"),
    "rate": (_share, "share of requests that get the fault, from 0 to 1"),
    "after": (_count, "tokens before the fault, a whole number, 0 or more"),
    "delay": (_secs, "the fault's own delay in seconds, 0 or more"),
    "retry_after": (_secs, "seconds in the retry-after header, 0 or more"),
    "requests_left": (_count, "requests that the headers say are left, a whole number, 0 or more"),
    "tokens_left": (_count, "tokens that the headers say are left, a whole number, 0 or more"),
    "reset": (_secs, "seconds until the headers say that both are whole again, default 1"),
    "answer": (_filled, "the text to say, URL-encoded, not blank"),
    "tool": (_filled, "the name of a tool to call, not blank"),
    "args": (_json_object, "a JSON object, the arguments of that call"),
    "slow": (_factor, "a factor on all times of the answer, more than 0"),
}
"""What may follow the profile: how a value is read, and what it may be."""


@lru_cache(maxsize=1024)
def parse_model(model: str) -> Behaviour:
    """Read a model name.

    Args:
        model: ``profile``, ``profile?key=value&…`` or ``profile@key=value,…``.

    Raises:
        BehaviourError: If the profile, a key or a value is unknown; names the field and the known
            ones.
    """
    name, *rest = _PROFILE_ENDS.split(model, maxsplit=1)
    if name not in PROFILES:
        known = ", ".join(PROFILES)
        raise BehaviourError(f"model: unknown profile {name!r}; known profiles: {known}", 404)
    behaviour = Behaviour(PROFILES[name])
    return override(behaviour, rest[0]) if rest else behaviour


def override(behaviour: Behaviour, keys: str) -> Behaviour:
    """The behaviour with some of its fields replaced.

    Args:
        behaviour: Where to start from.
        keys: ``key=value&key=value``, values URL-encoded.

    Raises:
        BehaviourError: If a key or a value is unknown; names the field and what it may be.
    """
    texts: dict[str, str] = {}
    for pair in _SEPARATOR.split(keys):
        key, equals, text = pair.partition("=")
        if key not in KEYS or not equals:
            raise BehaviourError(f"{key or 'model'}: unknown key; known keys: {', '.join(KEYS)}")
        texts[key] = unquote(text)
    return replace(behaviour, **read_keys(texts))


def read_keys(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a behaviour that keys and their values name.

    Args:
        texts: Known keys, with their values as text.

    Raises:
        BehaviourError: If a value is none; names the field and what it may be.
    """
    fields: dict[str, Any] = {}
    for key, text in texts.items():
        read, meaning = KEYS[key]
        try:
            fields[key] = read(text)
        except BehaviourError:
            raise
        except ValueError:
            raise BehaviourError(f"{key}: expected {meaning}, got {text!r}") from None
    return fields
