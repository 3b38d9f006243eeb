"""What is assumed of a provider without observations."""

from __future__ import annotations

import re

import pytest

from pipecat_hedge.providers import PROFILES
from pipecat_hedge.providers.priors import prior_for
from tests.docs.pages import doc


@pytest.mark.parametrize(
    ("provider", "model", "family"),
    [
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("bedrock", "us.anthropic.claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("openai", "gpt-4o-mini", "gpt-4.1"),
        ("groq", "openai/gpt-oss-120b", "gpt-oss-120b-groq"),
        ("baseten", "google/gemma-4-31b", "gemma-4-31b-baseten"),
        ("local", "Qwen/Qwen3.8-27B", "qwen3.8-27b-local"),
        ("unknown", None, "gpt-4.1"),
    ],
)
def test_model_family_is_recognised(provider: str, model: str | None, family: str) -> None:
    assert prior_for(provider, model) is prior_for("", family)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_prior_has_the_published_percentiles(name: str) -> None:
    curve = prior_for("", name)
    for p in (0.5, 0.9, 0.95, 0.99):
        assert curve.quantile(p) == pytest.approx(PROFILES[name].quantile(p), rel=0.12)
    assert curve.expected_remaining(60) > 0


def test_each_prior_has_its_figures_source_and_date_in_the_docs() -> None:
    """As the code has them; a word is in a name of its row only."""
    rows = re.findall(
        r"^\| (`.*`) \| `(.*)` \| (\d+) \| (\d+) \| (\d+) \| (\S.*) \| (\w+ \d{4}) \|$",
        doc("design/constants.md").text,
        re.M,
    )
    others = {"jagged", "jagged-after", "fixed"}  # of no model
    assert {family for _, family, *_ in rows} == PROFILES.keys() - others
    for words, family, p50, p95, most, *_ in rows:
        profile = PROFILES[family]
        found = [profile.quantile(0.5), profile.quantile(0.95), profile.max_secs]
        assert [round(1000 * secs) for secs in found] == [int(p50), int(p95), int(most)]
        for word in re.findall(r"`([^`]+)`", words):
            assert prior_for("any", f"a-{word}-b") is prior_for("", family), word
