"""Spans of races and their attempts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.trace import SpanKind
from pipecat.frames.frames import (
    LLMContextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgeError, HedgePolicy, Provider
from pipecat_hedge.race import TurnReport
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line
from tests.support.recorded_spans import (
    RecordedSpans,
    id_of,
    parent_of,
    recorded_spans,
    said,
    secs_into,
)
from tests.voice.test_filler import Voice

pytestmark = pytest.mark.virtual_time

SLOW: list[Step] = [Wait(3), Say("Never heard of.")]
QUICK: list[Step] = [Wait(0.2), Say("Good evening, Harbour Kitchen.")]
CHAT = "chat scripted"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedSpans]:
    with recorded_spans(monkeypatch) as recorded:
        yield recorded


def hedged(policy: HedgePolicy, *scripts: list[Step], **kwargs: Any) -> HedgedLLMService:
    members = [
        Provider(name, ScriptedLLMService(script), usd_per_mtok=(1, 4))
        for name, script in zip("abc", scripts, strict=False)
    ]
    return HedgedLLMService(members, policy=policy, **{"own_spans": True, **kwargs})


async def raced(
    spans: RecordedSpans, policy: HedgePolicy, *scripts: list[Step], text: str = "Hello?"
) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
    """The span of a turn's race, and those of its attempts."""
    async with Line(hedged(policy, *scripts)) as line:
        await line.ask(text)
        await line.report()
    (race,) = spans.named("race")
    return race, spans.of_providers(CHAT)


def events(race: ReadableSpan) -> list[tuple[str, Any, float]]:
    """The race's events in their order: name, provider, seconds."""
    found = [(e.name, said(e).get("hedge.provider"), secs_into(race, e)) for e in race.events]
    return sorted(found, key=lambda event: event[2])


async def test_no_spans_by_default(spans: RecordedSpans) -> None:
    llm = HedgedLLMService([ScriptedLLMService(QUICK)], policy=HedgePolicy.race(1))
    async with Line(llm) as line:
        await line.ask()
        await line.report()
    assert spans.all() == []


