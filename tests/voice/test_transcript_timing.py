"""The wait for a recogniser's last transcript is learned, and no turn is split by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from pipecat.frames.frames import (
    STTMetadataFrame,
)
from pipecat.pipeline.service_switcher import ServiceSwitcher, ServiceSwitcherStrategyManual
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    SpeechTimeoutUserTurnStopStrategy,
)
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedLLMService, ProviderStats, TranscriptReport, TranscriptTiming
from pipecat_hedge.fleet.counts import counts_of, fields_of
from pipecat_hedge.providers.latency import ProviderLatency
from pipecat_hedge.providers.priors import TRANSCRIPT
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.recognition import (
    CONSTANT_SECS,
    STOP_SECS,
    Said,
    ScriptedSTT,
    analyzed,
    call,
)

pytestmark = pytest.mark.virtual_time

FINAL_SECS = 0.25


def one_final(number: int) -> Sequence[Said]:
    secs = FINAL_SECS + random.Random(number).uniform(-0.03, 0.03)
    return [(secs - STOP_SECS, f"question {number}")]


def two_finals(number: int) -> Sequence[Said]:
    return [(0.05, f"part one of {number}"), (0.25, f"part two of {number}")]


def fresh(stats: ProviderStats | None = None, **options: Any) -> TranscriptTiming:
    return TranscriptTiming(stats=stats or ProviderStats(), **options)


STRATEGIES: dict[str, tuple[Callable[[], BaseUserTurnStopStrategy], float]] = {
    "turn analyzer": (analyzed, STOP_SECS),
    "speech timeout": (SpeechTimeoutUserTurnStopStrategy, STOP_SECS + 0.6),
}


@pytest.mark.parametrize("name", STRATEGIES)
async def test_wait_is_what_the_recogniser_takes(name: str) -> None:
    """In place of the constant, from the twentieth utterance on; a strategy may wait longer."""
    stop, least_secs = STRATEGIES[name]
    bare = await call(two_finals, timing=None, stop=stop, utterances=10)
    learned = await call(two_finals, timing=fresh(), stop=stop, utterances=110)
    assert learned.waits[:10] == bare.waits
    expected = max(STOP_SECS + 0.25, least_secs)
    assert learned.waits[-1] == pytest.approx(expected, abs=0.05)
    assert median(bare.waits) == pytest.approx(CONSTANT_SECS, abs=0.05)
    assert len(learned.contexts) == 110  # none is split
    assert all("part two" in context for context in learned.contexts)


async def test_only_transcript_is_marked_as_final() -> None:
    """Then nothing more is waited for; the turn ends as the transcript comes."""
    learned = await call(one_final, timing=fresh(), utterances=110)
    twin = await call(one_final, timing=None, marks=True, utterances=110)
    print(f"p50 {median(learned.waits[:20])} s before, {median(learned.waits[20:])} s after")
    assert learned.waits[30:] == twin.waits[30:]
    assert learned.contexts == twin.contexts


@pytest.mark.parametrize("every", [1, 50])
async def test_recogniser_with_two_transcripts_has_none_marked(every: int) -> None:
    """One utterance in fifty is enough, once it has been seen."""

    def script(number: int) -> Sequence[Said]:
        return two_finals(number) if number % every == 0 else one_final(number)

    learned = await call(script, timing=fresh(), utterances=200)
    assert len(learned.contexts) == 200
    assert sum("part two" in context for context in learned.contexts) == 200 / every


async def test_transcript_is_not_marked_while_an_interim_has_more_words() -> None:
    def script(number: int) -> Sequence[Said]:
        if number < 40:
            return one_final(number)
        return [(0.02, "…I would like two large pizzas"), (0.03, "I would"), (0.06, "like two")]

    learned = await call(script, timing=fresh(), utterances=41)
    assert learned.contexts[-1] == "I would like two"


async def test_pause_splits_a_turn_no_more_often_than_with_marked_transcripts() -> None:
    rng = random.Random(1)
    pauses = [rng.uniform(0.4, 1.3) if rng.random() < 0.3 else 12.0 for _ in range(200)]
    learned = await call(two_finals, timing=fresh(), utterances=200, pause_secs=pauses.__getitem__)
    twin = await call(
        one_final, timing=None, marks=True, utterances=200, pause_secs=pauses.__getitem__
    )
    assert len(learned.contexts) <= len(twin.contexts)


async def test_least_wait_keeps_a_window_for_pauses() -> None:
    """As Pipecat's constant did, for those who relied on it."""
    windowed = await call(one_final, timing=fresh(least_wait_secs=1.0), utterances=60)
    assert windowed.waits[-1] == pytest.approx(1.0, abs=0.01)
    split = await call(one_final, timing=fresh(), utterances=60, pause_secs=lambda _: 0.5)
    whole = await call(
        one_final,
        timing=fresh(least_wait_secs=1.0),
        utterances=60,
        pause_secs=lambda number: 0.5 if number >= 30 else 12.0,
    )
    assert len(whole.contexts) == 31
    assert len(split.contexts) > 31


