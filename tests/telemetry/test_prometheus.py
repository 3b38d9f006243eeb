"""Turns as Prometheus metrics."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import AttemptReport, FillerReport, StageReport, TurnReport
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.exposition import expose
from pipecat_hedge.telemetry.prometheus import MOST_PROVIDERS, PrometheusRecorder
from pipecat_hedge.telemetry.prometheus_names import Names
from pipecat_hedge.telemetry.prometheus_turns import BUCKETS
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from pipecat_hedge.voice.turn_latency import TurnLatency
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

Recorded = tuple[PrometheusRecorder, CollectorRegistry, ProviderStats]
SLOW_THEN_ANSWERS = [Wait(2.0), Say("Good evening.")]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    registry, stats = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(
        stats=stats, registry=registry, slos={"standard": Slo(ttft_secs=0.8)}
    )
    yield recorder, registry, stats
    recorder.close()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """The sum of all series with these labels."""
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"pipecat_hedge_{name}" and labels.items() <= sample.labels.items()
    )


def attempt(**fields: object) -> AttemptReport:
    usual = AttemptReport("a", "m", 0.0, "primary", 0.3, 1.0, "won", sent_secs=0.0)
    return replace(usual, **fields)


def turn(*attempts: AttemptReport, **fields: object) -> TurnReport:
    usual = TurnReport(1, "a", "answered", 0.3, 0.5, 1.0, attempts or (attempt(),))
    return replace(usual, **fields)


# ---- real turns


async def test_every_turn_of_every_service_is_counted(recorded: Recorded) -> None:
    """One recorder a process: services made before or after it, with no wiring of their own."""
    _, registry, stats = recorded
    for number in range(2):
        llm = HedgedLLMService(
            [ScriptedLLMService([Wait(0.1), Say("Yes.")])], policy=HedgePolicy.race(1), stats=stats
        )
        async with Line(llm) as line:
            assert value(registry, "sessions") == 1
            await line.ask()
            await line.report()
        assert value(registry, "turns_total", outcome="answered", degraded="false") == number + 1
    assert value(registry, "sessions") == 0
    assert value(registry, "turn_ttft_seconds_count", outcome="answered", tier="standard") == 2


async def test_a_hedge_that_wins(recorded: Recorded) -> None:
    """The slow provider's wait shows although it never sent a token."""
    _, registry, stats = recorded
    llm = HedgedLLMService(
        [
            Provider("slow", ScriptedLLMService(SLOW_THEN_ANSWERS), usd_per_mtok=(1, 1)),
            Provider("fast", ScriptedLLMService([Wait(0.1), Say("Yes.")]), usd_per_mtok=(1, 1)),
        ],
        policy=HedgePolicy.after(0.5),
        stats=stats,
    )
    async with Line(llm) as line:
        await line.ask()
        report = await line.report()
    assert report.winner == "fast"
    assert value(registry, "requests_total", provider="slow") == 1
    assert value(registry, "attempts_total", provider="slow", outcome="superseded") == 1
    assert value(registry, "hedges_total", provider="fast", result="won") == 1
    assert value(registry, "hedges_total", result="lost") == 0
    assert value(registry, "attempt_ttft_seconds_count", provider="slow") == 0
    waited = value(registry, "attempt_unanswered_seconds_sum", provider="slow")
    assert waited == pytest.approx(0.6, abs=0.01)
    used = value(registry, "tokens_total", provider="fast", use="used", direction="output")
    assert used == report.attempts[1].output_tokens
    spent = value(registry, "cost_usd_total")
    assert spent == pytest.approx(sum(a.usd or 0 for a in report.attempts))
    assert value(registry, "cost_usd_total", use="wasted", provider="slow") > 0


async def test_a_degraded_turn_and_why_an_attempt_failed(recorded: Recorded) -> None:
    """The outcome is failed, and the promise is broken however fast that was."""
    _, registry, stats = recorded
    failing = ScriptedLLMService([Error()])
    policy = HedgePolicy.fallback(fallback_text="Sorry.")
    async with Line(HedgedLLMService([failing], policy=policy, stats=stats)) as line:
        await line.ask()
        report = await line.report()
    assert report.outcome == "failed"
    assert value(registry, "attempt_failures_total") == 1
    assert value(registry, "turns_total", outcome="failed") == 1
    assert value(registry, "slo_turns_total", objective="ttft") == 1
    assert value(registry, "slo_missed_total", objective="ttft") == 1


