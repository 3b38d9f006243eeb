"""Turns as Prometheus metrics: counters equal what reports say, gauges what the registry says."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats, Slo
from pipecat_hedge.race import (
    AttemptReport,
    ConfigurationError,
    FillerReport,
    StageReport,
    TurnReport,
)
from pipecat_hedge.race.reports import SpeechReport, TranscriptReport
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.telemetry.prometheus import MAX_PROVIDERS
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.voice import TurnLatency
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

ROOT = Path(__file__).parents[2]
Recorded = tuple[PrometheusRecorder, CollectorRegistry, ProviderStats]
TTFT_SLO = Slo(ttft_secs=0.5, ttfs_secs=None, voice_to_voice_secs=1.5, share=0.9)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    registry, stats = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    yield recorder, registry, stats
    recorder.close()


def series(registry: CollectorRegistry, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """The labels and values of a metric's series."""
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == f"pipecat_hedge_{name}":
                yield sample.labels, sample.value


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The sum of all series with these labels."""
    return sum(each for found, each in series(registry, name) if labels.items() <= found.items())


def by(registry: CollectorRegistry, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """A metric's sums by some of its labels, where they are not 0."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for found, each in series(registry, name):
        if each:
            sums[tuple(found[label] for label in labels)] += each
    return dict(sums)


def attempt(**fields: object) -> AttemptReport:
    usual = AttemptReport("a", "m", 0.0, "primary", 0.3, 1.0, "won", sent_secs=0.0)
    return replace(usual, **fields)


def turn(*attempts: AttemptReport, **fields: object) -> TurnReport:
    usual = TurnReport(1, "a", "answered", 0.3, 0.5, 1.0, attempts or (attempt(),))
    return replace(usual, **fields)


# ---- counters


