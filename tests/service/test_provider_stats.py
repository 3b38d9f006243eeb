"""The statistics of a process: shared, bounded, saved, and robust against bad files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.providers import Backend, FileStore
from pipecat_hedge.providers.backends import MOST_PROVIDERS
from pipecat_hedge.providers.latency import CLASS_AT_LEAST, ProviderLatency
from pipecat_hedge.providers.priors import prior_for
from pipecat_hedge.race import Attempt, AttemptError, ConfigurationError, Slot
from pipecat_hedge.race.attempt import STALLED
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from pipecat_hedge.service.provider_stats import ProviderStats
from tests.support.learned import prior_weight

CLAUDE = Backend("claude", "claude-haiku-4-5")
FAILED: dict[str, Any] = {"outcome": "failed", "error": AttemptError("rate_limit", "429")}
SILENT: dict[str, Any] = {"outcome": "failed", "error": STALLED, "ended": 30}


def attempt(
    *,
    ttft: float | None = None,
    ttfs: float | None = None,
    ended: float | None = 2.0,
    outcome: Any = "won",
    error: AttemptError | None = None,
) -> Attempt:
    made = Attempt(0, Slot("claude"), "primary", 10.0)
    made.first_token_at = None if ttft is None else 10.0 + ttft
    made.speakable_at = None if ttfs is None else 10.0 + ttfs
    made.ended_at = None if ended is None else 10.0 + ended
    made.outcome, made.error = outcome, error
    return made


def learned(times: int, *attempts: Attempt, stats: ProviderStats | None = None) -> ProviderStats:
    """What is known after so many of these attempts."""
    stats = stats or ProviderStats()
    for _ in range(times):
        for each in attempts:
            stats.learn([CLAUDE], [each], None)
    return stats


def median(stats: ProviderStats, backend: Backend = CLAUDE, tokens: int | None = None) -> float:
    known = stats.estimates([backend], tokens, by_sentence=False)
    return known[backend.provider].first_token.quantile(0.5)


def sentence(stats: ProviderStats) -> float:
    known = stats.estimates([CLAUDE], None, by_sentence=True)["claude"].sentence
    assert known is not None
    return known.quantile(0.5)


# ---- what is learned from an attempt


def test_first_token_is_an_observation() -> None:
    stats = learned(300, attempt(ttft=0.2, ttfs=0.9))
    assert median(stats) == pytest.approx(0.2, rel=0.01)
    assert sentence(stats) == pytest.approx(0.7, rel=0.01)
    assert prior_weight(stats, CLAUDE) < 0.01


@pytest.mark.parametrize("outcome", ["superseded", "interrupted"])
def test_cancelled_attempt_is_a_censored_observation(outcome: str) -> None:
    stats = learned(100, attempt(ttft=0.2), attempt(ended=0.5, outcome=outcome))
    known = stats.estimates([CLAUDE], None, by_sentence=False)["claude"].first_token
    assert known.share_after(0.3) == pytest.approx(0.5, abs=0.03)
    assert known.share_after(0.6) > 0.3


def test_timeout_is_an_observation_but_an_error_is_not() -> None:
    prior = median(ProviderStats())
    assert median(learned(50, attempt(**FAILED))) == prior
    assert median(learned(50, attempt(ttft=0.1, ended=None))) == prior, "it is still live"
    assert median(learned(50, attempt(**SILENT))) > 20


# ---- prompt sizes


SHORT, LONG = 100, 50_000


class Latency:
    """What is known of a provider's latency, by prompt size."""

    def __init__(self) -> None:
        self.latency = ProviderLatency(prior_for("x", "gpt-4.1"))

    def record(self, times: int, secs: dict[int, float]) -> None:
        for _ in range(times):
            for tokens, each in secs.items():
                self.latency.record_apart(each, censored=False, prompt_tokens=tokens)

    def quantile(self, tokens: int | None, p: float = 0.5) -> float:
        return self.latency.estimate(tokens, by_sentence=False).first_token.quantile(p)


def test_prompt_sizes_are_separated_with_enough_data() -> None:
    latency = Latency()
    latency.record(CLASS_AT_LEAST - 1, {SHORT: 0.3, LONG: 1.3})
    assert latency.quantile(SHORT) == latency.quantile(LONG)
    latency.record(60, {SHORT: 0.3, LONG: 1.3})
    assert latency.quantile(SHORT) == pytest.approx(0.3, rel=0.01)
    assert latency.quantile(LONG) == pytest.approx(1.3, rel=0.01)
    assert latency.quantile(4_000, 0.9) == pytest.approx(1.3, rel=0.01), "never seen"


def test_slow_period_keeps_earlier_statistics() -> None:
    latency, rng = Latency(), random.Random(3)

    def turns(count: int, factor: float) -> list[float]:
        for _ in range(count):
            typical = {SHORT: 0.3, LONG: 0.9}
            latency.record(
                1, {t: factor * s * rng.lognormvariate(0, 0.2) for t, s in typical.items()}
            )
        return [latency.quantile(tokens, p) for tokens in (SHORT, LONG) for p in (0.5, 0.95, 0.99)]

    before = turns(400, 1.0)
    during = turns(100, 3.0)
    assert all(slow > 2 * typical for slow, typical in zip(during, before, strict=True))
    assert turns(30, 1.0) == pytest.approx(before, rel=0.2)
    assert latency.latency.seen > 800