async def test_a_breaker_that_opens_is_seen(recorded: Recorded) -> None:
    """Its state is read when the metrics are; one of the three states is 1."""
    _, registry, stats = recorded
    policy = HedgePolicy.fallback()
    llm = HedgedLLMService(
        [Provider("down", ScriptedLLMService([Error()]))],
        policy=policy,
        stats=stats,
        admission="shed",
    )
    async with Line(llm) as line:
        assert value(registry, "breaker_state", state="open") == 0
        for number in range(30):
            await line.ask()
            await line.report(number + 1)
        degraded = line.reports[-1].degraded_reason
    assert degraded is not None
    key = next(iter(stats.health.entries()))
    assert key.startswith("down | ")
    states = {s: value(registry, "breaker_state", provider="down", state=s) for s in STATES}
    assert sum(states.values()) == 1
    assert states["closed"] == 0
    assert value(registry, "turns_total", degraded="true") > 0
    assert value(registry, "shed_total", what="turn") > 0


async def test_a_provider_that_turns_slow_is_seen_until_it_has_recovered(
    recorded: Recorded,
) -> None:
    """Though others are asked in its place, and callers notice nothing."""
    _, registry, stats = recorded
    calm, slow = [Wait(0.1), Say("Yes.")], [Wait(3.0), Say("Yes.")]
    first = ScriptedLLMService(*[calm] * 30, *[slow] * 12, calm)
    second = ScriptedLLMService([Wait(0.2), Say("Yes.")])
    providers = [Provider("first", first), Provider("second", second)]
    llm = HedgedLLMService(providers, policy=HedgePolicy.adaptive(budget=0.3), stats=stats)
    seen: list[tuple[float, float]] = []
    async with Line(llm) as line:
        for number in range(150):
            await line.ask()
            await line.report(number + 1)
            of_first = value(registry, "provider_slow", provider="first")
            seen.append((of_first, value(registry, "provider_slow", provider="second")))
    assert seen[29] == (0, 0)
    assert (1, 0) in seen
    assert seen[-1] == (0, 0)


STATES = ("closed", "open", "half_open")


async def test_the_budget_and_what_is_left_of_it(recorded: Recorded) -> None:
    """By the providers that are hedged between."""
    _, registry, stats = recorded
    llm = HedgedLLMService(
        [
            Provider("one", ScriptedLLMService([Say("Yes.")])),
            Provider("two", ScriptedLLMService([Say("Yes.")])),
        ],
        policy=HedgePolicy.adaptive(budget=0.2),
        stats=stats,
    )
    async with Line(llm) as line:
        await line.ask()
        await line.report()
    assert value(registry, "budget_requests_per_turn", budget="0.2") == 0.2
    assert value(registry, "budget_balance_requests", budget="0.2") == pytest.approx(0.2)
    assert value(registry, "concurrency_limit", provider="one") >= 1
    assert value(registry, "requests_in_flight") == 0


async def test_a_hook_that_fails_ends_no_turn(recorded: Recorded) -> None:
    """It is the caller's answer that matters."""
    _, registry, stats = recorded

    def fails(report: TurnReport) -> None:
        raise ZeroDivisionError

    stats.turn_hooks.add(fails)
    llm = HedgedLLMService([ScriptedLLMService([Say("Yes.")])], stats=stats)
    async with Line(llm) as line:
        for number in (1, 2):
            await line.ask()
            await line.report(number)
    assert line.text == "Yes.Yes."
    assert value(registry, "turns_total") == 2


# ---- reports


def test_what_is_counted_of_fillers_rescues_and_connections(recorded: Recorded) -> None:
    """Each by what came of it."""
    recorder, registry, _ = recorded
    cut = attempt(
        outcome="failed", error_category="stalled", stages=StageReport(new_connection=True)
    )
    rescue = attempt(provider="b", launch_reason="stall", launched_secs=2.0, outcome="won")
    filler = FillerReport("slow", 1.2, "because")
    recorder.record(turn(cut, rescue, committed_secs=0.5, winner="b", filler=filler))
    replaced = attempt(launch_reason="failure", launched_secs=0.2)
    recorder.record(turn(replaced, committed_secs=0.5, filler=replace(filler, was_cut=True)))
    recorder.record(turn(filler=replace(filler, spoken_secs=None)))
    assert value(registry, "rescues_total") == 1
    assert value(registry, "rescues_total", result="continued", provider="b") == 1
    assert value(registry, "cold_connections_total", provider="a") == 1
    for result in ("spoken", "withdrawn", "withheld"):
        assert value(registry, "fillers_total", cause="slow", result=result) == 1


