"""What is assumed of a provider that nothing is known of."""

from __future__ import annotations

import pytest

from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.profiles import PROFILES


@pytest.mark.parametrize(
    ("provider", "model", "family"),
    [
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("bedrock", "us.anthropic.claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("openai:gpt-4.1", "gpt-4.1", "gpt-4.1"),
        ("openai", "gpt-4o-mini", "gpt-4.1"),
        ("google", "gemini-3.6-flash-lite", "gemini-3.6-flash"),
        ("groq", "openai/gpt-oss-120b", "gpt-oss-120b-groq"),
        ("baseten", "google/gemma-4-31b", "gemma-4-31b-baseten"),
        ("local", "Qwen/Qwen3.8-27B", "qwen3.8-27b-local"),
        ("sim", "jagged", "jagged"),
        ("whoever", None, "gpt-4.1"),
    ],
)
def test_families(provider: str, model: str | None, family: str) -> None:
    """A model is recognised by its name or its provider's; an unknown one has a tail."""
    assert prior_for(provider, model) is prior_for("", family)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_published_figures(name: str) -> None:
    """The prior has the percentiles of its family."""
    curve = prior_for("", name)
    for p in (0.5, 0.9, 0.95, 0.99):
        assert curve.quantile(p) == pytest.approx(PROFILES[name].quantile(p), rel=0.12)
    assert curve.expected_remaining(60) > 0
