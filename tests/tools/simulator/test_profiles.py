from __future__ import annotations

import numpy as np
import pytest

from pipecat_hedge.providers import PROFILES

PUBLISHED_MS = {
    # percentiles, and the maximum of 1.0
    "claude-haiku-4-5": {0.5: 637, 0.95: 1615, 1: 3152},
    "claude-sonnet-4-6": {0.5: 850, 0.95: 4126, 1: 9396},
    "gpt-4.1": {0.5: 536, 0.95: 1771, 1: 5056},
    "gemini-3.6-flash": {0.5: 798, 0.95: 984, 1: 1472},
    "gpt-oss-120b-groq": {0.5: 98, 0.95: 217, 1: 2117},
    "gemma-4-31b-baseten": {0.5: 489, 0.95: 609, 0.99: 6085, 0.999: 25643, 1: 38250},
    "qwen3.8-27b-local": {0.5: 101, 0.95: 318, 1: 592},
    "jagged": {0.5: 200, 0.95: 2300, 0.99: 8000},
    "jagged-after": {0.5: 120, 0.95: 800, 0.99: 1500},
}


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_samples_reproduce_published_percentiles(name: str):
    """Of 200,000 samples the published share stays under each percentile, within four sigma."""
    n = 200_000
    samples = PROFILES[name].samples(n, seed=7)
    for p, ms in PUBLISHED_MS[name].items():
        share = np.mean(samples <= ms / 1000 + 1e-9)
        assert abs(share - p) <= 4 * (p * (1 - p) / n) ** 0.5, f"p{p * 100:g}"
    assert samples.max() == pytest.approx(PROFILES[name].max_secs)


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_line_from_p50_to_p95_goes_on_below(name: str):
    """From p = 0 to 0.5 the latency rises as from 0.5 to 0.75: 1 - p is halved in both."""
    profile = PROFILES[name]
    least, p50, p75 = (profile.quantile(p) for p in (0, 0.5, 0.75))
    assert p50 / least == pytest.approx(p75 / p50)


@pytest.mark.parametrize("name", PUBLISHED_MS)
def test_quantile_rises_and_survival_is_its_inverse(name: str):
    profile = PROFILES[name]
    values = [profile.quantile(p) for p in np.linspace(0, 1, 2001)]
    assert values == sorted(values)
    assert profile.quantile(0.99999) == values[-1] == profile.max_secs
    for p in (0.01, 0.3, 0.5, 0.77, 0.95, 0.97, 0.99, 0.998):
        assert profile.survival(profile.quantile(p)) == pytest.approx(1 - p)
    assert profile.survival(0) == profile.survival(values[0]) == 1
    assert profile.survival(profile.max_secs) == 0
