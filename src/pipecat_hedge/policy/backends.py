"""Of whom statistics are kept, and under which key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["MOST_PROVIDERS", "Backend", "Measures", "key_of"]

MOST_PROVIDERS = 256
"""Keys in each map by provider and model, the least recently used dropped: each takes up to some
150 KB of memory and 50 KB of a file."""

Measures: TypeAlias = Literal["first_token", "whole_answer", "wait"]

_KINDS: dict[Measures, str] = {
    "first_token": "",
    "whole_answer": " | whole answers",
    "wait": " | waits",
}


@dataclass(frozen=True, slots=True)
class Backend:
    """Of whom statistics are kept.

    Parameters:
        provider: The provider's name.
        model: Its model, or None if that is not known.
        usd_per_mtok: Its price in US dollars per million ``(input, output)`` tokens, or None.
        measures: What counts: the first token; the whole answer, as of a one-shot inference; or how
            long a caller waits for the provider, whatever that is behind it.
    """

    provider: str
    model: str | None = None
    usd_per_mtok: tuple[float, float] | None = None
    measures: Measures = "first_token"

    @property
    def key(self) -> str:
        """What its statistics are kept under."""
        return key_of(self.provider, self.model) + _KINDS[self.measures]


def key_of(provider: str, model: str | None) -> str:
    """What is known of a provider is kept under.

    Args:
        provider: Its name.
        model: Its model, or None if that is not known.
    """
    return f"{provider} | {model or ''}"