def test_an_attempt_without_room_is_no_request(recorded: Recorded) -> None:
    """It is shed, and it waited for nobody's answer."""
    recorder, registry, _ = recorded
    shed = attempt(
        launch_reason="hedge",
        outcome="failed",
        error_category="shed",
        sent_secs=None,
        ttft_secs=None,
        provider="b",
    )
    recorder.record(turn(attempt(), shed))
    assert value(registry, "attempts_total", provider="b") == 1
    assert value(registry, "requests_total", provider="b") == 0
    assert value(registry, "attempt_unanswered_seconds_count") == 0
    assert value(registry, "shed_total", what="hedge") == 1


@pytest.mark.parametrize(
    ("fields", "is_a_wait"),
    [
        ({"outcome": "superseded"}, True),
        ({"outcome": "interrupted"}, True),
        ({"outcome": "failed", "error_category": "timeout"}, True),
        ({"outcome": "failed", "error_category": "stalled"}, True),
        ({"outcome": "failed", "error_category": "deadline"}, True),
        ({"outcome": "failed", "error_category": "rate_limit"}, False),
        ({"outcome": "failed", "error_category": "empty"}, False),
    ],
)
def test_a_refusal_is_no_wait(
    recorded: Recorded, fields: Mapping[str, object], *, is_a_wait: bool
) -> None:
    """Or a provider that refuses half of its requests at once would look fast."""
    recorder, registry, _ = recorded
    recorder.record(turn(attempt(ttft_secs=None, launch_reason="hedge", **fields)))
    count = "attempt_unanswered_seconds_count"
    assert value(registry, count, provider="a", launch_reason="hedge") == is_a_wait
    assert value(registry, count) == is_a_wait


def test_what_is_rare_begins_at_zero(recorded: Recorded) -> None:
    """Or its first time would be no increase: the series are there when the provider is known."""
    recorder, registry, stats = recorded
    names = ("fillers", "rescues", "attempt_failures", "tokens", "cold_connections", "requests")
    with stats.health.lock:
        stats.health.of("a | m")
    before = {s for s, _ in series(registry, names)}
    cut = attempt(
        outcome="failed",
        error_category="stalled",
        input_tokens=9,
        output_tokens=2,
        usd=0.1,
        stages=StageReport(new_connection=True),
    )
    rescue = replace(cut, launch_reason="stall", launched_secs=2.0, error_category="rate_limit")
    recorder.record(turn(cut, rescue, committed_secs=0.5, filler=FillerReport("slow", 1.2, "")))
    counted = [s for s, count in series(registry, names) if count]
    assert {name for name, _ in counted} == {f"pipecat_hedge_{name}_total" for name in names}
    assert set(counted) <= before
    assert len(series(registry, ["cost_usd"])) == 2  # of a provider whose price is known


