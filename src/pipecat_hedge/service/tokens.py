"""How many tokens an attempt took, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

from pipecat_hedge.service.service_adapter import AttemptStats

__all__ = ["NONE", "Tokens", "count_tokens", "estimate_tokens", "usd"]

CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text; used only where a provider sent no count."""
TOKENS_PER_ATTACHMENT = 1000
"""For an image, a sound or a file: an image of a megapixel is 765 (OpenAI) to 1400 (Anthropic)."""


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


NONE = Tokens(0, 0, estimated=False)
"""Of a request that was never sent."""


def count_tokens(stats: AttemptStats, context: LLMContext) -> Tokens:
    """The provider's own count if it is final, else the best there is, and marked so.

    Args:
        stats: What the attempt produced.
        context: What it was asked.
    """
    usage = stats.usage
    if usage is None:
        return Tokens(
            input=estimate_tokens(context),
            output=math.ceil(stats.chars / CHARS_PER_TOKEN),
            estimated=True,
        )
    # Some services count a prompt without its cached part, but total_tokens always with it.
    gross = max(usage.prompt_tokens, usage.total_tokens - usage.completion_tokens)
    return Tokens(gross, usage.completion_tokens, estimated=not stats.completed)


def estimate_tokens(context: LLMContext) -> int:
    """An estimate of the tokens of a conversation, without the system instruction and tools."""
    return sum(_estimate(message) for message in context.messages)


def _estimate(message: object) -> int:
    """The tokens of one message; of an attachment its kind counts, not its bytes."""
    if isinstance(message, LLMSpecificMessage):
        message = message.message
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return math.ceil(len(str(message)) / CHARS_PER_TOKEN)
    tokens = 0
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            tokens += math.ceil(len(text) / CHARS_PER_TOKEN)
        else:
            tokens += TOKENS_PER_ATTACHMENT
    return tokens


def usd(tokens: Tokens, usd_per_mtok: tuple[float, float] | None) -> float | None:
    """What the tokens cost, or None if the price is not known.

    Args:
        tokens: The count.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens.
    """
    if usd_per_mtok is None:
        return None
    return (tokens.input * usd_per_mtok[0] + tokens.output * usd_per_mtok[1]) / 1e6
