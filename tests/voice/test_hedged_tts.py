"""``HedgedTTSService``: a sentence that stays silent is said by another voice."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    CancelFrame,
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    StartFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTSUsageMetricsData
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import (
    TextAggregationMode,
    TTSService,
    WebsocketTTSService,
)
from pipecat.transcriptions.language import Language

from pipecat_hedge import ProviderStats, SpeechReport
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.voice import HedgedTTSService, Voice
from tests.support.call import RATE, PhoneCall, ask
from tests.support.speech import Listener, Says, ScriptedVoice, bare

pytestmark = pytest.mark.virtual_time

SENTENCES = (
    "We are open until nine tonight.",
    "Our kitchen closes half an hour before.",
    "Would you like to book a table?",
)
ANSWER = " ".join(SENTENCES)
SILENT = Says(after_secs=None)


class Spoken:
    """A call whose answers are spoken."""

    def __init__(self, tts: TTSService, answers: Sequence[str] = (ANSWER,)):
        self.ear = Listener()
        llm = ScriptedLLMService(*([Say(each)] for each in answers))
        self.call = PhoneCall(llm, speech=(tts, self.ear))


def hedged(*scripts: Callable[[int], Says], **options: Any) -> HedgedTTSService:
    """Voices of the same sound."""
    voices = [
        Voice(f"voice-{n}", ScriptedVoice(script, **options), same_voice=True)
        for n, script in enumerate(scripts)
    ]
    return HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)


def only(*numbers: int, says: Says = SILENT) -> Callable[[int], Says]:
    """Some requests are answered so, the others well."""
    return lambda number: says if number in numbers else Says()


def voices_of(tts: HedgedTTSService) -> list[ScriptedVoice]:
    return [each.service for each in tts._voices]  # pyright: ignore


@pytest.mark.parametrize("times_words", [True, False])
async def test_every_sentence_is_heard_once_and_remembered(times_words: bool) -> None:
    tts = hedged(lambda _: Says(), lambda _: Says(), times_words=times_words)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert not voices_of(tts)[1].asked
        assert not call.line.errors


@pytest.mark.parametrize("times_words", [True, False])
@pytest.mark.parametrize("silent", [0, 1, 2])
async def test_a_silent_sentence_is_said_by_the_other_connection(
    silent: int, times_words: bool
) -> None:
    tts = hedged(only(silent), lambda _: Says(), times_words=times_words)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert [text for _, text in voices_of(tts)[1].asked] == [SENTENCES[silent]]
        gaps = spoken.ear.gaps()
        assert all(gap < 0.3 for gap in gaps)


@pytest.mark.parametrize(
    "says",
    [
        Says(fails=True),
        Says(only_silence=True),
        Says(only_silence=True, end_secs=None),
        Says(after_secs=9.0),
        Says(after_secs=None),
    ],
    ids=["fails", "silence", "endless silence", "late", "silent"],
)
@pytest.mark.parametrize("number", [0, 1])
async def test_what_is_no_speech_is_said_by_the_other(says: Says, number: int) -> None:
    tts = hedged(only(number, says=says), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert all(gap < 0.3 for gap in spoken.ear.gaps())
        assert spoken.ear.words()[0][0] < 1.0


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("stops_after", [1, 3])
async def test_a_voice_that_stops_is_continued_behind_its_last_word(
    number: int, stops_after: int
) -> None:
    tts = hedged(only(number, says=Says(stops_after=stops_after)), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        rest = " ".join(SENTENCES[number].split()[stops_after:])
        assert [text for _, text in voices_of(tts)[1].asked] == [rest]
        assert all(gap < 0.4 for gap in spoken.ear.gaps())


async def test_an_end_that_is_not_marked_holds_nothing_up() -> None:
    tts = hedged(only(0, 1, 2, says=Says(end_secs=15.0)), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert not voices_of(tts)[1].asked
        assert all(gap < 0.5 for gap in spoken.ear.gaps())


@pytest.mark.parametrize("times_words", [True, False])
async def test_an_end_that_is_not_marked_holds_up_no_later_answer(times_words: bool) -> None:
    tts = hedged(lambda _: Says(end_secs=15.0), times_words=times_words)
    answers = ["We do so at ten.", "So do I if it is so."]
    spoken = Spoken(tts, answers)
    async with spoken.call as call:
        await call.play(ask, 1.8)  # it is heard, and would be waited for for 3 s
        asked_at = asyncio.get_running_loop().time()
        await call.play(ask, 10)
        begins_at = [begins for begins, _, _ in spoken.ear.words() if begins > asked_at]
        assert begins_at[0] - asked_at < 0.5
        assert call.remembered == answers


@pytest.mark.parametrize("times_words", [True, False])
async def test_what_no_voice_says_stays_out_of_the_context(times_words: bool) -> None:
    voice = only(1)
    tts = hedged(voice, lambda _: SILENT, times_words=times_words)
    asked = voices_of(tts)[0].asked
    voices_of(tts)[0].script = lambda n: SILENT if asked[n][1] == SENTENCES[1] else Says()
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        heard = f"{SENTENCES[0]} {SENTENCES[2]}"
        assert spoken.ear.text() == bare(heard)
        assert call.remembered == [heard]
        assert len(call.line.errors) == 1


async def test_what_no_voice_says_lets_nothing_overtake_what_is_before_it() -> None:
    tts = hedged(lambda _: Says())
    (voice,) = voices_of(tts)
    late, silence = Says(after_secs=0.9), Says(only_silence=True)
    says = {SENTENCES[0]: late, SENTENCES[1]: silence}
    voice.script = lambda number: says.get(voice.asked[number][1], Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        heard = f"{SENTENCES[0]} {SENTENCES[2]}"
        assert spoken.ear.text() == bare(heard)
        assert call.remembered == [heard]


async def test_a_cut_without_a_second_voice_leaves_the_rest_out_of_the_context() -> None:
    tts = hedged(only(0, 2, says=Says(stops_after=2)))
    spoken = Spoken(tts, ["Yes we are open."])
    voices_of(tts)[0].script = lambda _: Says(stops_after=2)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text().startswith("yes we")
        assert call.remembered[0].startswith("Yes we")
        assert bare(call.remembered[0]) == spoken.ear.text()


def other_sounds(*scripts: Callable[[int], Says]) -> HedgedTTSService:
    voices = [Voice(f"voice-{n}", ScriptedVoice(script)) for n, script in enumerate(scripts)]
    return HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)


async def test_another_voice_speaks_from_the_start_of_a_turn_on_and_stays() -> None:
    tts = other_sounds(only(0), lambda _: Says())
    spoken = Spoken(tts, [ANSWER, "Yes. Certainly."])
    async with spoken.call as call:
        await call.ask(2)
        said = [text for _, text in voices_of(tts)[1].asked]
        assert said == [*SENTENCES, "Yes.", "Certainly."]
        assert spoken.ear.text() == bare(f"{ANSWER} Yes. Certainly.")


async def test_another_voice_says_the_rest_of_its_sentence_itself() -> None:
    tts = other_sounds(only(0), only(0, says=Says(stops_after=2)))
    spoken = Spoken(tts, ["We are open until nine tonight."])
    async with spoken.call as call:
        await call.ask()
        first, second = voices_of(tts)
        assert len(first.asked) == 1
        assert [text for _, text in second.asked] == [SENTENCES[0], "open until nine tonight."]
        assert spoken.ear.text() == bare(SENTENCES[0])


async def test_nobody_else_speaks_in_the_middle_of_a_turn() -> None:
    tts = other_sounds(only(1), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        first, second = voices_of(tts)
        assert not second.asked
        assert [text for _, text in first.asked] == [*SENTENCES, SENTENCES[1]]
        assert spoken.ear.text() == bare(ANSWER)


@pytest.mark.parametrize("tenth", range(1, 21))
async def test_a_barge_in_ends_every_request_and_sound(tenth: int) -> None:
    """At 20 instants of a rescue; the context has the words that were played."""
    tts = hedged(only(0), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        await call.play(ask, 0.15 * tenth)
        await call.line.interrupt()
        at = asyncio.get_running_loop().time()
        await asyncio.sleep(10)
        assert all(end <= at + 0.05 for _, end, _ in spoken.ear.words())
        assert not any(each.open for each in voices_of(tts))
        heard = spoken.ear.text()
        told = bare(" ".join(call.remembered))
        assert told in (heard, heard.rpartition(" ")[0])
        assert left_in(tts) == []


async def test_nothing_is_left_in_a_voice() -> None:
    tts = hedged(only(0, 3, 4, says=SILENT), lambda _: Says())
    spoken = Spoken(tts, [ANSWER] * 4)
    async with spoken.call as call:
        await call.ask(4)
        assert left_in(tts) == []


@pytest.mark.parametrize("rate", [8000, 24000, 44100])
async def test_a_voice_of_another_rate_sounds_for_as_long(rate: int) -> None:
    heard: list[float] = []
    for each in (RATE, rate):
        spoken = Spoken(hedged(lambda _: Says(), sample_rate=each))
        async with spoken.call as call:
            await call.ask()
            assert call.remembered == [ANSWER]
        heard.append(spoken.ear.secs())
    assert heard[0] == pytest.approx(heard[1], rel=0.05)


async def test_the_end_of_the_call_waits_for_what_is_said() -> None:
    tts = hedged(lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        await call.play(ask, 0.1, EndFrame)
        await asyncio.sleep(10)
        assert spoken.ear.text() == bare(ANSWER)


def left_in(tts: HedgedTTSService) -> list[object]:
    """What of requests is still in the voices."""
    left: list[object] = []
    for voice in voices_of(tts):
        left += [*voice._tts_contexts, *voice._aggregated_frame_sequencer._slots, *voice.open]
    busy = [each for each in tts._stats.records().values() if each.limit.in_flight]
    return [*left, *busy, *tts._tts_contexts, *tts._sentences, *tts._turns]


# ---- figures


@pytest.mark.slow
async def test_calm_sentences_are_asked_once() -> None:
    rng = random.Random(3)
    script = lambda _: Says(after_secs=rng.lognormvariate(-1.8, 0.3), pace=100.0)  # noqa: E731
    tts = hedged(script, script)
    spoken = Spoken(tts, ["Yes. Certainly. We are open. Do come by."] * 500)
    async with spoken.call as call:
        await call.ask(500, gap_secs=4.0)
        first, second = voices_of(tts)
        extra = sum(len(text) for _, text in second.asked)
        print(f"{len(first.asked)} sentences, {len(second.asked)} of them asked again")
        assert len(first.asked) == 2000
        assert extra <= 0.001 * sum(len(text) for _, text in first.asked)
        assert spoken.ear.text().count("certainly") == 500
        assert left_in(tts) == []


async def test_a_voice_that_is_silent_in_a_whole_call_costs_no_turn_three_seconds() -> None:
    """The second turn is asked of the other one first; a recovered voice is asked first again."""
    tts = hedged(lambda _: SILENT, lambda _: Says())
    spoken = Spoken(tts, [ANSWER] * 30)
    async with spoken.call as call:
        starts: list[float] = []
        for turn in range(8):
            asked_at = await call.ask(gap_secs=10)
            starts.append(next(at for at, _, _ in spoken.ear.words() if at > asked_at) - asked_at)
            if turn == 3:
                voices_of(tts)[0].script = lambda _: Says()
        assert max(starts) < 1.5
        assert max(starts[2:]) < 0.5
        await call.ask(12, gap_secs=10)
        assert len(voices_of(tts)[0].asked) > 3 * 12
        assert spoken.ear.text() == " ".join([bare(ANSWER)] * 20)
        assert left_in(tts) == []


# ---- Pipecat's ways of speaking


@pytest.mark.parametrize("is_silent", [False, True])
async def test_an_uninterruptible_line_survives_an_interruption(is_silent: bool) -> None:
    """Also while it is rescued; a line that may be interrupted ends."""
    tts = hedged(lambda _: SILENT if is_silent else Says(), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        line = TTSSpeakFrame("Your call may be recorded.")
        line.interruptible = False
        await call.play(line, 0.3)
        await call.line.interrupt()
        await call.play(5)
        assert spoken.ear.text() == "your call may be recorded"
        await call.play(TTSSpeakFrame("And one that may end."), 0.3 + 0.5 * is_silent)
        await call.line.interrupt()
        await call.play(5)
        assert "end" not in spoken.ear.text()
        assert left_in(tts) == []


async def test_a_line_of_the_bot_s_own_is_remembered_as_with_bare() -> None:
    remembered: list[list[str]] = []
    for tts in (ScriptedVoice(), hedged(lambda _: Says(), lambda _: Says())):
        spoken = Spoken(tts)
        async with spoken.call as call:
            await call.play(TTSSpeakFrame("Good evening."), 3)
            await call.play(TTSSpeakFrame("One moment.", append_to_context=False), 3)
            await call.ask()
            remembered.append(call.remembered)
    assert remembered[0] == remembered[1] == ["Good evening.", ANSWER]


@pytest.mark.parametrize("times_words", [True, False])
async def test_answers_without_a_pause_between_them_are_remembered(times_words: bool) -> None:
    tts = hedged(lambda _: Says(), times_words=times_words)
    spoken = Spoken(tts, SENTENCES[:2])
    spoken.ear.ahead_secs = 0.1
    async with spoken.call as call:
        await call.play(TTSSpeakFrame("One moment."), ask, 0.3, ask, 10)
        assert call.remembered == ["One moment.", *SENTENCES[:2]]


@pytest.mark.parametrize("silent", [0, 1, 2])
async def test_a_voice_that_cannot_tell_its_requests_apart_is_asked_for_one_at_a_time(
    silent: int,
) -> None:
    """Its connection is renewed behind a silent one: late audio would pass for the next one's."""
    tts = hedged(
        only(silent, says=Says(after_secs=30.0)), lambda _: Says(), pause_frame_processing=True
    )
    first, second = voices_of(tts)
    connections: list[str] = []

    async def note(what: str) -> None:
        connections.append(what)

    first._connect = lambda: note("connect")  # pyright: ignore
    first._disconnect = lambda: note("disconnect")  # pyright: ignore
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert first.most_open == 1
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert SENTENCES[silent] in [text for _, text in second.asked]
        assert connections[:2] == ["disconnect", "connect"]