def series(
    registry: CollectorRegistry, names: Sequence[str]
) -> list[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    """The series of some counters, and what they have counted."""
    wanted = {f"pipecat_hedge_{name}_total" for name in names}
    return [
        ((s.name, frozenset(s.labels.items())), s.value)
        for family in registry.collect()
        for s in family.samples
        if s.name in wanted
    ]


def test_the_interrupted_answer_s_tokens_were_used(recorded: Recorded) -> None:
    """The caller has heard a part of it; a loser's were wasted."""
    recorder, registry, _ = recorded
    cut = attempt(outcome="interrupted", output_tokens=7, tokens_estimated=True)
    lost = attempt(provider="b", outcome="interrupted", output_tokens=3)
    recorder.record(turn(cut, lost, outcome="interrupted"))
    assert value(registry, "tokens_total", use="used", estimated="true") == 7
    assert value(registry, "tokens_total", use="wasted", estimated="false") == 3


def test_what_callers_heard(recorded: Recorded) -> None:
    """Voice to voice, by whose answer it was; nothing where nobody spoke."""
    recorder, registry, _ = recorded
    heard = TurnLatency(1, 0.0, "user_silence", first_answer_secs=1.4, reports=(turn(),))
    recorder.record_heard(heard)
    recorder.record_heard(replace(heard, anchor="context"))
    recorder.record_heard(replace(heard, first_answer_secs=1.6, interrupted=True))
    count = "voice_to_voice_seconds_count"
    assert value(registry, count, provider="a", outcome="answered") == 1
    assert value(registry, count, provider="a", outcome="interrupted") == 1
    assert value(registry, "slo_turns_total", objective="voice_to_voice") == 2
    assert value(registry, "slo_missed_total", objective="voice_to_voice") == 1


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, True),
        ({"ttft_secs": 0.81}, False),
        ({"outcome": "failed", "ttft_secs": None}, False),
        ({"degraded_reason": "nobody could be asked"}, False),
        ({"outcome": "interrupted", "ttft_secs": None, "duration_secs": 0.5}, None),
        ({"outcome": "interrupted", "ttft_secs": None, "duration_secs": 2.0}, False),
        ({"outcome": "interrupted"}, True),
        ({"outcome": "failed", "attempts": (), "ttft_secs": None, "duration_secs": 0.5}, None),
        ({"outcome": "failed", "attempts": (), "ttft_secs": None, "duration_secs": 2.0}, False),
        ({"ttft_secs": None}, False),
    ],
)
def test_what_keeps_a_promise(
    recorded: Recorded, fields: Mapping[str, object], kept: bool | None
) -> None:
    """Bad is who waited in vain, too; who gave up before the time says nothing."""
    recorder, registry, _ = recorded
    recorder.record(turn(**fields))
    assert value(registry, "slo_turns_total", objective="ttft") == (kept is not None)
    assert value(registry, "slo_missed_total", objective="ttft") == (kept is False)


def test_a_caller_who_may_not_have_finished(recorded: Recorded) -> None:
    """Where the LLM decides that, a silent turn breaks no promise."""
    recorder, registry, _ = recorded
    silent = TurnLatency(1, 0.0, "user_silence", reports=(turn(),), ended_secs=4.0)
    recorder.record_heard(replace(silent, may_wait=True))
    assert value(registry, "slo_turns_total", objective="voice_to_voice") == 0
    recorder.record_heard(silent)
    assert value(registry, "slo_missed_total", objective="voice_to_voice") == 1


def test_an_answer_that_is_a_tool_call_promises_no_sentence(recorded: Recorded) -> None:
    """The caller waits on, and the answer to the tool is a turn itself."""
    recorder, registry, _ = recorded
    recorder.record(turn(outcome="answered_with_tools", ttfs_secs=None))
    assert value(registry, "slo_turns_total", objective="ttfs") == 0
    assert value(registry, "slo_turns_total", objective="ttft") == 1


# ---- promises

PROMISED = Slo(ttft_secs=0.5, ttfs_secs=None, voice_to_voice_secs=1.5, share=0.9)


@pytest.mark.parametrize("by_policy", [False, True])
async def test_what_a_service_promises_is_counted(*, by_policy: bool) -> None:
    """Nothing is repeated: not the promise, and not that the caller may not have finished."""
    registry, stats = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    policy = HedgePolicy.adaptive(slo=PROMISED) if by_policy else HedgePolicy.fallback()
    llm = HedgedLLMService(
        [ScriptedLLMService([Wait(0.6), Say("Yes.")])],
        policy=policy,
        stats=stats,
        tier="premium",
        slo=None if by_policy else PROMISED,
    )
    told = {"tier": "premium", "objective": "ttft"}
    assert value(registry, "slo_objective_seconds", **told) == 0.5
    assert value(registry, "slo_share_ratio", tier="premium") == 0.9
    assert registry.get_sample_value("pipecat_hedge_slo_missed_total", told) == 0
    async with Line(llm) as line:
        await line.ask()
        await line.report()
    assert value(registry, "slo_turns_total", **told) == 1
    assert value(registry, "slo_missed_total", **told) == 1
    silent = TurnLatency(1, 0.0, "user_silence", reports=(turn(tier="premium"),), ended_secs=4.0)
    llm.take_heard(silent)
    recorder.record_heard(silent)  # by ``listen_to``: it has been judged by who promised it
    assert value(registry, "slo_missed_total", objective="voice_to_voice") == 1
    llm.take_heard(replace(silent, may_wait=True))
    recorder.record_heard(replace(silent, may_wait=True))
    assert value(registry, "slo_turns_total", objective="voice_to_voice") == 1
    recorder.close()


