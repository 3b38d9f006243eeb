"""How many tokens an attempt took, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.contender import Tally

__all__ = ["Tokens", "count_tokens", "usd"]

CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text; used only where a provider sent no count."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A count.

    Parameters:
        input: Tokens of the prompt, cached ones included.
        output: Tokens produced.
        estimated: Whether either is an estimate.
    """

    input: int
    output: int
    estimated: bool


def count_tokens(tally: Tally, context: LLMContext) -> Tokens:
    """The provider's own count if it is final, else the best there is, and marked so.

    Args:
        tally: What the attempt produced.
        context: What it was asked.
    """
    usage = tally.usage
    if usage is None:
        prompt_chars = sum(len(str(message)) for message in context.messages)
        return Tokens(
            input=math.ceil(prompt_chars / CHARS_PER_TOKEN),
            output=math.ceil(tally.chars / CHARS_PER_TOKEN),
            estimated=True,
        )
    # Some services count a prompt without its cached part, but total_tokens always with it.
    gross = max(usage.prompt_tokens, usage.total_tokens - usage.completion_tokens)
    return Tokens(gross, usage.completion_tokens, estimated=not tally.completed)


def usd(tokens: Tokens, usd_per_mtok: tuple[float, float] | None) -> float | None:
    """What the tokens cost, or None if the price is not known.

    Args:
        tokens: The count.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens.
    """
    if usd_per_mtok is None:
        return None
    return (tokens.input * usd_per_mtok[0] + tokens.output * usd_per_mtok[1]) / 1e6