class Announcements:
    """What a call's timing announced, by utterance."""

    def __init__(self, timing: TranscriptTiming):
        self.secs: list[float | None] = []
        self.reports: list[TranscriptReport] = []
        timing.add_event_handler("on_transcript_report", self._take)

    async def _take(self, _: object, report: TranscriptReport) -> None:
        self.reports.append(report)
        self.secs.append(report.announced_secs)


async def test_longer_wait_is_announced_at_once_and_a_shorter_one_by_steps() -> None:
    def script(number: int) -> Sequence[Said]:
        secs = 0.9 if 30 <= number < 32 else 0.25
        return [(0.0, "part one"), (secs - STOP_SECS, "part two")]

    timing = fresh()
    found = Announcements(timing)
    await call(script, timing=timing, utterances=250)
    assert found.secs[19] is None
    assert found.secs[20] == pytest.approx(0.295, abs=0.01)
    assert found.secs[31] == pytest.approx(1.01, abs=0.02)
    falls = [(a, b) for a, b in pairwise(found.secs[31:]) if a and b and b < a]
    assert falls
    assert all(a - b >= 0.03 for a, b in falls)
    assert found.secs[-1] == pytest.approx(0.27, abs=0.03)


async def test_late_transcripts_of_a_few_lengthen_no_wait_beyond_the_constant() -> None:
    def script(number: int) -> Sequence[Said]:
        secs = 4.0 if number % 10 == 9 else 0.25
        return [(0.0, "part one"), (secs - STOP_SECS, "part two")]

    timing = fresh()
    found = Announcements(timing)
    await call(script, timing=timing, utterances=120)
    assert found.secs[-1] == CONSTANT_SECS


async def test_recogniser_slower_than_its_constant_is_waited_for() -> None:
    """So that its turns are not split."""

    def script(number: int) -> Sequence[Said]:
        return [(0.1, "part one"), (0.8, "part two")]

    def short() -> Any:
        return ScriptedSTT(script, constant_secs=0.35)

    bare = await call(script, timing=None, stt=short(), utterances=60)
    learned = await call(script, timing=fresh(), stt=short(), utterances=60)
    assert "part one part two" not in bare.contexts
    assert set(learned.contexts[-30:]) == {"part one part two"}


async def test_next_call_begins_with_what_was_learned() -> None:
    """A call has ten to twenty utterances: what is learned must outlive it."""
    stats = ProviderStats()
    await call(two_finals, timing=fresh(stats), utterances=10)
    await call(two_finals, timing=fresh(stats), utterances=10)
    found = await call(two_finals, timing=fresh(stats), utterances=10)
    assert found.waits[-1] == pytest.approx(STOP_SECS + 0.25, abs=0.08)


@pytest.mark.parametrize("since_first_secs", [0.0, 0.001, 0.2])
def test_what_other_processes_have_learned_counts(since_first_secs: float) -> None:
    """Also whether a recogniser sends one transcript."""
    learned, fresh_one = (ProviderLatency(TRANSCRIPT) for _ in range(2))
    learned.share()
    for _ in range(40):
        learned.record_transcript(0.25, since_first_secs)
    assert learned.totals is not None
    fresh_one.inform(counts_of(fields_of(learned.totals)))
    own, others = learned.transcripts, fresh_one.transcripts
    assert own is not None
    assert others is not None
    assert own.sends_one is others.sends_one is (since_first_secs == 0.0)
    assert others.p99_secs == pytest.approx(own.p99_secs, rel=0.05)