async def test_a_promise_that_is_made_twice_counts_once(recorded: Recorded) -> None:
    """By the service and by the operator: the service's counts, to whoever it is made."""
    recorder, registry, stats = recorded
    recorder.record(turn(ttft_secs=0.7))
    assert value(registry, "slo_missed_total", objective="ttft") == 0
    llm = HedgedLLMService(
        [ScriptedLLMService([Wait(0.7), Say("Yes.")])],
        policy=HedgePolicy.race(1),
        stats=stats,
        slo=PROMISED,
    )
    async with Line(llm) as line:
        await line.ask()
        await line.report()
    assert value(registry, "slo_turns_total", objective="ttft") == 2
    assert value(registry, "slo_missed_total", objective="ttft") == 1
    assert value(registry, "slo_objective_seconds", objective="ttft") == 0.5


def test_of_several_promises_to_a_tier_the_easiest_is_shown(recorded: Recorded) -> None:
    """Each turn is held against its own; an alert must not fire for what nobody was promised."""
    _, registry, stats = recorded
    board = stats.slo_board
    for slo in (PROMISED, replace(PROMISED, ttft_secs=1.0, share=0.8), PROMISED):
        board.promise("economy", slo)
    assert value(registry, "slo_objective_seconds", tier="economy", objective="ttft") == 1.0
    assert value(registry, "slo_share_ratio", tier="economy") == 0.8
    board.record("economy", PROMISED, turn(ttft_secs=0.7))
    assert value(registry, "slo_missed_total", tier="economy", objective="ttft") == 1


# ---- whose turns


async def test_statistics_of_its_own(recorded: Recorded) -> None:
    """A recorder of the process counts them too, made before it or after."""
    _, told_registry, _ = recorded
    registry, before = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(registry=registry)
    after = ProviderStats()
    for number, stats in enumerate((before, after), 1):
        llm = HedgedLLMService(
            [Provider("of two", ScriptedLLMService([Say("Yes.")]))],
            policy=HedgePolicy.adaptive(0.1 * number),
            stats=stats,
            slo=PROMISED,
        )
        async with Line(llm) as line:
            assert value(registry, "sessions") == 1
            await line.ask()
            await line.report()
        assert value(registry, "turns_total") == number
        assert value(registry, "slo_turns_total", objective="ttft") == number
        assert value(registry, "breaker_state", provider="of two", state="closed") == number
        budget = value(registry, "budget_requests_per_turn", budget=f"{0.1 * number:g}")
        assert budget == pytest.approx(0.1 * number)
    assert value(told_registry, "turns_total") == 0
    recorder.close()
    before.turn_hooks.tell(turn())
    ProviderStats().turn_hooks.tell(turn())
    counted = (s for f in recorder.describe() for s in f.samples)
    assert sum(s.value for s in counted if s.name == "pipecat_hedge_turns_total") == 2


async def test_statistics_that_are_gone() -> None:
    """The recorder keeps them no more than it must, and shows nothing of what was."""
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry=registry)
    stats = ProviderStats()
    with stats.health.lock:
        stats.health.of("that goes | m")
    stats.accounts.begin_turn(0.1)
    assert value(registry, "breaker_state", provider="that goes", state="closed") == 1
    assert value(registry, "budget_requests_per_turn", budget="0.1") == 0.1
    gone = weakref.ref(stats)
    del stats
    gc.collect()
    assert gone() is None
    assert value(registry, "breaker_state", provider="that goes") == 0
    assert value(registry, "budget_requests_per_turn", budget="0.1") == 0
    recorder.close()


# ---- bounds


