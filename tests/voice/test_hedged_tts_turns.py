"""``HedgedTTSService`` in a call: whose answer was spoken, where the time went, and fillers."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pipecat.frames.frames import InterruptionFrame, TTSSpeakFrame
from pipecat.services.tts_service import TTSService
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import (
    CircuitBreakerSettings,
    FillerProcessor,
    HedgedLLMService,
    HedgedSTTService,
    HedgePolicy,
    ProviderStats,
    SpeechReport,
)
from pipecat_hedge.telemetry import LiveFeed
from pipecat_hedge.testing import Call, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.analysis.turn_log import read_logs
from pipecat_hedge.voice import HedgedTTSService, Voice
from tests.support.call import CHUNK, RATE, SPEAKS, PhoneCall
from tests.support.hearing import HearingRescue, HearingSTT, speech
from tests.support.recognition import analyzed
from tests.support.speech import Listener, Says, ScriptedVoice, bare

pytestmark = pytest.mark.virtual_time

ANSWER = "We are open until nine. Would you like a table?"
USUAL: list[Step] = [Wait(0.4), Say(ANSWER)]
SLOW: list[Step] = [Wait(2.5), Say(ANSWER)]


class Spoken(PhoneCall):
    """A call whose LLM and voices share what they learn.

    Attributes:
        llm: The LLM.
        feed: The live feed of the call.
    """

    def __init__(
        self,
        *scripts: Sequence[Step],
        voice: TTSService | Callable[[ProviderStats], TTSService] | None = None,
        fillers: FillerProcessor | None = None,
        tool_secs: float = 0.0,
        **options: Any,
    ):
        stats = ProviderStats()
        self.llm = llm = HedgedLLMService(
            [ScriptedLLMService(*scripts, model="gpt-4.1")],
            policy=HedgePolicy.fallback(1, stall_secs=None),
            stats=stats,
            **options,
        )
        self.ear = Listener()
        tts = two_voices(stats) if voice is None else voice
        tts = tts if isinstance(tts, TTSService) else tts(stats)
        super().__init__(llm, speech=(tts, self.ear), fillers=fillers, tool_secs=tool_secs)
        self.feed = LiveFeed()
        self.feed.watch(llm, self.observer)


def two_voices(
    stats: ProviderStats,
    first: Callable[[int], Says] = lambda _: Says(),
    second: Callable[[int], Says] = lambda _: Says(),
) -> HedgedTTSService:
    scripts = {"one": first, "two": second}
    voices = [Voice(n, ScriptedVoice(s), same_voice=True) for n, s in scripts.items()]
    return HedgedTTSService(voices, stats=stats, sample_rate=RATE)


def silent_once(number: int) -> Says:
    return Says(after_secs=None) if number == 0 else Says()


async def test_what_was_spoken_is_in_the_next_report_and_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "turns.jsonl"
    call = Spoken(USUAL, voice=functools.partial(two_voices, first=silent_once), turn_log=log)
    async with call:
        await call.ask(3)
    reports = call.line.reports
    assert [[each.turn for each in report.speech] for report in reports] == [[], [1], [2]]
    (first,) = reports[1].speech
    assert (first.voice, first.sentences, first.rescued) == ("one", 2, 1)
    assert [turn.report for turn in read_logs([log]).turns] == reports


async def test_a_line_of_the_bots_own_is_no_answer() -> None:
    async with Spoken(USUAL) as call:
        await call.ask()
        await call.play(TTSSpeakFrame("One moment."), 5.0)
        await call.ask()
    assert [each.turn for each in call.line.reports[1].speech] == [1, None]


async def test_an_answer_is_shown_with_its_turn() -> None:
    """Also where the caller interrupts it before the LLM is at its end."""
    endless: list[Step] = [Say("We are open until nine. Would "), Wait(30), Say("you?")]
    async with Spoken(USUAL, endless) as call:
        await call.ask()
        await call.play(*SPEAKS, 2.0, InterruptionFrame, 1.0)
        turns = call.feed.snapshot()["turns"]
    assert [turn["outcome"] for turn in turns] == ["answered", "interrupted"]
    spoken = [(t["spoken"]["turn"], t["spoken"]["was_interrupted"]) for t in turns]
    assert spoken == [(1, False), (2, True)]


async def test_a_late_voice_is_told_from_a_late_model() -> None:
    """To the first sentence is the model's time; from there on the voices'. As with a bare one."""
    for wait_secs, says, token, sound in (
        (0.4, Says(after_secs=0.1), 0.7, 0.8),
        (2.4, Says(after_secs=0.1), 2.7, 2.8),
        (0.4, Says(after_secs=0.4), 0.7, 1.1),
    ):
        voices: list[Callable[[ProviderStats], TTSService]] = [
            lambda _, s=says: ScriptedVoice(lambda _: s),
            lambda stats, s=says: two_voices(stats, lambda _: s, lambda _: s),
        ]
        for voice in voices:
            async with Spoken([Wait(wait_secs), Say(ANSWER)], voice=voice) as call:
                turn = await call.speak()
            assert turn.first_token_secs == pytest.approx(token, abs=0.01)
            assert turn.first_sentence_secs == pytest.approx(token, abs=0.01)
            assert turn.first_tts_audio_secs == pytest.approx(sound, abs=CHUNK)
            assert turn.first_answer_secs == pytest.approx(sound, abs=2 * CHUNK)
            assert "speech_synthesis" in {each["key"] for each in turn.contributions}


async def test_a_rescue_is_the_voices_time() -> None:
    voice = functools.partial(two_voices, first=silent_once)
    async with Spoken(USUAL, voice=voice) as call:
        turn = await call.speak()
        report = call.feed.snapshot()["turns"][0]["spoken"]
    assert report["rescued"] == 1
    assert turn.first_sentence_secs == pytest.approx(0.7, abs=0.01)
    assert turn.first_answer_secs is not None
    waited = turn.first_answer_secs - 0.7
    assert waited > 0.3
    assert report["first_sound_secs"] == pytest.approx(waited, abs=2 * CHUNK)


def fillers() -> FillerProcessor:
    return FillerProcessor(rng=random.Random(1), every_secs=1.0)


async def test_no_filler_for_a_voice_that_is_late() -> None:
    """Neither now nor later: such waits are not learned as the model's."""

    def late(_: int) -> Says:
        return Says(after_secs=2.0)

    voice = functools.partial(two_voices, first=late, second=late)
    async with Spoken(USUAL, voice=voice, fillers=fillers()) as call:
        await call.ask(30)
    assert len(call.line.reports) == 30
    for report in call.line.reports:
        assert report.filler is not None
        assert report.filler.spoken_secs is None
        assert report.filler.reason.endswith("; the answer started at 0.40 s")
    assert call.ear.text() == " ".join([bare(ANSWER)] * 30)


