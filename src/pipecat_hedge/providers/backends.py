"""Identifies what has latency statistics, and the key of the statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MOST_PROVIDERS = 256
"""Most keys in each map by provider and model; the least recently used one is dropped. A key
takes up to about 150 KB of memory and 50 KB of a file."""

SIMULATED_HEADER = "x-pipecat-hedge-simulated"
"""The header of the simulator's responses, whose statistics are not kept."""

Measures: TypeAlias = Literal["first_token", "whole_answer", "wait", "transcript", "speech"]

_KINDS: dict[Measures, str] = {
    "first_token": "",
    "whole_answer": " | whole answers",
    "wait": " | waits",
    "transcript": " | transcripts",
    "speech": " | speech",
}


@dataclass(frozen=True, slots=True)
class Backend:
    """A provider and model with latency statistics.

    Parameters:
        provider: The provider's name.
        model: Its model; None if unknown.
        usd_per_mtok: Price in US dollars per million ``(input, output)`` tokens; None if unknown.
        measures: What is timed: the first token; the whole answer, as of a one-shot inference; the
            caller's wait for an LLM or a tool; a recogniser's last transcript of an utterance; or
            the first audible sound of a voice.
        record_key: The key of its record; see ``key_of``.
        key: The key of its statistics.
    """

    provider: str
    model: str | None = None
    usd_per_mtok: tuple[float, float] | None = None
    measures: Measures = "first_token"
    record_key: str = field(init=False, compare=False, repr=False)
    key: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Build the keys once: a turn reads them some thirty times."""
        object.__setattr__(self, "record_key", key_of(self.provider, self.model))
        object.__setattr__(self, "key", self.record_key + _KINDS[self.measures])


def key_of(provider: str, model: str | None) -> str:
    """Return the key of a provider and model."""
    return f"{provider} | {model or ''}"


def record_key_of(key: str) -> str:
    """Return the key of a record from that of any of its statistics."""
    return " | ".join(key.split(" | ")[:2])