def test_names_are_bounded(recorded: Recorded) -> None:
    """A process that invents provider names fills one more series, not the memory."""
    recorder, registry, _ = recorded
    for number in range(3 * MOST_PROVIDERS):
        each = attempt(provider=f"provider {number}", model=f"model {number}")
        recorder.record(turn(each, winner=each.provider))
    series = [s for f in registry.collect() for s in f.samples if s.name.endswith("requests_total")]
    assert len({s.labels["provider"] for s in series}) == MOST_PROVIDERS + 1
    assert sum(s.value for s in series) == 3 * MOST_PROVIDERS
    assert value(registry, "requests_total", provider="other") == 2 * MOST_PROVIDERS


@given(st.lists(st.one_of(st.none(), st.text(max_size=200)), max_size=40), st.integers(1, 5))
def test_a_name_keeps_its_label(given_names: list[str | None], most: int) -> None:
    """The same name is always the same label, of so many at most, none of them empty or long."""
    names = Names(most)
    labels = [names.of(name) for name in given_names]
    assert len(set(labels) - {"none", "other"}) <= most
    assert all(0 < len(label) <= 120 for label in labels)
    again = [names.of(name) for name in given_names]
    assert [b for a, b in zip(labels, again, strict=True) if a != "other"] == [
        a for a in labels if a != "other"
    ]


@given(st.lists(st.floats(0.001, 40.0), min_size=1, max_size=25))
def test_percentiles_agree_within_a_bucket(secs: list[float]) -> None:
    """The exact percentile lies in the bucket in which the histogram has it."""
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=CollectorRegistry())
    for each in secs:
        recorder.record(turn(ttft_secs=each))
    upto = {
        float(s.labels["le"]): s.value
        for family in recorder.describe()
        for s in family.samples
        if s.name == "pipecat_hedge_turn_ttft_seconds_bucket"
    }
    assert list(upto) == [*BUCKETS, math.inf]
    for share in (0.5, 0.95, 0.99):
        exact = percentile(secs, share)
        assert exact is not None
        low, high = bucket_of(upto, share)
        assert low < exact <= high


def bucket_of(upto: Mapping[float, float], share: float) -> tuple[float, float]:
    """The bucket in which a histogram has a percentile."""
    low = 0.0
    for le, count in upto.items():
        if count >= math.ceil(share * upto[math.inf]):
            return low, le
        low = le
    raise AssertionError("the last bucket holds all")


# ---- served


def test_names_follow_the_conventions(recorded: Recorded) -> None:
    """Base units and suffixes as Prometheus asks for, and a text that its own parser reads."""
    recorder, registry, _ = recorded
    recorder.record(turn())
    text, content_type = expose("", registry)
    assert content_type.startswith("text/plain")
    families = list(text_string_to_metric_families(text.decode()))
    assert all(family.name.startswith("pipecat_hedge_") for family in families)
    for family in families:
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            names = {s.name for s in family.samples if not s.name.endswith("_created")}
            assert names <= {f"{family.name}_total"}


def test_two_recorders_in_one_registry_are_refused(recorded: Recorded) -> None:
    """Every turn would count twice."""
    _, registry, stats = recorded
    with pytest.raises(ConfigurationError, match="already"):
        PrometheusRecorder(stats=stats, registry=registry)


def test_promises_that_cannot_be_meant_are_refused() -> None:
    """With the tier that is wrong."""
    with pytest.raises(ConfigurationError, match="'gold'"):
        PrometheusRecorder(registry=CollectorRegistry(), slos={"gold": Slo()})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="must be an Slo"):
        PrometheusRecorder(registry=CollectorRegistry(), slos={"premium": 0.8})  # pyright: ignore[reportArgumentType]


def test_a_closed_recorder_counts_no_more(recorded: Recorded) -> None:
    """And its place in the registry is free."""
    recorder, registry, stats = recorded
    recorder.close()
    stats.turn_hooks.tell(turn())
    again = PrometheusRecorder(stats=stats, registry=registry)
    assert value(registry, "turns_total") == 0
    stats.turn_hooks.tell(turn())
    assert value(registry, "turns_total") == 1
    again.close()


def test_nothing_is_told_that_was_not_reported(recorded: Recorded) -> None:
    """No label is a reason, a session or a text."""
    recorder, registry, _ = recorded
    secret = "sk-secret: what the caller said"
    recorder.record(
        turn(
            attempt(launch_detail=secret),
            hedge_reason=secret,
            routing_reason=secret,
            degraded_reason=secret,
            filler=FillerReport("slow", None, secret),
        )
    )
    assert secret.encode() not in expose("", registry)[0]