async def test_what_is_asked_again_comes_before_the_next_sentence() -> None:
    tts = hedged(only(1, says=Says(fails=True)), pause_frame_processing=True)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert [text for _, text in voices_of(tts)[0].asked] == [
            *SENTENCES[:2],
            *SENTENCES[1:],
        ]


async def test_words_that_were_timed_but_not_sounded_are_said_and_remembered_once() -> None:
    """Services send the times of words before their sound."""
    tts = hedged(lambda _: Says(stops_after=3, times_ahead=True), lambda _: Says())
    spoken = Spoken(tts, SENTENCES[:1])
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(SENTENCES[0])
        assert call.remembered == [SENTENCES[0]]


async def test_a_turn_is_reported() -> None:
    tts = hedged(only(1), lambda _: Says())
    reports: list[SpeechReport] = []

    async def take(_: object, report: SpeechReport) -> None:
        reports.append(report)

    tts.add_event_handler("on_speech_report", take)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        await call.play(ask, 0.5)
        await call.line.interrupt()
    first, second = reports
    assert (first.voice, first.sentences, first.rescued, first.left_out) == ("voice-0", 3, 1, 0)
    assert first.characters == sum(map(len, SENTENCES))
    assert first.extra_characters == len(SENTENCES[1])
    assert first.first_sound_secs == pytest.approx(0.1, abs=0.1)
    assert first.silent_secs < 0.3
    assert not first.was_interrupted
    assert second.was_interrupted