async def test_model_of_a_recogniser_is_learned_apart() -> None:
    stats = ProviderStats()
    await call(two_finals, timing=fresh(stats), utterances=30)
    other = ScriptedSTT(two_finals, model="scripted-2", constant_secs=CONSTANT_SECS)
    found = await call(two_finals, timing=fresh(stats), stt=other, utterances=5)
    assert median(found.waits) == pytest.approx(CONSTANT_SECS, abs=0.05)


async def test_active_service_of_a_switcher_is_learned() -> None:
    """Under its own name: what a silent one would take is not known."""
    stats = ProviderStats()
    active = ScriptedSTT(two_finals, model="a", constant_secs=CONSTANT_SECS)
    spare = ScriptedSTT(two_finals, model="b", constant_secs=CONSTANT_SECS)
    switcher = ServiceSwitcher([active, spare], strategy_type=ServiceSwitcherStrategyManual)
    found = await call(two_finals, timing=fresh(stats), stt=switcher, utterances=40)
    assert found.waits[-1] == pytest.approx(STOP_SECS + 0.25, abs=0.08)
    assert {key for key in stats.latencies() if "scripted" in key} == {"scripted | a | transcripts"}


class TurnBased(ScriptedSTT):
    """Finds the ends of turns itself."""

    @property
    def supports_ttfs(self) -> bool:
        return False


async def test_recogniser_that_ends_turns_itself_is_left_alone() -> None:
    bare = await call(one_final, timing=None, stt=TurnBased(one_final), utterances=30)
    timing = fresh()
    found = await call(one_final, timing=timing, stt=TurnBased(one_final), utterances=30)
    assert (found.waits, found.contexts) == (bare.waits, bare.contexts)
    assert timing.announced_secs is None


async def test_utterances_are_reported() -> None:
    stats = ProviderStats()
    published: list[TranscriptReport] = []
    stats.events.subscribe(TranscriptReport, published.append)
    timing = fresh(stats)
    found = Announcements(timing)
    await call(two_finals, timing=timing, utterances=3)
    assert found.reports == published
    assert [report.finals for report in published] == [2, 2, 2]
    assert published[0].recogniser == "scripted"
    assert published[0].transcript_secs == pytest.approx(STOP_SECS + 0.25, abs=0.01)


async def test_turn_s_report_has_its_utterances() -> None:
    """Also two of one turn; the turn's latency has the last transcript before the model."""
    llm = HedgedLLMService([ScriptedLLMService([Wait(0.1), Say("Yes.")])], stats=ProviderStats())
    heard = await call(
        two_finals, timing=TranscriptTiming(), llm=llm, utterances=2, pause_secs=lambda _: 0.5
    )
    assert [len(report.transcripts) for report in heard.reports] == [2]
    last = heard.reports[0].transcripts[1]
    assert last.transcript_secs == pytest.approx(STOP_SECS + 0.25, abs=0.01)
    assert heard.turns[0].transcript_secs == pytest.approx(STOP_SECS + 0.25, abs=0.01)


async def test_running_turn_is_not_disturbed_by_an_announcement() -> None:
    """Strategies that a recogniser recommends are applied once, by its own frame."""

    class Recommending(ScriptedSTT):
        def service_metadata_frame(self) -> STTMetadataFrame:
            frame = super().service_metadata_frame()
            frame.user_turn_strategies = UserTurnStrategies(stop=[analyzed()])
            return frame

    stt = Recommending(two_finals, constant_secs=CONSTANT_SECS)
    found = await call(two_finals, timing=fresh(), stt=stt, utterances=40)
    assert max(found.waits) < CONSTANT_SECS + 0.1
    assert len(found.contexts) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least_wait_secs": -1}, "least_wait_secs"),
        ({"least_wait_secs": "1"}, "least_wait_secs"),
        ({"stats": "stats.json"}, "stats"),
        ({"least_wait": 1}, "did you mean least_wait_secs"),
    ],
)
def test_invalid_argument_names_the_remedy(options: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        TranscriptTiming(**options)