def test_repeated_changes_use_bounded_memory() -> None:
    latency, rng, level = ProviderLatency(prior_for("x", "gpt-4.1")), random.Random(3), 1.0
    for turn in range(8_000):
        if turn % 700 == 0:
            level = rng.choice([0.3, 1.0, 4.0])
        latency.record(level * rng.lognormvariate(0, 0.3), censored=False)
        assert latency.estimate(None, by_sentence=False).first_token.secs.size < 2048 + 200


# ---- kept between runs


class Memory:
    """A store in memory."""

    def __init__(self, text: str | None = None):
        self.text = text
        self.aside: list[str] = []

    def load(self) -> str | None:
        return self.text

    def save(self, text: str) -> None:
        self.text = text

    def set_aside(self, why: str) -> None:
        self.aside.append(why)

    @property
    def providers(self) -> dict[str, Any]:
        return json.loads(self.text or "")["providers"]


def test_statistics_survive_a_restart() -> None:
    store = Memory()
    first = ProviderStats(store)
    for turn in range(100):
        made = attempt(ttft=0.2 + turn * 37 % 100 / 1000, ttfs=0.5)
        first.learn([CLAUDE], [made], 100)
    first.save()
    second = ProviderStats(Memory(store.text))
    assert prior_weight(second, CLAUDE, 100) == prior_weight(first, CLAUDE, 100)
    assert median(second) == pytest.approx(median(first), abs=0.003)
    assert median(second, CLAUDE, 100) == pytest.approx(median(first, CLAUDE, 100), abs=0.003)
    assert sentence(second) == pytest.approx(sentence(first), abs=1e-3)
    third = ProviderStats(store)
    third.record_wait(Backend("other"), 0.1, None)
    third.save()
    assert set(store.providers) == {CLAUDE.key, Backend("other").key}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "corrupt"),
        ("[]", "corrupt"),
        ('{"version": 2}', "corrupt"),
        ('{"version": 2, "providers": []}', "corrupt"),
        ('{"version": 2, "providers": {"a | ": {}}}', "corrupt"),
        ('{"version": 2, "providers": {"a": {"buckets": [3], "counts": [-1]}}}', "corrupt"),
        ('{"version": 2, "providers": {"a": {"buckets": [3], "counts": [NaN]}}}', "corrupt"),
        ('{"version": 2, "providers": {"a": {"buckets": [1e9], "counts": [1]}}}', "corrupt"),
        ('{"version": 2, "providers": {"a": {"buckets": [1, 2], "counts": [1, 2, 3]}}}', "corrupt"),
        ('{"version": 1, "providers": {}}', "of version 1, which this release does not know"),
    ],
)
def test_unusable_file_is_set_aside(text: str, why: str) -> None:
    store = Memory(text)
    learned(1, attempt(ttft=0.2), stats=ProviderStats(store)).save()
    assert store.aside == [why]
    assert prior_weight(ProviderStats(Memory(store.text)), CLAUDE) < 1


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "deep" / "stats.json")
    assert store.load() is None
    store.save("one")
    store.save("two")
    assert store.load() == "two"
    assert [path.name for path in store.path.parent.iterdir()] == ["stats.json"]
    store.set_aside("corrupt")
    assert store.load() is None
    assert (store.path.parent / "stats.json.set-aside").read_text() == "two"
    store.path.write_bytes(b"\xff\xfe\x00")
    assert prior_weight(ProviderStats(store), CLAUDE) == 1


def test_unusable_path_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "folder", tmp_path / "file" / "stats.json"):
        stats = ProviderStats(FileStore(path))
        (tmp_path / "folder").mkdir(exist_ok=True)
        learned(1, attempt(ttft=0.2), stats=stats).save()
    FileStore(tmp_path / "none" / "x").set_aside("corrupt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_environment_variable_names_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert default_store() is None
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "new" / "here.json"))
    assert str(default_store()) == str(tmp_path / "new" / "here.json")
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = default_store()
    assert isinstance(store, FileStore)
    assert store.path.name == "stats.json"
    assert "pipecat-hedge" in store.path.parts


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_statistics_need_a_regular_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe would block."""
    os.mkfifo(tmp_path / "pipe")
    path = {"folder": tmp_path, "pipe": tmp_path / "pipe", "device": os.devnull}[kind]
    monkeypatch.setenv(ENVIRONMENT, str(path))
    with pytest.raises(ConfigurationError, match=r"PIPECAT_HEDGE_STATS: .* is no regular file"):
        default_store()


# ---- bounded


def test_recently_used_providers_are_kept() -> None:
    store, used = Memory(), Backend("used", "all the time")
    stats = ProviderStats(store)
    for number in range(3 * MOST_PROVIDERS):
        for backend in (Backend("p", f"model-{number}"), used):
            stats.record_wait(backend, 0.3, 100)
            with stats.lock:
                stats.record(backend.key)
    stats.save()
    kept, entries = store.providers, stats.records()
    assert len(kept) == len(entries) == MOST_PROVIDERS
    assert {used.key, f"p | model-{3 * MOST_PROVIDERS - 1}"} <= kept.keys() & entries.keys()

    more = {f"old | {number}": kept[used.key] for number in range(100)} | kept
    store.text = json.dumps({"version": 2, "providers": more})
    again = ProviderStats(store)
    again.record_wait(Backend("q", "new"), 0.3, 100)
    again.save()
    assert len(store.providers) == MOST_PROVIDERS
    assert "q | new" in store.providers
    assert not any(key.startswith("old") for key in store.providers)
    assert prior_weight(again, used) < 0.1


# ---- shared