def test_turns_and_attempts_are_counted(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    lost = attempt(
        provider="slow",
        ttft_secs=None,
        outcome="superseded",
        ended_secs=0.9,
        input_tokens=100,
        output_tokens=2,
        tokens_estimated=True,
        usd=0.01,
        stages=StageReport(new_connection=True),
    )
    won = attempt(launch_reason="hedge", model=None, input_tokens=100, output_tokens=9, usd=0.02)
    recorder.record(turn(lost, won, ttft_secs=0.8, ttfs_secs=1.2))
    failed = attempt(ttft_secs=None, outcome="failed", error_category="server")
    timed_out = replace(failed, error_category="timeout", ended_secs=5.0)
    unsent = replace(failed, launch_reason="failure", error_category="empty", sent_secs=None)
    unanswered = {"winner": None, "outcome": "failed", "ttft_secs": None, "ttfs_secs": None}
    recorder.record(turn(failed, timed_out, unsent, tier="premium", **unanswered))
    recorder.record(turn(attempts=(), degraded_reason="no provider", **unanswered))
    expected: dict[tuple[str, ...], dict[Any, float]] = {
        ("turns_total", "outcome", "tier", "degraded"): {
            ("answered", "standard", "false"): 1,
            ("failed", "premium", "false"): 1,
            ("failed", "standard", "true"): 1,
        },
        ("turn_ttft_seconds_sum", "provider", "outcome", "tier"): {
            ("a", "answered", "standard"): 0.8
        },
        ("turn_ttfs_seconds_sum", "provider"): {("a",): 1.2},
        ("attempts_total", "provider", "launch_reason", "outcome"): {
            ("slow", "primary", "superseded"): 1,
            ("a", "hedge", "won"): 1,
            ("a", "primary", "failed"): 2,
            ("a", "failure", "failed"): 1,
        },
        ("requests_total", "provider", "model"): {
            ("slow", "m"): 1,
            ("a", "none"): 1,
            ("a", "m"): 2,
        },
        ("attempt_failures_total", "provider", "category"): {
            ("a", "server"): 1,
            ("a", "timeout"): 1,
            ("a", "empty"): 1,
        },
        ("rejected_total",): {(): 1},
        ("hedges_total", "provider", "result"): {("a", "won"): 1},
        ("attempt_ttft_seconds_sum", "provider", "outcome"): {("a", "won"): 0.3},
        ("attempt_censored_ttft_seconds_sum", "provider", "outcome", "launch_reason"): {
            ("slow", "superseded", "primary"): 0.9,
            ("a", "failed", "primary"): 5.0,
        },
        ("cold_connections_total", "provider"): {("slow",): 1},
        ("tokens_total", "provider", "direction", "use", "estimated"): {
            ("slow", "input", "wasted", "true"): 100,
            ("slow", "output", "wasted", "true"): 2,
            ("a", "input", "used", "false"): 100,
            ("a", "output", "used", "false"): 9,
        },
        ("cost_usd_total", "provider", "use"): {("slow", "wasted"): 0.01, ("a", "used"): 0.02},
    }
    assert {metric: by(registry, *metric) for metric in expected} == expected
    for bound, turns in (("0.6", 0), ("0.8", 1)):
        assert value(registry, "turn_ttft_seconds_bucket", le=bound) == turns


def test_utterances_by_recogniser(recorded: Recorded) -> None:
    _, registry, stats = recorded
    for secs, is_rescued in ((0.25, False), (0.3, False), (None, True)):
        report = TranscriptReport("deepgram", secs, 1, None, is_rescued)
        stats.events.publish(report)
    assert by(registry, "utterances_total", "rescued") == {("false",): 2, ("true",): 1}
    assert by(registry, "transcript_seconds_count", "recogniser") == {("deepgram",): 2}


def test_sentences_by_voice(recorded: Recorded) -> None:
    _, registry, stats = recorded
    calm = SpeechReport("cartesia", 3, 0, 0, 0.2, 0.0, 90, 0)
    for report in (
        calm,
        replace(calm, rescued=1, left_out=1, first_sound_secs=0.7, extra_characters=40),
        replace(calm, was_interrupted=True),
        SpeechReport(None, 1, 0, 1, None, 0.0, 10, 10),
    ):
        stats.events.publish(report)
    assert by(registry, "sentences_total", "voice", "result") == {
        ("cartesia", "spoken"): 4,
        ("cartesia", "rescued"): 1,
        ("cartesia", "left_out"): 1,
        ("cartesia", "interrupted"): 3,
        ("none", "left_out"): 1,
    }
    characters = by(registry, "speech_characters_total", "extra")
    assert characters == {("false",): 280, ("true",): 50}
    assert by(registry, "first_sound_seconds_count", "voice") == {("cartesia",): 3}
    assert by(registry, "speech_silent_seconds_count", "voice") == {("cartesia",): 3}


def test_continuations_and_fillers_by_result(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    cut = attempt(outcome="failed", error_category="stalled")
    continued = attempt(provider="b", launch_reason="stall", launched_secs=2.0)
    filler = FillerReport("slow", 1.2, "because")
    recorder.record(turn(cut, continued, committed_secs=0.5, winner="b", filler=filler))
    replaced = attempt(launch_reason="failure", launched_secs=0.2)
    recorder.record(turn(replaced, committed_secs=0.5, filler=replace(filler, was_cut=True)))
    recorder.record(turn(filler=replace(filler, spoken_secs=None)))
    assert by(registry, "continuations_total", "provider", "result") == {("b", "continued"): 1}
    results = {("spoken",): 1, ("withdrawn",): 1, ("withheld",): 1}
    assert by(registry, "fillers_total", "result") == results


def test_interrupted_answer_tokens_are_used(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    cut = attempt(outcome="interrupted", output_tokens=7)
    lost = attempt(provider="b", outcome="interrupted", output_tokens=3)
    recorder.record(turn(cut, lost, outcome="interrupted"))
    assert by(registry, "tokens_total", "use") == {("used",): 7, ("wasted",): 3}


def test_voice_to_voice_is_what_callers_heard(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    latency = TurnLatency(1, 0.0, "user_silence", first_answer_secs=1.4, reports=(turn(),))
    recorder.record_latency(latency)
    recorder.record_latency(replace(latency, anchor="context"))
    recorder.record_latency(replace(latency, first_answer_secs=1.6, interrupted=True))
    heard_by = by(registry, "voice_to_voice_seconds_count", "provider", "outcome")
    assert heard_by == {("a", "answered"): 1, ("a", "interrupted"): 1}


def test_rare_series_start_at_zero(recorded: Recorded) -> None:
    """A rate sees no increase in a series that starts at 1."""
    recorder, registry, stats = recorded
    with stats.lock:
        stats.record("a | m")

    def counted(*, zeros: bool) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {
            (name, frozenset(labels.items()))
            for name in ("fillers", "continuations", "attempt_failures", "tokens", "requests")
            for labels, each in series(registry, f"{name}_total")
            if zeros or each
        }

    before = counted(zeros=True)
    cut = attempt(outcome="failed", error_category="stalled", input_tokens=9, output_tokens=2)
    again = replace(cut, launch_reason="stall", launched_secs=2.0, error_category="empty")
    recorder.record(turn(cut, again, committed_secs=0.5, filler=FillerReport("slow", 1.2, "")))
    after = counted(zeros=False)
    assert len({name for name, _ in after}) == 5
    assert after <= before


# ---- labels


def test_label_values_are_bounded(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    for number in range(3 * MAX_PROVIDERS):
        name = f"provider {number} " + "x" * 200
        recorder.record(turn(attempt(provider=name, model=name), winner=name))
    requests = by(registry, "requests_total", "provider")
    assert len(requests) == MAX_PROVIDERS + 1
    assert sum(requests.values()) == 3 * MAX_PROVIDERS
    assert requests["other",] == 2 * MAX_PROVIDERS
    assert max(len(name) for (name,) in requests) <= 120


def test_reasons_and_texts_are_in_no_label(recorded: Recorded) -> None:
    recorder, registry, _ = recorded
    secret = "sk-secret: what the caller said"
    reasons = dict.fromkeys(("hedge_reason", "routing_reason", "degraded_reason"), secret)
    filler = FillerReport("slow", None, secret)
    recorder.record(turn(attempt(launch_detail=secret), filler=filler, **reasons))
    assert secret.encode() not in generate_latest(registry)


# ---- real turns


def service(stats: ProviderStats, policy: HedgePolicy, **scripts: Any) -> HedgedLLMService:
    price = (1, 1) if "fast" in scripts else None
    providers = [
        Provider(name, ScriptedLLMService(*turns), usd_per_mtok=price)
        for name, turns in scripts.items()
    ]
    return HedgedLLMService(providers, policy=policy, stats=stats)


QUICK, SLOW = [Wait(0.1), Say("Yes.")], [Wait(3.0), Say("Yes.")]


def test_open_breaker_is_shown(recorded: Recorded) -> None:
    _, registry, stats = recorded
    breaker = stats.record("down | m").breaker
    for state in ("closed", "open"):
        assert by(registry, "breaker_state", "provider", "state") == {("down", state): 1}
        for _ in range(5):
            breaker.record("failed", time.monotonic())


async def test_slow_period_is_shown_until_it_ends(recorded: Recorded) -> None:
    _, registry, stats = recorded
    first = [*[QUICK] * 30, *[SLOW] * 12, QUICK]
    llm = service(
        stats, HedgePolicy.adaptive(budget=0.3), first=first, second=[[Wait(0.2), Say("Yes.")]]
    )
    seen: list[dict[tuple[str, ...], float]] = []
    async with Line(llm) as line:
        for number in range(150):
            await line.ask()
            await line.report(number + 1)
            seen.append(by(registry, "provider_slow", "provider"))
    assert seen[29] == seen[-1] == {}
    assert {("first",): 1} in seen


async def test_budget_limits_and_costs_are_shown(recorded: Recorded) -> None:
    _, registry, stats = recorded
    llm = service(stats, HedgePolicy.adaptive(0.2), slow=[SLOW], fast=[QUICK])
    async with Line(llm) as line:
        assert value(registry, "sessions") == 1
        await line.ask()
        report = await line.report()
    assert value(registry, "sessions") == 0
    assert value(registry, "budget_requests_per_turn", budget="0.2") == 0.2
    assert value(registry, "budget_balance_requests", budget="0.2") == pytest.approx(-0.8)
    assert value(registry, "concurrency_limit", provider="slow") >= 1
    assert value(registry, "requests_in_flight") == 0
    spent = sum(a.usd or 0 for a in report.attempts)
    assert value(registry, "cost_usd_total") == pytest.approx(spent)
    assert value(registry, "cost_usd_total", use="wasted", provider="slow") > 0


# ---- SLOs


@pytest.mark.parametrize("by_policy", [False, True])
async def test_slo_of_a_service_is_counted(recorded: Recorded, *, by_policy: bool) -> None:
    _, registry, stats = recorded
    llm = HedgedLLMService(
        [ScriptedLLMService([Wait(0.6), Say("Yes.")])],
        policy=HedgePolicy.adaptive(slo=TTFT_SLO) if by_policy else HedgePolicy.fallback(),
        stats=stats,
        tier="premium",
        slo=None if by_policy else TTFT_SLO,
    )
    labels = {"tier": "premium", "objective": "ttft"}
    assert value(registry, "slo_objective_seconds", **labels) == 0.5
    assert value(registry, "slo_share_ratio", tier="premium") == 0.9
    assert registry.get_sample_value("pipecat_hedge_slo_missed_total", labels) == 0
    async with Line(llm) as line:
        await line.ask()
        await line.report()
    silent = TurnLatency(1, 0.0, "user_silence", reports=(turn(tier="premium"),), ended_secs=4.0)
    llm.events.publish(silent)
    llm.events.publish(replace(silent, may_wait=True))  # says nothing
    missed = {("ttft",): 1, ("voice_to_voice",): 1}
    assert by(registry, "slo_turns_total", "objective") == missed
    assert by(registry, "slo_missed_total", "objective") == missed


def test_most_lenient_slo_of_a_tier_is_shown(recorded: Recorded) -> None:
    """Each turn is held against its own SLO; alerts look at the gauges."""
    _, registry, stats = recorded
    for slo in (TTFT_SLO, replace(TTFT_SLO, ttft_secs=1.0, share=0.8), TTFT_SLO):
        stats.slo_tracker.add("economy", slo)
    assert value(registry, "slo_objective_seconds", tier="economy", objective="ttft") == 1.0
    assert value(registry, "slo_share_ratio", tier="economy") == 0.8


# ---- which turns, and where they are served


async def test_default_recorder_counts_every_service(recorded: Recorded) -> None:
    """With statistics of their own, made before the recorder or after."""
    _, other_registry, _ = recorded
    registry, before = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(registry=registry)
    for number, stats in enumerate((before, ProviderStats()), 1):
        llm = HedgedLLMService(
            [Provider("of two", ScriptedLLMService([Say("Yes.")]))], stats=stats, slo=TTFT_SLO
        )
        async with Line(llm) as line:
            assert value(registry, "sessions") == 1
            await line.ask()
            await line.report()
        assert value(registry, "turns_total") == number
        assert value(registry, "slo_turns_total", objective="ttft") == number
        assert value(registry, "breaker_state", provider="of two", state="closed") == number
    assert value(other_registry, "turns_total") == 0
    recorder.close()


def test_recorder_does_not_keep_statistics_alive() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry=registry)
    stats = ProviderStats()
    with stats.lock:
        stats.record("that goes | m")
    assert value(registry, "breaker_state", provider="that goes", state="closed") == 1
    gone = weakref.ref(stats)
    del stats
    gc.collect()
    assert gone() is None
    assert value(registry, "breaker_state", provider="that goes") == 0
    recorder.close()


def test_second_recorder_in_a_registry_is_an_error(recorded: Recorded) -> None:
    _, registry, stats = recorded
    with pytest.raises(ConfigurationError, match=r"registry has .* already.*close\(\) it first"):
        PrometheusRecorder(stats=stats, registry=registry)


def test_closed_recorder_counts_no_more(recorded: Recorded) -> None:
    recorder, registry, stats = recorded
    recorder.close()
    recorder.close()
    stats.slo_tracker.add("standard", TTFT_SLO)
    stats.slo_tracker.record("standard", TTFT_SLO, {"ttft": True})
    stats.events.publish(turn())
    stats.events.publish(SpeechReport("cartesia", 3, 0, 0, 0.2, 0.0, 90, 0))
    samples = [sample for family in recorder.describe() for sample in family.samples]
    counted = ("turns_total", "sentences_total", "_ratio")
    assert not any(s.value for s in samples if s.name.endswith(counted))
    again = PrometheusRecorder(stats=stats, registry=registry)
    assert value(registry, "slo_share_ratio", tier="standard") == 0.9  # an SLO made before it
    assert value(registry, "turns_total") == 0
    stats.events.publish(turn())
    assert value(registry, "turns_total") == 1
    again.close()


WORKER = """
import sys
from pipecat_hedge import AttemptReport, ProviderStats, Slo, TurnReport
from pipecat_hedge.telemetry import PrometheusRecorder
attempt = AttemptReport("a", "tiny", 0.0, "primary", 0.3, 1.0, "won", sent_secs=0.0)
answered = TurnReport(1, "a", "answered", 0.3, 0.4, 1.0, (attempt,))
stats = ProviderStats()
PrometheusRecorder(stats=stats)
stats.slo_tracker.add("standard", Slo())
for _ in range(int(sys.argv[1])):
    stats.events.publish(answered)
    stats.slo_tracker.record("standard", Slo(), {"ttft": False})
"""


def test_processes_are_added_up(tmp_path: Path) -> None:
    """By prometheus_client's multi-process mode; what the processes counted outlives them."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for turns in ("3", "4"):
        run = [sys.executable, "-c", WORKER, turns]
        subprocess.run(run, cwd=ROOT, env=environment, check=True, timeout=50)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    assert by(registry, "turns_total", "outcome", "tier") == {("answered", "standard"): 7}
    assert value(registry, "turn_ttft_seconds_count") == 7
    assert value(registry, "requests_total", provider="a") == 7
    assert by(registry, "slo_missed_total", "tier", "objective") == {("standard", "ttft"): 7}
    assert by(registry, "slo_share_ratio", "tier") == {("standard",): 0.95}