async def test_attempts_are_siblings_below_the_race(spans: RecordedSpans) -> None:
    race, attempts = await raced(spans, HedgePolicy.after(0.5), SLOW, QUICK)
    assert parent_of(race) is None
    assert [parent_of(span) for span in attempts.values()] == [id_of(race)] * 2
    assert {span.kind for span in attempts.values()} == {SpanKind.CLIENT}
    since = race.start_time or 0
    began = [((span.start_time or 0) - since) / 1e9 for span in attempts.values()]
    ended = [((span.end_time or 0) - since) / 1e9 for span in attempts.values()]
    assert (began, ended) == (pytest.approx([0.0, 0.5]), pytest.approx([0.7, 0.7]))
    names = [f"hedge.{name}" for name in ("attempt", "launch_reason", "outcome")]
    found = [[said(span)[name] for name in names] for span in attempts.values()]
    assert found == [[0, "primary", "superseded"], [1, "hedge", "won"]]
    lost, won = said(attempts["a"]), said(attempts["b"])
    assert lost["hedge.tokens_estimated"]
    assert "hedge.ttft_secs" not in lost
    assert won["gen_ai.provider.name"] == won["gen_ai.request.model"] == "scripted"
    assert won["gen_ai.operation.name"] == "chat"
    assert won["gen_ai.usage.output_tokens"] == 8
    assert won["gen_ai.usage.input_tokens"] > 0
    assert won["hedge.launched_secs"] == pytest.approx(0.5)
    assert won["hedge.ttft_secs"] == pytest.approx(0.2)
    assert won["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.2)
    names = ("winner", "outcome", "turn", "tier", "attempts", "commit_reason")
    told = [said(race)[f"hedge.{name}"] for name in names]
    assert told == ["b", "answered", 1, "standard", 2, "first_token"]
    assert said(race)["hedge.ttft_secs"] == pytest.approx(0.7)
    assert said(race)["hedge.usd"] > 0
    assert events(race) == [("hedge.commit", "b", pytest.approx(0.7))]
    assert said(race.events[0]) == {"hedge.provider": "b", "hedge.attempt": 1}


async def test_broken_stream_and_continuation_are_events(spans: RecordedSpans) -> None:
    broken: list[Step] = [Wait(0.1), Say("Good evening. We are"), Wait(0.4), Error("cut")]
    policy = HedgePolicy.fallback(commit="first_sentence")
    race, attempts = await raced(spans, policy, broken, QUICK)
    found = events(race)
    assert {(name, provider) for name, provider, _ in found} == {
        ("hedge.commit", "a"),
        ("hedge.stream_broken", "a"),
        ("hedge.failure", "a"),
        ("hedge.continuation", "b"),
    }
    assert [at for *_, at in found] == pytest.approx([0.1, 0.5, 0.5, 0.7])
    assert said(attempts["a"])["hedge.outcome"] == "failed"
    assert not attempts["a"].status.is_ok
    assert attempts["b"].status.is_unset


async def test_failed_turn_is_an_error(spans: RecordedSpans) -> None:
    failing: list[Step] = [Wait(0.1), Error("no")]
    race, attempts = await raced(spans, HedgePolicy.fallback(), failing, failing)
    assert said(race)["hedge.outcome"] == "failed"
    assert "hedge.winner" not in said(race)
    assert not race.status.is_ok
    assert not race.status.is_unset
    for span in attempts.values():
        assert said(span)["error.type"] == "server"
    assert [name for name, *_ in events(race)] == ["hedge.failure"] * 2


async def test_interruption_is_no_error(spans: RecordedSpans) -> None:
    async with Line(hedged(HedgePolicy.race(2), SLOW, SLOW)) as line:
        await line.send(LLMContextFrame(LLMContext([])))
        await asyncio.sleep(1.0)
        await line.interrupt()
        await line.report()
    (race,) = spans.named("race")
    attempts = spans.of_providers(CHAT)
    assert {said(span)["hedge.outcome"] for span in attempts.values()} == {"interrupted"}
    assert all(span.status.is_unset for span in [race, *attempts.values()])


@pytest.mark.parametrize("broken", ["stop_processing_metrics", "_note_failures"])
async def test_spans_end_when_the_turn_s_end_fails(
    spans: RecordedSpans, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[TurnReport] = []
    llm = hedged(HedgePolicy.race(2), SLOW, SLOW, stats=ProviderStats())
    llm.stats.events.subscribe(TurnReport, published.append)

    async def breaks(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(llm, broken, breaks)
    async with Line(llm) as line:
        await line.send(LLMContextFrame(LLMContext([])))
        await asyncio.sleep(1.0)
        await line.interrupt()
        async with asyncio.timeout(10):
            assert (await line.report()).outcome == "interrupted"
    assert [report.outcome for report in published] == ["interrupted"]
    assert len(spans.named("race", CHAT)) == 3
    assert not llm.is_failing


async def test_spoken_filler_is_an_event(spans: RecordedSpans) -> None:
    policy = HedgePolicy.race(1)
    filler = FillerProcessor(not_before_turn=1, after_secs=0.8)
    async with Line(hedged(policy, SLOW), processors=[filler], after=[Voice()]) as line:
        await line.ask()
        report = await line.report()
    assert report.filler is not None
    assert report.filler.spoken_secs is not None
    (race,) = spans.named("race")
    (event,) = [event for event in race.events if event.name == "hedge.filler"]
    assert said(event)["hedge.filler.cause"] == "slow"
    assert secs_into(race, event) == pytest.approx(report.filler.spoken_secs)


async def test_no_text_of_the_call_is_in_a_span(spans: RecordedSpans) -> None:
    """Nor a provider's error message, which may quote the request."""
    secret = "my card number is 4929-XK"
    failing: list[Step] = [Error(f"invalid request: {secret}")]
    calling: list[Step] = [Wait(0.1), Say(f"So {secret}."), Call("book_table", {"note": secret})]
    await raced(spans, HedgePolicy.fallback(), failing, calling, text=secret)
    exported = "\n".join(span.to_json() for span in spans.all())
    assert exported.count('"name": "race"') == 1
    assert "4929-XK" not in exported
    assert "invalid request" not in exported


async def test_race_is_below_the_current_span(spans: RecordedSpans) -> None:
    with trace.get_tracer("mine").start_as_current_span("mine") as mine:
        race, _ = await raced(spans, HedgePolicy.race(2), SLOW, QUICK)
    assert parent_of(race) == mine.get_span_context().span_id
    (found,) = spans.named("mine")
    assert dict(said(found)) == {}


async def test_attempts_of_an_untraced_service_are_in_pipecat_s_turn(
    spans: RecordedSpans,
) -> None:
    """Tokens are not under the names that backends add up: a traced service's own span has them."""
    llm = hedged(HedgePolicy.after(0.5), SLOW, QUICK, own_spans=False)
    async with Line(llm, tracing=True) as line:
        await line.send(UserStartedSpeakingFrame(), UserStoppedSpeakingFrame())
        await line.ask()
        await line.report()
    (turn,), (race,) = spans.named("turn"), spans.named("race")
    attempts = spans.of_providers(CHAT)
    assert parent_of(race) == id_of(turn)
    assert [parent_of(span) for span in attempts.values()] == [id_of(race)] * 2
    won = said(attempts["b"])
    assert (won["hedge.outcome"], won["hedge.output_tokens"]) == ("won", 8)
    assert not [name for name in won if name.startswith("gen_ai.usage")]


@pytest.mark.parametrize("tracing", [False, True])
async def test_unsampled_call_has_no_spans(
    spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch, tracing: bool
) -> None:
    monkeypatch.setattr(spans, "provider", TracerProvider(sampler=sampling.ALWAYS_OFF))
    async with Line(hedged(HedgePolicy.race(1), QUICK), tracing=tracing) as line:
        await line.ask()
        assert (await line.report()).outcome == "answered"
    assert spans.all() == []


def test_own_spans_without_opentelemetry_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipecat_hedge.telemetry.race_span", None)
    with pytest.raises(HedgeError, match=r"own_spans .*pipecat-hedge\[tracing\]"):
        hedged(HedgePolicy.race(1), QUICK)
    HedgedLLMService([ScriptedLLMService(QUICK)])
