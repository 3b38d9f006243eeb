"""What the first recogniser does not say in time, the second says: all once, nothing twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import InputAudioRawFrame, STTMuteFrame, STTUpdateSettingsFrame
from pipecat.services.settings import STTSettings
from pipecat.transcriptions.language import Language

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptReport
from pipecat_hedge.voice.transcript_rescue import ALIKE, rest_after
from tests.support import hearing
from tests.support.recognition import (
    STOP_SECS,
    Heard,
    Said,
    ScriptedRescue,
    ScriptedSTT,
    call,
)

pytestmark = pytest.mark.virtual_time

UTTERANCES = 200


def text(number: int) -> str:
    return f"I would like number {number} and {7 * number} please"


def kind(number: int) -> str:
    drawn = random.Random(number).random()
    return "late" if drawn < 0.1 else "never" if drawn < 0.12 else "calm"


def final_secs(number: int) -> float:
    """From the VAD's stop."""
    rng = random.Random(number + 1_000_000)
    return rng.uniform(1.8, 4.8) if kind(number) == "late" else rng.uniform(0.0, 0.1)


class Talk:
    """A caller who speaks to a hedged recogniser; the rescue hears the utterance of the moment."""

    def __init__(self, script: Any, *, rescue: Any = None, **options: Any):
        self.number = -1
        self.rescue = ScriptedRescue(rescue or (lambda _: text(self.number)))
        primary = ScriptedSTT(self._scripted(script), constant_secs=1.0)
        self.stt = HedgedSTTService(primary, self.rescue, stats=ProviderStats(), **options)
        self.reports: list[TranscriptReport] = []
        self.stt.add_event_handler("on_transcript_report", self._take)

    def _scripted(self, script: Any) -> Any:
        def said(number: int) -> Sequence[Said]:
            self.number = number
            return script(number)

        return said

    async def _take(self, _: object, report: TranscriptReport) -> None:
        self.reports.append(report)

    async def hold(self, utterances: int = UTTERANCES, **options: Any) -> Heard:
        return await call(lambda _: [], timing=None, stt=self.stt, utterances=utterances, **options)


def lost(heard: Heard, numbers: Sequence[int]) -> list[int]:
    said = " ".join(heard.contexts)
    return [number for number in numbers if said.count(text(number)) != 1]


