"""Chooses the prior latencies of a provider: the published figures of the model its name suggests.

An unknown name gets those of a typical hosted model. Their tail lets the first turns be hedged,
before anything is learned.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from pipecat_hedge.providers.profiles import PROFILES
from pipecat_hedge.providers.survival import SurvivalCurve

_FAMILIES = (
    (r"haiku", "claude-haiku-4-5"),
    (r"claude|sonnet|opus|anthropic", "claude-sonnet-4-6"),
    (r"gemini", "gemini-3.6-flash"),
    (r"gpt-oss|groq|cerebras", "gpt-oss-120b-groq"),
    (r"gpt|openai|\bo[134]\b", "gpt-4.1"),
    (r"local|vllm|ollama|llama\.?cpp", "qwen3.8-27b-local"),
    (r"gemma|llama|qwen|mistral|deepseek|kimi|baseten|together|fireworks", "gemma-4-31b-baseten"),
)
"""Patterns of names and the published model that stands for them; the first match counts."""
_OTHERWISE = "gpt-4.1"
_SHARES = np.concatenate(
    (1.0 - np.arange(1, 48) / 50, [0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001])
)

TRANSCRIPT = SurvivalCurve.of(
    [0.15, 0.25, 0.4, 0.6, 0.9, 1.4, 2.0], [0.95, 0.7, 0.3, 0.12, 0.05, 0.02, 0.01], 0.8
)
"""From the end of speech to a recogniser's last transcript: the p99s that Pipecat 1.14 ships for
its recognisers (``stt_latency.py``) lie between 0.35 and 2.1 s."""

SPEECH = SurvivalCurve.of(
    [0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0], [0.9, 0.7, 0.5, 0.25, 0.1, 0.03, 0.01], 0.5
)
"""From a sentence to the first audible sound of a voice: assumed, until it is learned."""


def prior_for(provider: str, model: str | None = None) -> SurvivalCurve:
    """Return the assumed time to first token of a provider; its model may be None if unknown."""
    names = f"{model or ''} {provider}".lower()
    if (model or "") in PROFILES:
        return _published(model or "")
    family = next((family for known, family in _FAMILIES if re.search(known, names)), _OTHERWISE)
    return _published(family)


@cache
def _published(family: str) -> SurvivalCurve:
    profile = PROFILES[family]
    secs = [profile.quantile(1.0 - float(share)) for share in _SHARES]
    # Between the p99.9 and the published maximum lies the mean of what is beyond.
    tail_secs = max((profile.max_secs - secs[-1]) / 2, 0.1 * secs[-1])
    return SurvivalCurve.of(secs, _SHARES, tail_secs)