async def test_a_filler_bridges_a_late_model_and_is_a_line() -> None:
    async with Spoken(SLOW, fillers=fillers()) as call:
        await call.ask(2)
        turn = await call.speak()
        spoken = call.feed.snapshot()["turns"]
    last = call.line.reports[2]
    assert last.filler is not None
    assert last.filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    assert turn.first_answer_secs == pytest.approx(2.9, abs=3 * CHUNK)
    assert turn.first_sound_secs == pytest.approx(1.2, abs=3 * CHUNK)
    assert [(t["turn"], t["spoken"]["turn"], t["spoken"]["sentences"]) for t in spoken] == [
        (number, number, 2) for number in (1, 2, 3)
    ]
    assert call.remembered == [ANSWER] * 3


async def test_a_filler_that_is_not_heard_yet_is_withdrawn() -> None:
    """The answer's text is there: no voice says the filler, and none is asked for it again."""

    def late(_: int) -> Says:
        return Says(after_secs=0.4)

    soon: list[Step] = [Wait(0.95), Say(ANSWER)]
    voice = functools.partial(two_voices, first=late, second=late)
    async with Spoken(*[SLOW] * 12, soon, voice=voice, fillers=fillers()) as call:
        published = list[SpeechReport]()
        call.llm.events.subscribe(SpeechReport, published.append)
        await call.ask(13)
    report = call.line.reports[12]
    assert report.filler is not None
    assert report.filler.was_cut
    filler, answer = published[-2:]
    assert (filler.voice, filler.extra_characters, filler.turn) == (None, 0, None)
    assert (answer.left_out, answer.turn) == (0, 13)
    assert call.ear.text().endswith(f"{bare(ANSWER)} {bare(ANSWER)}")
    assert call.remembered == [ANSWER] * 13