async def test_late_and_lost_transcripts_are_said_by_the_rescue() -> None:
    """A tenth late by seconds, some never: every word once, and hardly any wait."""

    def script(number: int) -> Sequence[Said]:
        return [] if kind(number) == "never" else [(final_secs(number), text(number))]

    talk = Talk(script)
    heard = await talk.hold(pause_secs=lambda number: random.Random(number).uniform(5.5, 8))
    assert lost(heard, range(UTTERANCES)) == []
    assert len(heard.contexts) == UTTERANCES
    assert sorted(heard.waits)[int(0.99 * UTTERANCES)] <= 1.05
    assert sorted(heard.waits)[UTTERANCES // 2] <= 0.35
    assert len(talk.rescue.heard) <= 0.2 * UTTERANCES
    rescued = sum(report.is_rescued for report in talk.reports)
    assert rescued == len(talk.rescue.heard)
    bare_stt = ScriptedSTT(script, constant_secs=1.0)
    bare = await call(script, timing=None, stt=bare_stt, utterances=UTTERANCES)
    for name, waits in (("hedged", sorted(heard.waits)), ("bare", sorted(bare.waits))):
        quantiles = (f"p{p} {waits[int(p / 100 * len(waits))]:.2f} s" for p in (50, 99))
        print(name, *quantiles, f"{sum(secs <= 1.05 for secs in waits)} of {UTTERANCES} in 1.05 s")
    print(f"{len(talk.rescue.heard)} rescued, {len(lost(bare, range(UTTERANCES)))} lost by bare")
    assert sorted(bare.waits)[int(0.9 * len(bare.waits))] > 1.05


async def test_late_transcripts_in_the_next_utterance_are_dropped() -> None:
    """Also with interim transcripts, while the caller speaks again."""

    def script(number: int) -> Sequence[Said]:
        if number % 10 == 9:  # late: it comes while the caller speaks again
            return [(0.02, "…I would like"), (2.3, f"…{text(number)}"), (2.4, text(number))]
        return [(0.05, text(number))]

    talk = Talk(script)
    heard = await talk.hold(100, pause_secs=lambda _: 2.0)
    assert lost(heard, range(100)) == []
    assert sum(report.dropped for report in talk.reports) >= 9


async def test_late_transcript_merged_with_the_next_loses_only_what_was_said() -> None:
    def script(number: int) -> Sequence[Said]:
        if number % 10 == 8:
            return []
        if number % 10 == 9:
            return [(0.05, f"{text(number - 1)} {text(number)}")]
        return [(0.05, text(number))]

    heard = await Talk(script).hold(100)
    assert lost(heard, range(100)) == []


@pytest.mark.parametrize("is_kept", [True, False])
async def test_rescue_hears_what_is_missing_before_a_short_pause(is_kept: bool) -> None:
    """The first one is late with both parts; the budget is spent on the utterance before."""
    talk = hearing.Talk(lambda _: hearing.HearingSTT(late_secs=3.5, every=1000), is_kept=is_kept)
    speech = hearing.speech
    parts = [*speech(range(2, 6), then_secs=0.4), *speech(range(6, 8))]
    assert await talk.hold(*speech(range(2)), *parts) == hearing.words(range(8))


async def test_what_the_primary_has_said_is_not_said_again() -> None:
    """Its first transcript stays, an interim one shows that more was to come."""

    def script(number: int) -> Sequence[Said]:
        if number % 10 == 9:
            first, rest = text(number)[:12], text(number)[12:]
            return [(0.0, first), (0.05, f"…{rest[:10]}")]
        return [(0.05, text(number))]

    heard = await Talk(script).hold(100)
    assert lost(heard, range(100)) == []


async def test_late_interim_transcripts_interrupt_no_answer() -> None:
    def script(number: int) -> Sequence[Said]:
        late: list[Said] = [(3.0, f"…{text(number)}"), (3.5, f"…{text(number)}"), (4, text(number))]
        return late if number % 10 == 9 else [(0.05, text(number))]

    heard = await Talk(script).hold(60)
    assert lost(heard, range(60)) == []
    assert len(heard.contexts) == 60


async def test_transcript_dropped_in_doubt_is_said_if_the_rescue_fails() -> None:
    """The caller says the same again, after an utterance that the first one never sent."""
    talk = Talk(
        lambda number: [] if number == 30 else [(0.05, "yes please")],
        rescue=lambda number: "yes please" if number == 0 else "",
    )
    heard = await talk.hold(33)
    assert " ".join(heard.contexts).count("yes please") == 33


async def test_muted_speech_is_not_transcribed() -> None:
    talk = Talk(lambda _: [])
    audio = InputAudioRawFrame(bytes(32_000), 16_000, 1)
    await talk.hold(3, first=[STTMuteFrame(mute=True)], audio=audio)
    assert talk.rescue.heard == []


async def test_rescue_hears_the_utterance_and_half_a_second_before() -> None:
    talk = Talk(lambda _: [])
    audio = InputAudioRawFrame(bytes(2 * 1_600), 16_000, 1)
    await talk.hold(2, audio=audio)
    for secs in talk.rescue.heard:
        assert secs == pytest.approx(1.0 + STOP_SECS + 0.5, abs=0.25)


async def test_stuck_recogniser_is_replaced_by_a_fresh_one() -> None:
    """After one utterance of which it has said nothing; the fresh one hears the next."""
    made: list[ScriptedSTT] = []

    def create() -> ScriptedSTT:
        is_stuck = not made
        made.append(ScriptedSTT(lambda n: [] if is_stuck else [(0.05, f"fresh {n}")]))
        return made[-1]

    rescue = ScriptedRescue(lambda _: "rescued words")
    stt = HedgedSTTService(create, rescue, stats=ProviderStats())
    reports: list[TranscriptReport] = []

    async def take(_: object, report: TranscriptReport) -> None:
        reports.append(report)

    stt.add_event_handler("on_transcript_report", take)
    french = STTUpdateSettingsFrame(delta=STTSettings(language=Language.FR))
    heard = await call(lambda _: [], timing=None, stt=stt, utterances=4, first=[french])
    assert made[1]._settings.language == Language.FR
    assert heard.contexts == ["rescued words", "fresh 0", "fresh 1", "fresh 2"]
    assert len(made) == 2
    assert stt.primary is made[1]
    assert [report.was_replaced for report in reports] == [True, False, False, False]


async def test_budget_bounds_rescues_before_the_silence_guard() -> None:
    talk = Talk(lambda number: [(1.5, text(number))], budget=0.0)
    await talk.hold(20)
    assert talk.rescue.heard == []


@pytest.mark.parametrize(
    ("said", "heard", "rest"),
    [
        ("two large pizzas", "two large pizzas and a coke", "and a coke"),
        ("too large pizza", "Two large pizzas, and a coke.", "and a coke."),
        ("two large pizzas", "where is my order", None),
        ("two large pizzas", "Two large pizzas.", ""),
        ("yes", "yes", ""),
        ("我要两个披萨", "我要两个披萨和可乐", "和可乐"),
    ],
)
def test_rest_of_a_transcript(said: str, heard: str, rest: str | None) -> None:
    assert rest_after(said, heard, alike=ALIKE) == rest


def test_invalid_argument_names_the_remedy() -> None:
    primary, rescue = ScriptedSTT(lambda _: []), ScriptedRescue(lambda _: "")
    for arguments, message in (
        ((primary, primary), "rescue is the primary itself"),
        (("deepgram", rescue), "primary must be an STTService or a function"),
        ((primary, None), "rescue must be"),
        ((lambda: None, rescue), "primary must be"),
    ):
        with pytest.raises(Exception, match=message):
            HedgedSTTService(*arguments)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="budget must be from 0 to 1"):
        HedgedSTTService(primary, rescue, budget=5)