async def test_after_a_barge_in_nothing_is_taken_to_be_playing() -> None:
    """The audio was released, but not played; the next answer's silence is heard at once."""
    long = "So many words are said here that it takes a while. " * 6
    tts = hedged(only(6), lambda _: Says())
    spoken = Spoken(tts, [long, "Yes. Certainly."])
    async with spoken.call as call:
        await call.play(ask, 1.0)
        await call.line.interrupt()
        at = asyncio.get_running_loop().time()
        await call.ask()
        heard = [word for word in spoken.ear.words() if word[0] > at]
        assert [word for _, _, word in heard] == ["yes", "certainly"]
        assert heard[0][0] < at + 1.0


async def test_slow_voices_are_no_slower_for_being_hedged() -> None:
    """A request that may still be answered is not given up for a fresh one."""
    tts = hedged(lambda _: Says(after_secs=1.1), lambda _: Says(after_secs=1.1))
    spoken = Spoken(tts)
    async with spoken.call as call:
        asked_at = await call.ask()
        assert spoken.ear.words()[0][0] - asked_at < 1.3
        assert spoken.ear.text() == bare(ANSWER)
        assert len(voices_of(tts)[0].asked) == 3


class YieldingVoice(ScriptedVoice):
    """Yields its audio while it is asked, as services over HTTP do."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        self.asked.append((asyncio.get_running_loop().time(), text))
        for word in text.split():
            await asyncio.sleep(0.1)
            sound = self._sound(word).tobytes()
            yield TTSAudioRawFrame(sound, self.sample_rate, 1, context_id=context_id)


async def test_the_end_of_one_request_does_not_hide_the_end_of_the_next() -> None:
    """The next one runs by then, in a voice that yields its audio while it is asked."""
    voices = [Voice(f"voice-{n}", YieldingVoice(), same_voice=True) for n in (0, 1)]
    tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert spoken.ear.gaps() == []
        assert not voices_of(tts)[1].asked


class SlowYieldingVoice(YieldingVoice):
    """Takes 5 s to its first audio."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await asyncio.sleep(5.0)
        async for frame in super().run_tts(text, context_id):
            yield frame


