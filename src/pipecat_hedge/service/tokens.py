"""How many tokens an attempt used, and their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

from pipecat_hedge.service.attempt_stats import AttemptStats

CHARS_PER_TOKEN = 4
"""The common rule of thumb for English; used only if a provider sent no count."""
TOKENS_PER_ATTACHMENT = 1000
"""Per image, sound or file: an image of a megapixel is 765 (OpenAI) to 1400 (Anthropic) tokens."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts.

    Parameters:
        input: Tokens of the prompt, including cached ones.
        output: Tokens produced.
        estimated: Whether either is an estimate.
    """

    input: int
    output: int
    estimated: bool


NONE = Tokens(0, 0, estimated=False)
"""The counts of a request that was never sent."""


def count_tokens(stats: AttemptStats, prompt_tokens: int) -> Tokens:
    """The provider's own count if it is final, or else the best estimate, marked as such.

    Args:
        stats: What the attempt produced.
        prompt_tokens: An estimate of the prompt's size.
    """
    usage = stats.usage
    if usage is None:
        return Tokens(
            input=prompt_tokens,
            output=math.ceil(stats.chars / CHARS_PER_TOKEN),
            estimated=True,
        )
    # Some services count a prompt without its cached part; total_tokens always includes it.
    gross = max(usage.prompt_tokens, usage.total_tokens - usage.completion_tokens)
    return Tokens(gross, usage.completion_tokens, estimated=not stats.completed)


def estimate_tokens(context: LLMContext) -> int:
    """Estimate the tokens of a conversation, without the system instruction and tools."""
    return sum(message_tokens(message) for message in context.messages)


def message_tokens(message: object) -> int:
    """The tokens of one message. An attachment counts by its kind and not its bytes."""
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
    """The cost of some tokens in US dollars; None if the price is unknown.

    Args:
        tokens: The count.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens.
    """
    if usd_per_mtok is None:
        return None
    return (tokens.input * usd_per_mtok[0] + tokens.output * usd_per_mtok[1]) / 1e6
