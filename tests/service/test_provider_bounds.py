"""The number of providers in the statistics is bounded."""

from __future__ import annotations

import json

from pipecat_hedge.policy import Backend
from pipecat_hedge.policy.backends import MOST_PROVIDERS
from pipecat_hedge.race import Attempt, Slot
from pipecat_hedge.service.provider_stats import ProviderStats

USED = Backend("used", "all the time")


class Kept:
    """A store in memory."""

    def __init__(self) -> None:
        self.text: str | None = None

    def load(self) -> str | None:
        return self.text

    def save(self, text: str) -> None:
        self.text = text

    def set_aside(self, why: str) -> None:
        raise AssertionError(why)


def test_recently_used_providers_are_kept() -> None:
    store = Kept()
    stats = ProviderStats(store)
    for number in range(3 * MOST_PROVIDERS):
        stats.record_first_token(Backend("p", f"model-{number}"), 0.3, 100)
        stats.record_first_token(USED, 0.3, 100)
        with stats.health.lock:
            stats.health.entry(f"p | model-{number}")
            stats.health.entry(USED.key)
    stats.save()
    assert store.text is not None
    kept = json.loads(store.text)["providers"]
    assert len(kept) == MOST_PROVIDERS
    assert USED.key in kept
    assert f"p | model-{3 * MOST_PROVIDERS - 1}" in kept
    with stats.health.lock:
        assert len(stats.health.entries()) == MOST_PROVIDERS
        assert USED.key in stats.health.entries()

    more = {f"old | {number}": kept[USED.key] for number in range(100)} | kept
    store.text = json.dumps({"version": 2, "providers": more})
    again = ProviderStats(store)
    again.record_first_token(Backend("q", "new"), 0.3, 100)
    again.save()
    providers = json.loads(store.text)["providers"]
    assert len(providers) == MOST_PROVIDERS
    assert "q | new" in providers
    assert not any(key.startswith("old") for key in providers)
    assert again.prior_weight(USED) < 0.1


def test_provider_removed_during_a_request() -> None:
    stats, forgotten = ProviderStats(), Backend("forgotten", "m")
    attempt = Attempt(0, Slot("forgotten"), "primary", 0.0)
    stats.sent(forgotten, attempt, None)
    for number in range(MOST_PROVIDERS):
        stats.record_first_token(Backend("p", f"model-{number}"), 0.3, 100)
    attempt.first_token_at, attempt.ended_at, attempt.outcome = 0.4, 0.9, "won"
    stats.record(forgotten, attempt, None)
    assert stats.prior_weight(forgotten) < 1.0