@pytest.mark.parametrize("voices", [0, 1, 2])
async def test_slow_voices_over_http_are_waited_for_as_with_bare(voices: int) -> None:
    """0 voices is the bare service. No request that may still be answered is given up."""
    tts: TTSService = SlowYieldingVoice(times_words=False)
    if voices:
        hosted = [Voice(f"voice-{n}", SlowYieldingVoice(), same_voice=True) for n in range(voices)]
        tts = HedgedTTSService(hosted, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        began = asyncio.get_running_loop().time()
        await call.play(ask, 60)
        assert spoken.ear.text() == bare(ANSWER)
        assert spoken.ear.words()[0][0] - began < 5.5


async def test_a_text_outside_of_a_turn_holds_nothing_up() -> None:
    tts = hedged(lambda _: Says(), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.play(lambda: TextFrame("Good evening. "), lambda: TextFrame("Hello. "), 5)
        assert spoken.ear.text() == "good evening"  # the aggregator waits for what is behind it
        asked_at = asyncio.get_running_loop().time()
        await call.ask()
        assert spoken.ear.text() == f"good evening hello {bare(ANSWER)}"
        assert spoken.ear.words()[-1][1] < asked_at + 10
        assert left_in(tts) == []


async def test_the_end_of_the_call_ends_a_turn_that_is_open() -> None:
    tts = hedged(lambda _: Says(), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await tts.queue_frame(LLMFullResponseStartFrame())
        await tts.queue_frame(LLMTextFrame("Good evening. We are "))
        await call.play(0.05, EndFrame, 5)
        assert spoken.ear.text() == "good evening"
        assert call.line.frames(EndFrame)


@pytest.mark.parametrize(
    ("voices", "options", "message"),
    [
        (None, {"buget": 0.1}, "buget is no argument of HedgedTTSService: did you mean budget?"),
        (None, {"policy": "race"}, "policy is no argument of HedgedTTSService"),
        (None, {"budget": -1}, "budget must be from 0 to 1, got -1"),
        ([], {}, "voices must list at least one Voice: write"),
        (Voice("a", ScriptedVoice(lambda _: Says())), {}, "must be a list of Voice, not one Voice"),
        ([ScriptedVoice(lambda _: Says())], {}, "must list Voice objects, got a ScriptedVoice"),
    ],
)
def test_invalid_arguments_are_named(voices: Any, options: Any, message: str) -> None:
    if voices is None:
        voices = [Voice("a", ScriptedVoice(lambda _: Says()))]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        HedgedTTSService(voices, **options)


def test_how_audio_is_framed_is_no_option() -> None:
    with pytest.raises(ConfigurationError, match="push_text_frames is the service's own"):
        HedgedTTSService([Voice("voice", ScriptedVoice())], push_text_frames=True)


async def test_an_error_that_names_no_request_fails_one() -> None:
    """The others of the voice may be answered."""
    tts = hedged(only(0, says=Says(fails=True)), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert [text for _, text in voices_of(tts)[1].asked] == [SENTENCES[0]]


async def test_silent_voices_hold_the_end_of_the_call_up_for_some_seconds_a_sentence() -> None:
    tts = hedged(lambda _: SILENT, lambda _: SILENT)
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        began = asyncio.get_running_loop().time()
        await call.play(ask, 0.1, EndFrame)
        await call.line.until(lambda: bool(call.line.frames(EndFrame)))
        assert asyncio.get_running_loop().time() - began < 30


def test_single_tokens_are_not_spoken() -> None:
    with pytest.raises(ConfigurationError, match="text_aggregation_mode"):
        HedgedTTSService(
            [Voice("voice", ScriptedVoice())], text_aggregation_mode=TextAggregationMode.TOKEN
        )


@pytest.mark.parametrize("silent", [1, 2])
async def test_a_silent_sentence_behind_one_whose_end_is_not_marked_is_not_waited_for(
    silent: int,
) -> None:
    unmarked = Says(end_secs=None)
    tts = hedged(lambda n: SILENT if n == silent else unmarked, lambda _: unmarked)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert all(gap < 0.5 for gap in spoken.ear.gaps())


async def test_a_silence_in_the_middle_of_a_turn_is_free_of_the_budget() -> None:
    voices = [
        Voice(f"voice-{n}", ScriptedVoice(script), same_voice=True)
        for n, script in enumerate([only(1), lambda _: Says()])
    ]
    tts = HedgedTTSService(voices, budget=0, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts, ["Yes we are. And so we are tonight."])
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == "yes we are and so we are tonight"
        assert all(gap < 0.3 for gap in spoken.ear.gaps())


async def test_a_line_of_the_bot_s_own_in_a_turn_lets_nobody_else_into_it() -> None:
    tts = other_sounds(only(2), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await tts.queue_frame(LLMFullResponseStartFrame())
        await tts.queue_frame(LLMTextFrame("Yes we are. W"))
        await tts.queue_frame(TTSSpeakFrame("One moment."))
        await tts.queue_frame(LLMTextFrame("e are open."))
        await tts.queue_frame(LLMFullResponseEndFrame())
        await call.play(20)
        first, second = voices_of(tts)
        assert [text for _, text in first.asked[2:]] == ["We are open.", "We are open."]
        assert not second.asked
        assert spoken.ear.text() == "yes we are we are open one moment"


class ForeignVoice(ScriptedVoice):
    """Has a name of its own for a language."""

    def language_to_service_language(self, language: Language) -> str:
        return {Language.DE: "deu"}[language]


async def test_settings_reach_the_voice_they_are_for() -> None:
    first, second = ForeignVoice(), ScriptedVoice()
    tts = HedgedTTSService([Voice("a", first), Voice("b", second)], sample_rate=RATE)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await tts.queue_frame(TTSUpdateSettingsFrame(delta=TTSSettings(voice="x"), service=second))
        await tts.queue_frame(TTSUpdateSettingsFrame(delta=TTSSettings(language=Language.DE)))
        await call.play(1)
        assert (first._settings.voice, second._settings.voice) == (None, "x")
        assert (first._settings.language, second._settings.language) == ("deu", Language.DE)
        assert tts.text_aggregation_language == "de"


@pytest.mark.parametrize("frame", [EndFrame, CancelFrame])
async def test_the_last_turn_of_a_call_is_reported(frame: type[Frame]) -> None:
    tts = hedged(lambda _: Says(), lambda _: Says())
    reports: list[SpeechReport] = []

    async def take(_: object, report: SpeechReport) -> None:
        reports.append(report)

    tts.add_event_handler("on_speech_report", take)
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        await call.play(ask, 0.5, frame, 10)
    assert [each.was_interrupted for each in reports] == [frame is CancelFrame]


@pytest.mark.parametrize("parts", [("\u263a", "Yes."), ("Yes.", "\u263a"), ("...",)])
async def test_what_has_no_sound_is_remembered_and_asked_of_nobody(parts: Sequence[str]) -> None:
    tts = hedged(lambda _: Says(), lambda _: Says())
    spoken = Spoken(tts)
    async with spoken.call as call:
        await tts.queue_frame(LLMFullResponseStartFrame())
        for part in parts:
            await tts.queue_frame(AggregatedTextFrame(part, "sentence"))
        await tts.queue_frame(LLMFullResponseEndFrame())
        await call.play(5)
        assert call.remembered == [" ".join(parts)]
        assert {text for _, text in voices_of(tts)[0].asked} <= {"Yes."}
        assert not any("no voice" in each.error for each in call.line.errors)
        assert left_in(tts) == []


async def test_what_is_due_by_the_clock_is_asked_at_any_time_of_it() -> None:
    """No rounding of times keeps the loop busy: 0.4 + 1.0 - 0.4 is less than 1.0."""
    voices = [
        Voice(f"voice-{n}", ScriptedVoice(script), same_voice=True)
        for n, script in enumerate([only(0), lambda _: Says()])
    ]
    tts = HedgedTTSService(voices, budget=0, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await asyncio.sleep(0.4 - asyncio.get_running_loop().time())
        await call.ask()
        assert voices_of(tts)[1].asked[0][0] == pytest.approx(0.4 + 1.0)
        assert spoken.ear.text() == bare(ANSWER)


async def test_a_silent_rest_is_asked_again() -> None:
    tts = hedged(only(0, says=Says(stops_after=3)), only(0))
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert all(gap < 3.5 for gap in spoken.ear.gaps())


async def test_a_connection_is_renewed_before_its_next_use() -> None:
    """The next request waits for that, also where the handshake takes its time."""
    tts = hedged(only(0), lambda _: Says(), pause_frame_processing=True)
    first, _ = voices_of(tts)
    events: list[str] = []

    async def connect() -> None:
        await asyncio.sleep(0.05)
        events.append(f"connected after {len(first.asked)}")

    async def disconnect() -> None:
        events.append(f"disconnected after {len(first.asked)}")

    first._connect, first._disconnect = connect, disconnect  # pyright: ignore
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert events == ["disconnected after 1", "connected after 1"]
        assert len(first.asked) == 3
        assert spoken.ear.text() == bare(ANSWER)
        assert all(gap < 0.3 for gap in spoken.ear.gaps())


async def test_a_barge_in_says_nothing_of_a_voice() -> None:
    """Five before the first sound, and then a single silence: its breaker stays closed."""
    tts = hedged(only(5), lambda _: Says())
    spoken = Spoken(tts, ["Yes."])
    async with spoken.call as call:
        for _ in range(5):
            await call.play(ask, 0.05)
            await call.line.interrupt()
        await call.ask(2)
        first, second = voices_of(tts)
        assert [len(first.asked), len(second.asked)] == [7, 1]


# ---- Retry-After


def busy(secs: float) -> Says:
    return Says(fails=True, retry_after_secs=secs)


async def test_a_voice_that_sends_retry_after_is_not_asked_before() -> None:
    tts = hedged(only(0, says=busy(30.0)), lambda _: Says())
    spoken = Spoken(tts, ["Yes we are."] * 4)
    async with spoken.call as call:
        began_at = await call.ask()
        await call.ask(3, gap_secs=15)
        first, second = voices_of(tts)
        assert [len(first.asked), len(second.asked)] == [3, 2]
        assert first.asked[1][0] > began_at + 30


@pytest.mark.parametrize(("one", "two"), [(1.0, 60.0), (60.0, 1.0)])
async def test_of_voices_that_are_all_held_back_the_one_due_first_is_asked(
    one: float, two: float
) -> None:
    """When it is due; a request before is one that its provider has announced to reject."""
    tts = hedged(only(0, says=busy(one)), only(0, says=busy(two)))
    spoken = Spoken(tts, ["Yes we are.", "And so we are tonight."])
    async with spoken.call as call:
        await call.ask(2)
        asked = [[text for _, text in each.asked] for each in voices_of(tts)]
        due = asked.pop(one > two)
        assert due == ["Yes we are.", "Yes we are.", "And so we are tonight."]
        assert asked == [["Yes we are."]]
        assert spoken.ear.text() == "yes we are and so we are tonight"
        assert not call.line.errors


async def test_a_voice_is_asked_for_a_silent_one_when_its_retry_after_ends() -> None:
    tts = hedged(lambda _: SILENT, only(0, says=busy(3.0)))
    first, second = voices_of(tts)
    first.script = lambda number: (Says(fails=True), Says(), SILENT)[number]
    spoken = Spoken(tts, ["Yes we are.", "And so we are tonight."])
    async with spoken.call as call:
        began_at = await call.ask(gap_secs=1.5)
        await call.ask()
        assert [len(first.asked), len(second.asked)] == [3, 2]
        assert second.asked[1][0] == pytest.approx(began_at + 0.2 + 3.0)
        assert spoken.ear.text() == "yes we are and so we are tonight"


# ---- markup


MARKED = 'We <prosody rate="slow">ask <phoneme ph="a b">two men</phoneme> a</prosody> tomorrow.'


@pytest.mark.parametrize("times_words", [True, False])
@pytest.mark.parametrize("stops_after", [1, 2, 3, 4, 5])
async def test_a_rest_has_the_markup_that_was_open(stops_after: int, times_words: bool) -> None:
    """No break is in a tag. The context has the model's text, without the markup."""

    async def mark(text: str, _: str) -> str:
        return MARKED

    rests = {
        1: MARKED.removeprefix("We "),
        2: '<prosody rate="slow"><phoneme ph="a b">two men</phoneme> a</prosody> tomorrow.',
        3: '<prosody rate="slow"><phoneme ph="a b">men</phoneme> a</prosody> tomorrow.',
        4: '<prosody rate="slow">a</prosody> tomorrow.',
        5: "tomorrow.",
    }
    scripts = (only(0, says=Says(stops_after=stops_after)), lambda _: Says())
    services = [ScriptedVoice(each, times_words=times_words) for each in scripts]
    voices = [Voice(f"voice-{n}", it, same_voice=True) for n, it in enumerate(services)]
    tts = HedgedTTSService(
        voices, stats=ProviderStats(), sample_rate=RATE, text_transforms=[("*", mark)]
    )
    answer = "We ask two men a tomorrow."
    spoken = Spoken(tts, [answer])
    async with spoken.call as call:
        await call.ask()
        (rest,) = [text for _, text in services[1].asked]
        if times_words:
            assert rest == rests[stops_after]
            assert spoken.ear.text() == bare(answer)
        else:
            assert rest in rests.values()
        assert call.remembered == [answer]


# ---- characters


async def test_a_request_that_was_not_sent_costs_nothing() -> None:
    """It waits for an earlier one, of a voice that takes one at a time."""
    first, second = (
        ScriptedVoice(lambda _: Says(fails=True)),
        ScriptedVoice(lambda _: SILENT, pause_frame_processing=True),
    )
    voices = [Voice("one", first), Voice("two", second, same_voice=True)]
    tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
    reports: list[SpeechReport] = []

    async def take(_: object, report: SpeechReport) -> None:
        reports.append(report)

    tts.add_event_handler("on_speech_report", take)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.play(ask, 0.3)
        await call.line.interrupt()
        await call.play(1.0)
        assert [text for _, text in second.asked] == [SENTENCES[0]]
        used = [data for frame in call.line.frames(MetricsFrame) for data in frame.data]
    characters = sum(map(len, SENTENCES))
    assert [(each.characters, each.extra_characters) for each in reports] == [
        (characters, len(SENTENCES[0]))
    ]
    usage = [each for each in used if isinstance(each, TTSUsageMetricsData)]
    assert {each.processor for each in usage} == {tts.name}
    assert sum(each.value for each in usage) == characters + len(SENTENCES[0])


class ClockedVoice(ScriptedVoice):
    """Times words by a clock that ends with a context, as ElevenLabs' service does."""

    clock_secs = 0.0

    async def add_word_timestamps(
        self, word_times: Sequence[tuple[str, float]], *args: Any, **kwargs: Any
    ) -> None:
        shifted = [(word, self.clock_secs + secs) for word, secs in word_times]
        await super().add_word_timestamps(shifted, *args, **kwargs)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        await super().on_audio_context_interrupted(context_id)
        self.clock_secs = 0.0

    async def on_audio_context_completed(self, context_id: str) -> None:
        await super().on_audio_context_completed(context_id)
        self.clock_secs = 0.0

    async def _disconnect(self) -> None:
        self.clock_secs += 5.0  # a word that was on its way

    async def _connect(self) -> None:
        pass


async def test_what_comes_behind_an_interruption_shifts_no_word_of_the_next_answer() -> None:
    tts = HedgedTTSService(
        [Voice("voice", ClockedVoice(lambda _: Says(pace=1.0), pause_frame_processing=True))],
        stats=ProviderStats(),
        sample_rate=RATE,
    )
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.play(ask, 0.5)
        await call.line.interrupt()
        await call.play(5, ask, 1.0)
        await call.line.interrupt()
        await call.play(5)
        assert bare(call.remembered[-1]) == "we are open until nine"
        assert spoken.ear.text().endswith("we are open until nine")


class OpeningVoice(ScriptedVoice):
    """Opens a context before its first text, as ElevenLabs' and others' services do."""

    def __init__(self) -> None:
        super().__init__()
        self._push_start_frame = False
        self.opened: list[str] = []

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        if not self.audio_context_available(context_id):
            await self.create_audio_context(context_id)
            self.opened.append(text)
        assert self.audio_context_available(context_id)
        async for frame in super().run_tts(text, context_id):
            yield frame


async def test_a_service_sends_the_settings_of_each_request() -> None:
    voice = OpeningVoice()
    voices = [Voice("voice", voice)]
    spoken = Spoken(HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE))
    async with spoken.call as call:
        await call.ask()
        assert voice.opened == [*SENTENCES]
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]


class ConnectedVoice(WebsocketTTSService):
    """Opens a connection unless it has one, as Pipecat's services do; that takes 0.1 s."""

    def __init__(self) -> None:
        super().__init__(settings=TTSSettings(model=None, voice=None, language=None))
        self.opened = self.closed = 0

    async def _connect_websocket(self) -> None:
        if self._websocket is None:
            await asyncio.sleep(0.1)
            self._websocket, self.opened = object(), self.opened + 1  # pyright: ignore

    async def _disconnect_websocket(self) -> None:
        closing, self._websocket = self._websocket, None
        await asyncio.sleep(0.1)
        self.closed += closing is not None

    async def _receive_messages(self) -> None:
        pass

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        yield None


async def test_a_connection_that_is_renewed_twice_at_once_is_opened_once() -> None:
    """By the reader that has noticed its end, and by a request that has found it closed."""
    voice = ConnectedVoice()
    HedgedTTSService([Voice("voice", voice)], stats=ProviderStats())

    async def renew() -> None:
        await voice._disconnect_websocket()
        await voice._connect_websocket()

    await voice._connect_websocket()
    await asyncio.gather(renew(), voice._connect_websocket())
    assert voice.opened - voice.closed == 1


async def test_the_pace_of_one_voice_is_not_taken_for_another_s() -> None:
    """The second one speaks faster, times no words, and marks no end: it is not taken for cut."""
    first = ScriptedVoice(only(1), times_words=False)
    second = ScriptedVoice(lambda _: Says(end_secs=None), times_words=False)
    voices = [Voice("one", first), Voice("two", second, same_voice=True)]
    tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts, ["A b c d e f g h.", "Yes you may sit."])
    async with spoken.call as call:
        await call.ask(2)
        assert [len(first.asked), len(second.asked)] == [2, 1]
        assert spoken.ear.text() == "a b c d e f g h yes you may sit"


class SlowToCancel(ScriptedVoice):
    """Takes a second to cancel a request."""

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        await asyncio.sleep(1.0)
        await super().on_audio_context_interrupted(context_id)


async def test_a_barge_in_while_a_failed_request_is_cancelled_leaves_its_voice_free() -> None:
    voice = SlowToCancel(only(0, says=Says(fails=True)), pause_frame_processing=True)
    tts = HedgedTTSService([Voice("voice", voice)], stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts, ["Yes we are."])
    async with spoken.call as call:
        await call.play(ask, 0.5)
        await call.line.interrupt()
        await call.play(3, ask, 5)
        assert spoken.ear.text() == "yes we are"
        assert left_in(tts) == []


class HangingHandshake(ConnectedVoice):
    """Connects as it starts, which takes ten seconds; closing waits for that."""

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self._connect_websocket()

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._disconnect_websocket()

    async def _connect_websocket(self) -> None:
        await asyncio.sleep(10.0)


async def test_a_call_ends_while_a_spare_voice_is_still_connecting() -> None:
    voices = [Voice("one", ScriptedVoice(lambda _: Says())), Voice("two", HangingHandshake())]
    tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts, ["Yes."])
    async with spoken.call as call:
        await call.play(ask, 2.0)
        ends_at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() < ends_at + 5.0


class StallingVoice(ScriptedVoice):
    """Yields its audio while it is asked, and stops in some requests after two words.

    Attributes:
        stalls: How long, in seconds, by the request's number.
        first_secs: To the first sound, by the request's number; else 0.1.
    """

    def __init__(
        self, stalls: dict[int, float] | None = None, first_secs: dict[int, float] | None = None
    ):
        super().__init__(times_words=False)
        self.stalls, self.first_secs = stalls or {}, first_secs or {}

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        number = len(self.asked)
        self.asked.append((asyncio.get_running_loop().time(), text))
        await asyncio.sleep(self.first_secs.get(number, 0.1))
        for at, word in enumerate(text.split()):
            await asyncio.sleep(self.stalls.get(number, 0.0) if at == 2 else 0.02)
            sound = self._sound(word).tobytes()
            yield TTSAudioRawFrame(sound, self.sample_rate, 1, context_id=context_id)


EACH_2, EACH_4, EACH_5 = (dict.fromkeys(range(20), secs) for secs in (2.0, 4.0, 5.0))


@pytest.mark.parametrize(
    ("voices", "longest_secs"),
    [
        ([StallingVoice({0: 60.0})], 3.0),  # after which a fresh request is worth the stalled one
        ([StallingVoice({0: 2.0})], 2.0),
        ([StallingVoice({0: 4.0}, {0: 5.0, 1: 5.0})], 4.5),  # bare 4.3
        ([StallingVoice({0: 60.0}, {0: 1.2}), StallingVoice(first_secs={0: 2.0})], 0.1),
        ([StallingVoice({0: 60.0}), StallingVoice(first_secs={0: 60.0})], 3.2),
        ([StallingVoice({0: 4.0}, EACH_5), StallingVoice({0: 4.0}, EACH_5)], 4.5),  # bare 4.3
        ([StallingVoice(EACH_4, EACH_2), StallingVoice(EACH_4, EACH_2)], 3.7),  # bare 3.6
    ],
    ids=[
        *("alone", "alone, short", "alone, slow", "other one was overtaken", "other one is silent"),
        *("both slow, both stall once", "both stall in each sentence"),
    ],
)
async def test_a_voice_over_http_that_stalls_in_a_sentence_loses_no_word(
    voices: list[StallingVoice], longest_secs: float
) -> None:
    hosted = [Voice(f"voice-{n}", each, same_voice=True) for n, each in enumerate(voices)]
    tts = HedgedTTSService(hosted, stats=ProviderStats(), sample_rate=RATE)
    spoken = Spoken(tts)
    async with spoken.call as call:
        call.context.add_message({"role": "user", "content": "Are you open?"})
        await call.play(ask, 60)
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert max([0.0, *spoken.ear.gaps()]) < longest_secs
        assert left_in(tts) == []
