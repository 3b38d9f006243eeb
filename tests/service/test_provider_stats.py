"""The statistics of a process: shared, saved, and robust against bad files."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy import Backend, FileStore
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.provider_latency import CLASS_AT_LEAST, ProviderLatency
from pipecat_hedge.race import Attempt, AttemptError, Slot
from pipecat_hedge.race.attempt import STALLED
from pipecat_hedge.service import provider_stats
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from tests.support.virtual import run_turns

CLAUDE = Backend("claude", "claude-haiku-4-5")


def attempt(
    *,
    ttft: float | None = None,
    ttfs: float | None = None,
    ended: float = 2.0,
    outcome: str = "won",
    error: AttemptError | None = None,
) -> Attempt:
    made = Attempt(0, Slot("claude"), "primary", 10.0)
    made.first_token_at = None if ttft is None else 10.0 + ttft
    made.speakable_at = None if ttfs is None else 10.0 + ttfs
    made.ended_at = 10.0 + ended
    made.outcome = outcome  # type: ignore[assignment]
    made.error = error
    return made


def median(stats: ProviderStats, backend: Backend = CLAUDE, tokens: int | None = None) -> float:
    known = stats.known([backend], tokens, by_sentence=False)
    return known[backend.provider].first_token.quantile(0.5)


def sentence(stats: ProviderStats) -> float:
    known = stats.known([CLAUDE], None, by_sentence=True)["claude"].sentence
    assert known is not None
    return known.quantile(0.5)


# ---- what is learned from an attempt


def test_first_token_is_an_observation() -> None:
    stats = ProviderStats()
    for _ in range(300):
        stats.record(CLAUDE, attempt(ttft=0.2, ttfs=0.9), None)
    assert median(stats) == pytest.approx(0.2, rel=0.01)
    assert sentence(stats) == pytest.approx(0.7, rel=0.01)
    assert stats.prior_weight(CLAUDE) < 0.01


@pytest.mark.parametrize("outcome", ["superseded", "interrupted"])
def test_cancelled_attempt_is_a_censored_observation(outcome: str) -> None:
    stats = ProviderStats()
    for _ in range(100):
        stats.record(CLAUDE, attempt(ttft=0.2), None)
        stats.record(CLAUDE, attempt(ended=0.5, outcome=outcome), None)
    known = stats.known([CLAUDE], None, by_sentence=False)["claude"].first_token
    assert known.share_after(0.3) == pytest.approx(0.5, abs=0.03)
    assert known.share_after(0.6) > 0.3


def test_timeout_is_an_observation_but_an_error_is_not() -> None:
    failed, silent = ProviderStats(), ProviderStats()
    before = median(failed)
    for _ in range(50):
        refused = AttemptError("rate_limit", "429")
        failed.record(CLAUDE, attempt(ended=0.01, outcome="failed", error=refused), None)
        silent.record(CLAUDE, attempt(ended=30, outcome="failed", error=STALLED), None)
    assert median(failed) == before
    assert median(silent) > 20


def test_live_attempt_is_no_observation() -> None:
    stats = ProviderStats()
    unfinished = attempt(ttft=0.1)
    unfinished.ended_at = None
    stats.record(CLAUDE, unfinished, None)
    assert stats.prior_weight(CLAUDE) == 1.0


def test_models_have_separate_statistics() -> None:
    stats = ProviderStats()
    for _ in range(50):
        stats.record(CLAUDE, attempt(ttft=0.2), None)
    other = Backend("claude", "claude-sonnet-4-6")
    whole = Backend("claude", "claude-haiku-4-5", measures="whole_answer")
    assert median(stats, other) == prior_for("claude", "claude-sonnet-4-6").quantile(0.5)
    assert median(stats, whole) == 5 * prior_for("claude", "claude-haiku-4-5").quantile(0.5)


# ---- prompt sizes


def test_prompt_sizes_are_separated_with_enough_data() -> None:
    latency = ProviderLatency(prior_for("x", "gpt-4.1"))
    for turn in range(2 * CLASS_AT_LEAST - 2):
        latency.record(0.3 + (turn % 2), censored=False, prompt_tokens=50_000 if turn % 2 else 100)
    thin = latency.known(100, by_sentence=False).first_token
    assert thin is latency.known(50_000, by_sentence=False).first_token
    for _ in range(60):
        latency.record(0.3, censored=False, prompt_tokens=100)
        latency.record(1.3, censored=False, prompt_tokens=50_000)
    assert latency.known(100, by_sentence=False).first_token.quantile(0.5) == pytest.approx(
        0.3, rel=0.01
    )
    assert latency.known(50_000, by_sentence=False).first_token.quantile(0.5) == pytest.approx(
        1.3, rel=0.01
    )
    never_seen = latency.known(4_000, by_sentence=False).first_token.quantile(0.9)
    assert never_seen == pytest.approx(1.3, rel=0.01)


def test_growing_prompts_are_no_change() -> None:
    latency = ProviderLatency(prior_for("x", "gpt-4.1"))
    for _ in range(200):
        latency.record(0.3, censored=False, prompt_tokens=100)
    for _ in range(15):
        latency.record(1.3, censored=False, prompt_tokens=50_000)
    assert latency.known(100, by_sentence=False).first_token.quantile(0.5) == pytest.approx(
        0.3, rel=0.01
    )


def test_change_applies_to_all_prompt_sizes() -> None:
    latency = ProviderLatency(prior_for("x", "gpt-4.1"))
    for _ in range(100):
        latency.record(0.3, censored=False, prompt_tokens=100)
        latency.record(0.4, censored=False, prompt_tokens=50_000)
    for _ in range(12):
        latency.record(1.0, censored=False, prompt_tokens=100)
    assert latency.known(50_000, by_sentence=False).first_token.quantile(0.5) > 0.9


def test_slow_period_keeps_earlier_statistics() -> None:
    latency, rng = ProviderLatency(prior_for("x", "gpt-4.1")), random.Random(3)

    def turns(count: int, factor: float) -> list[float]:
        for _ in range(count):
            for tokens, usual in ((100, 0.3), (50_000, 0.9)):
                secs = factor * usual * rng.lognormvariate(0, 0.2)
                latency.record(secs, censored=False, prompt_tokens=tokens)
        curves = [latency.known(tokens, by_sentence=False).first_token for tokens in (100, 50_000)]
        return [curve.quantile(p) for curve in curves for p in (0.5, 0.95, 0.99)]

    before = turns(400, 1.0)
    during = turns(100, 3.0)
    assert all(slow > 2 * usual for slow, usual in zip(during, before, strict=True))
    assert turns(30, 1.0) == pytest.approx(before, rel=0.2)
    assert latency.seen > 800


def test_repeated_changes_use_bounded_memory() -> None:
    latency, rng, level = ProviderLatency(prior_for("x", "gpt-4.1")), random.Random(3), 1.0
    steps = list[int]()
    for turn in range(8_000):
        if turn % 700 == 0:
            level = rng.choice([0.3, 1.0, 4.0])
        latency.record(level * rng.lognormvariate(0, 0.3), censored=False)
        steps.append(latency.known(None, by_sentence=False).first_token.secs.size)
    assert max(steps) < 2048 + 200


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


def test_statistics_survive_a_restart() -> None:
    store, twice = Memory(), Memory()
    first = ProviderStats(store)
    for turn in range(100):
        first.record(CLAUDE, attempt(ttft=0.2 + turn * 37 % 100 / 1000, ttfs=0.5), 100)
    first.save()
    second = ProviderStats(store)
    assert second.prior_weight(CLAUDE, 100) == first.prior_weight(CLAUDE, 100)
    assert median(second) == pytest.approx(median(first), abs=0.003)
    assert median(second, CLAUDE, 100) == pytest.approx(median(first, CLAUDE, 100), abs=0.003)
    assert sentence(second) == pytest.approx(sentence(first), abs=1e-3)
    twice.text = store.text
    third = ProviderStats(twice)
    third.record(Backend("other"), attempt(ttft=0.1), None)
    third.save()
    assert set(json.loads(twice.text or "")["providers"]) == {CLAUDE.key, Backend("other").key}


def test_saving_is_due_once_a_minute_after_changes() -> None:
    now = [0.0]
    stats = ProviderStats(Memory(), clock=lambda: now[0])
    stats.record(CLAUDE, attempt(ttft=0.2), None)
    assert not stats.is_due
    now[0] = 61.0
    assert stats.is_due
    stats.save()
    assert not stats.is_due
    now[0] = 200.0
    assert not stats.is_due
    assert not ProviderStats(clock=lambda: 1e9).is_due


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
    stats = ProviderStats(store)
    assert store.aside == [why]
    stats.record(CLAUDE, attempt(ttft=0.2), None)
    stats.save()
    assert ProviderStats(Memory(store.text)).prior_weight(CLAUDE) < 1


def test_file_is_replaced_atomically(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    assert ProviderStats(store).prior_weight(CLAUDE) == 1


def test_unusable_path_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "folder", tmp_path / "file" / "stats.json"):
        stats = ProviderStats(FileStore(path))
        (tmp_path / "folder").mkdir(exist_ok=True)
        stats.record(CLAUDE, attempt(ttft=0.2), None)
        stats.save()
    FileStore(tmp_path / "none" / "x").set_aside("corrupt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_environment_variable_names_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert default_store() is None
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "here.json"))
    assert str(default_store()) == str(tmp_path / "here.json")
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = default_store()
    assert isinstance(store, FileStore)
    assert store.path.name == "stats.json"
    assert "pipecat-hedge" in store.path.parts


# ---- shared


def test_process_has_one_registry() -> None:
    found: list[ProviderStats] = []
    threads = [threading.Thread(target=lambda: found.append(shared_stats())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(stats is provider_stats.shared_stats() for stats in found)


def test_threads_share_a_registry(tmp_path: Path) -> None:
    stats = ProviderStats(FileStore(tmp_path / "stats.json"))
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            stats.save()

    def learn(seed: int) -> None:
        # Of a steady kind: a change of level would rightly have them forgotten.
        latencies = {
            name: np.random.default_rng(seed).normal(0.5, 0.02, (1, 300)) for name in ("a", "b")
        }
        run_turns(HedgePolicy.adaptive(order="learned"), latencies, stats=stats)

    threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(4)]
    saving = threading.Thread(target=save)
    saving.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    saving.join()
    stats.save()
    kept = json.loads((tmp_path / "stats.json").read_text())
    assert sum(kept["providers"]["a | a"]["counts"]) == pytest.approx(821, abs=3), (
        "of 1,200, decayed"
    )
    assert ProviderStats(FileStore(tmp_path / "stats.json")).prior_weight(Backend("a", "a")) < 0.001