async def test_text_before_a_tool_and_the_answer_are_two_reports() -> None:
    tool: list[Step] = [Say("Let me look. "), Call("look_up")]
    async with Spoken(tool, USUAL, tool_secs=2.0) as call:
        await call.ask()
        turns = call.feed.snapshot()["turns"]
    assert [(turn["turn"], turn["spoken"]["sentences"]) for turn in turns] == [(1, 1), (2, 2)]


class FillerVoices:
    """Two voices, of which the first one says fillers as scripted; a failure opens its breaker."""

    def __init__(self, says: Says):
        self.first, self.second = ScriptedVoice(), ScriptedVoice()
        asked = self.first.asked
        self.first.script = lambda number: Says() if asked[number][1] in ANSWER else says

    def __call__(self, stats: ProviderStats) -> HedgedTTSService:
        stats.configure_breaker("one", CircuitBreakerSettings(failures=1))
        voices = [Voice("one", self.first), Voice("two", self.second, same_voice=True)]
        return HedgedTTSService(voices, stats=stats, sample_rate=RATE)

    def texts(self, *, answers: bool) -> list[list[str]]:
        """What each was asked for."""
        both = (self.first, self.second)
        return [[text for _, text in v.asked if (text in ANSWER) is answers] for v in both]


@pytest.mark.parametrize("says", [Says(after_secs=None), Says(fails=True)], ids=["silent", "fails"])
async def test_a_filler_that_is_not_heard_is_no_failure_of_its_voice(says: Says) -> None:
    """The other voice says it, and the first one all the answers."""
    voices = FillerVoices(says)
    async with Spoken(SLOW, voice=voices, fillers=fillers()) as call:
        await call.ask(5)
    assert [len(each) for each in voices.texts(answers=False)] == [4, 4]
    assert [len(each) for each in voices.texts(answers=True)] == [10, 0]
    assert call.remembered == [ANSWER] * 5


async def test_a_filler_that_breaks_off_is_not_continued_when_the_answer_is_there() -> None:
    voices = FillerVoices(Says(stops_after=1))
    soon: list[Step] = [Wait(0.95), Say(ANSWER)]
    async with Spoken(*[SLOW] * 4, soon, voice=voices, fillers=fillers()) as call:
        await call.ask(5)
    first, second = voices.texts(answers=False)
    assert (len(first), len(second)) == (4, 3)
    begun, _, _ = first[-1].partition(" ")
    assert call.ear.text().endswith(f"{bare(ANSWER)} {bare(begun)} {bare(ANSWER)}")


async def test_voices_and_recognisers_are_known_where_the_models_are() -> None:
    """So without ``stats`` of their own; the answer's report comes by the same hub."""
    tts = HedgedTTSService([Voice("one", ScriptedVoice())], sample_rate=RATE)
    stt = HedgedSTTService(HearingSTT(), HearingRescue())
    llm = HedgedLLMService([ScriptedLLMService(USUAL, model="gpt-4.1")], stats=ProviderStats())
    published = list[SpeechReport]()
    llm.stats.events.subscribe(SpeechReport, published.append)
    options: dict[str, Any] = {"strategies": UserTurnStrategies(stop=[analyzed()])}
    async with PhoneCall(llm, speech=(tts, Listener()), before=[stt], **options) as call:
        await call.play(*speech([1, 2, 3]), 10.0)
    known = {key.partition(" | ")[0] for key in llm.stats.latencies()}
    assert {"one", "hearing", "hearingrescue (rescue)"} < known
    assert [each.turn for each in published] == [1]
