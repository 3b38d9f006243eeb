"""A hedged voice behaves as its first voice alone: what goes in and comes out, frame by frame."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pipecat.clocks.system_clock import SystemClock
from pipecat.frames.frames import (
    AggregatedTextFrame,
    AggregatedTextProgressFrame,
    BotBackchannelFrame,
    CancelFrame,
    DataFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    StopFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.tests.utils import SleepFrame, run_test
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.text.base_text_aggregator import TextType
from pipecat.utils.text.base_text_filter import BaseTextFilter

from pipecat_hedge import HedgedTTSService, ProviderStats, Voice

pytestmark = pytest.mark.virtual_time

RATE = 16_000
WORD_SECS = 0.2
SOUND = np.tile([6000, -6000], int(RATE * WORD_SECS / 2)).astype(np.int16).tobytes()
FAILS = "Fails."


class Recorded(TTSService):
    """Yields its audio as services over HTTP do, ten times as fast as it sounds.

    As theirs, its words are timed from the start of the turn, whose end it learns as it pushes it.

    Attributes:
        got: The texts and the settings that it gets, and its end.
    """

    def __init__(
        self,
        *,
        times_words: bool = True,
        language: Language | None = None,
        spaced: bool = False,
        **options: Any,
    ):
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            push_text_frames=not times_words,
            settings=TTSSettings(model="scripted-1", voice="one", language=language),
            **options,
        )
        self.got: list[object] = []
        self._times_words, self._spaced = times_words, spaced
        self._turn_secs = 0.0

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        self.got.append(text)
        if text == FAILS:
            yield ErrorFrame("secret words", category=ErrorCategory.SERVER)
            return
        await self.start_tts_usage_metrics(text)
        words = [text[:1], text[1:]] if self._spaced else text.split()
        for number, word in enumerate(words):
            await asyncio.sleep(WORD_SECS / 10)
            if self._times_words:
                at = self._turn_secs + number * WORD_SECS
                await self.add_word_timestamps([(word, at)], context_id, self._spaced)
            yield TTSAudioRawFrame(SOUND, RATE, 1, context_id=context_id)
        self._turn_secs += len(words) * WORD_SECS

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        await super().push_frame(frame, direction)
        if isinstance(frame, (InterruptionFrame, TTSStoppedFrame)):
            self._turn_secs = 0.0

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        self.got.append((self._settings.voice, self._settings.language))
        return changed

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        self.got.append("stopped")

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        self.got.append("cancelled")


@dataclass
class Mark(DataFrame):
    """Something else in the pipeline."""

    text: str = "mark"


@pytest.fixture(autouse=True)
def _words_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are timed by the pipeline's clock: without this by the machine's speed."""

    def get_time(_: SystemClock) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    monkeypatch.setattr(SystemClock, "get_time", get_time)


def hedged(voice: TTSService, *others: TTSService, **options: Any) -> HedgedTTSService:
    voices = [Voice(f"voice-{n}", v, same_voice=True) for n, v in enumerate((voice, *others))]
    return HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE, **options)


def answer(*tokens: str, **skips: bool) -> list[Frame]:
    frames = [LLMFullResponseStartFrame(), *map(LLMTextFrame, tokens), LLMFullResponseEndFrame()]
    for frame in frames:
        frame.skip_tts = skips.get("skip_tts", False)  # pyright: ignore[reportAttributeAccessIssue]
    return frames


def line(text: str = "One moment please.", **options: Any) -> Frame:
    return TTSSpeakFrame(text, **options)


def firm() -> Frame:
    """What may not be interrupted."""
    frame = line("This is recorded.")
    frame.interruptible = False
    return frame


def pausing(secs: float, *behind: Frame) -> list[Frame]:
    """An answer whose second sentence comes late, behind other frames."""
    first, *rest = answer("We are open. Shall", " we book a table?")
    return [first, rest[0], SleepFrame(secs), *behind, *rest[1:]]


OPEN = ("We are", " open. Shall", " we book", " a table?")


@dataclass(frozen=True)
class Case:
    """Frames, the options of the service that cuts the text, and whether the call ends behind."""

    frames: Callable[[], list[Frame]]
    options: Callable[[], dict[str, Any]] = dict
    ends: bool = True


class NoStars(BaseTextFilter):
    """Leaves stars out."""

    async def filter(self, text: str) -> str:
        return text.replace("*", "")


async def spelled(text: str, text_type: str) -> str:
    return text.replace("&", "and")


async def broken(text: str, text_type: str) -> str:
    raise ValueError("no such word")


CASES = {
    "a line": Case(lambda: [line()]),
    "a line that is not remembered": Case(lambda: [line(append_to_context=False)]),
    "two lines": Case(lambda: [line(), line("Here you are.")]),
    "a line of a type of its own": Case(lambda: [line(text_type="status")]),
    "a backchannel": Case(lambda: [BotBackchannelFrame("Yes yes.")]),
    "an answer": Case(lambda: answer(*OPEN)),
    "two answers": Case(lambda: [*answer(*OPEN), *answer("Certainly sir.")]),
    "an answer without a stop": Case(lambda: answer("We are open until")),
    "an answer of tools only": Case(
        lambda: [answer()[0], FunctionCallsStartedFrame([]), answer()[-1], *answer(*OPEN)]
    ),
    "an answer of blanks": Case(lambda: answer(" ", "\n")),
    "an answer that is not spoken": Case(lambda: answer(*OPEN, skip_tts=True)),
    "an answer that is not spoken behind one that is": Case(
        lambda: [*answer(*OPEN), *answer("A note. And more.", skip_tts=True)]
    ),
    "a line in an answer": Case(
        lambda: [*answer(*OPEN)[:2], line(), *answer(" open.")[1:], *answer("Yes sir.")]
    ),
    "a pause in an answer": Case(lambda: [*pausing(6.0), *answer("Yes sir.")]),
    "a line in a pause of an answer": Case(
        lambda: [*pausing(6.0, line(), SleepFrame(2.0)), *answer("Yes sir.")]
    ),
    "a pause at the end of an answer": Case(
        lambda: [*answer("We are open. Shall")[:2], SleepFrame(6.0), answer()[-1], line()]
    ),
    "an interruption of a pause in an answer": Case(
        lambda: [*pausing(6.0, InterruptionFrame())[:4], SleepFrame(0.1), *answer("Yes sir.")]
    ),
    "texts without an answer": Case(
        lambda: [TextFrame("Good evening. "), TextFrame("Hello. "), *answer("Yes sir.")]
    ),
    "sentences cut before": Case(
        lambda: [
            answer()[0],
            AggregatedTextFrame("We are open", TextType.SENTENCE),
            AggregatedTextFrame("print()", "code"),
            AggregatedTextFrame("It runs", TextType.SENTENCE),
            answer()[-1],
        ],
        lambda: {"skip_text_types": ["code"]},
    ),
    "something that is not spoken first": Case(
        lambda: [
            AggregatedTextFrame("print()", "code"),
            AggregatedTextFrame("It runs", TextType.SENTENCE),
        ],
        lambda: {"skip_text_types": ["code"]},
    ),
    "what the model wrote": Case(
        lambda: [AggregatedTextFrame("41 11", TextType.SENTENCE, raw_text="<card>41 11</card>")]
    ),
    "a transform": Case(
        lambda: answer("Fish & chips. And", " peas & rice."),
        lambda: {"text_transforms": [("*", spelled)]},
    ),
    "a transform of a type": Case(
        lambda: [line("Fish & chips.", text_type="status"), line("Peas & rice.")],
        lambda: {"text_transforms": [("status", spelled)]},
    ),
    "a transform that fails": Case(
        lambda: [line(), *answer(*OPEN)], lambda: {"text_transforms": [("sentence", broken)]}
    ),
    "silence behind the speech": Case(
        lambda: [line()], lambda: {"push_silence_after_stop": True, "silence_time_s": 0.5}
    ),
    "a destination": Case(lambda: [line()], lambda: {"transport_destination": "hall"}),
    "frames held back": Case(
        lambda: [line(), Mark("1"), *answer(*OPEN), Mark("2"), line("Here you are.")],
        lambda: {"pause_frame_processing": True},
    ),
    "other frames": Case(
        lambda: [line(), Mark("1"), *answer(*OPEN), Mark("2"), line("Here you are."), Mark("3")]
    ),
    "an interruption": Case(
        lambda: [*answer(*OPEN), SleepFrame(0.09), InterruptionFrame(), *answer("Yes sir.")]
    ),
    "an interruption before a sound": Case(
        lambda: [
            *answer("We are open."),
            SleepFrame(0.01),
            InterruptionFrame(),
            *answer("Yes sir."),
        ]
    ),
    "an interruption of a half sentence": Case(
        lambda: [
            *answer("We are open")[:-1],
            SleepFrame(0.1),
            InterruptionFrame(),
            SleepFrame(0.1),
            *answer("Yes sir."),
        ]
    ),
    "an interruption of nothing": Case(
        lambda: [line(), SleepFrame(1.0), InterruptionFrame(), SleepFrame(0.1), *answer(*OPEN)]
    ),
    "an interruption of what may not be": Case(
        lambda: [firm(), SleepFrame(0.03), InterruptionFrame(), SleepFrame(1.0), line()]
    ),
    "settings": Case(lambda: [line(), settings(), *answer(*OPEN), settings("three"), line()]),
    "a cancelled call": Case(lambda: [line(), SleepFrame(1.0), CancelFrame()], ends=False),
    "a call cancelled in the middle": Case(
        lambda: [*answer(*OPEN), SleepFrame(0.09), CancelFrame()], ends=False
    ),
    "a stopped pipeline": Case(lambda: [line(), SleepFrame(1.0), StopFrame()], ends=False),
}


def settings(voice: str = "two", service: FrameProcessor | None = None) -> TTSUpdateSettingsFrame:
    delta = TTSSettings(voice=voice, language=Language.FR)
    return TTSUpdateSettingsFrame(delta=delta, service=service)


def described(frame: Frame) -> tuple[object, ...]:
    """What a frame says, without what is its own."""
    kind = type(frame).__name__
    if isinstance(frame, TTSTextFrame):
        said = (frame.text, frame.raw_text, frame.append_to_context, frame.interruptible)
        return kind, *said, frame.transport_destination
    if isinstance(frame, AggregatedTextFrame):
        told = (frame.text, frame.text_type, frame.append_to_context, frame.will_be_spoken)
        return kind, *told, frame.interruptible, getattr(frame, "skip_tts", None)
    if isinstance(frame, AggregatedTextProgressFrame):
        return kind, frame.accumulated_text, frame.remaining_text
    if isinstance(frame, TTSStartedFrame):
        return kind, frame.append_to_context, frame.interruptible, frame.transport_destination
    if isinstance(frame, TTSAudioRawFrame):
        return kind, len(frame.audio), any(frame.audio), frame.transport_destination
    if isinstance(frame, ErrorFrame):
        return kind, frame.error, frame.category
    return kind, getattr(frame, "text", None)


async def trace(voice: Recorded, played: FrameProcessor, case: Case) -> dict[str, list[Any]]:
    """What comes out downstream and upstream, the words' seconds, and what the voice gets.

    Sentences are announced in order, but by the voice's way to send audio before or behind the
    sound of the sentence before.
    """
    down, up = await run_test(played, frames_to_send=case.frames(), send_end_frame=case.ends)
    got = [*voice.got]
    if not case.ends:  # Pipecat leaves the processors of a stopped pipeline as they are
        await played.cleanup()
    announced = [f for f in down if isinstance(f, AggregatedTextFrame) and f.will_be_spoken]
    announced = [frame for frame in announced if not isinstance(frame, TTSTextFrame)]
    times: dict[str | None, list[tuple[str, int]]] = {}
    for frame in down:
        if isinstance(frame, TTSTextFrame):
            times.setdefault(frame.context_id, []).append((frame.text, frame.pts or 0))
    return {
        "down": [described(frame) for frame in down if frame not in announced],
        "announced": [described(frame) for frame in announced],
        "times": [
            [(word, round((at - words[0][1]) / 1e9, 2)) for word, at in words]
            for words in times.values()
        ],
        "up": [described(frame) for frame in up],
        "got": got,
    }


@pytest.mark.parametrize("name", CASES)
async def test_same_frames_as_the_voice_alone(name: str) -> None:
    case = CASES[name]
    alone = Recorded(**case.options())
    voice, other = Recorded(), Recorded()
    bare = await trace(alone, alone, case)
    assert await trace(voice, hedged(voice, other, **case.options()), case) == bare
    assert [each for each in other.got if isinstance(each, str)] in ([], ["stopped"], ["cancelled"])


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(lambda: [*pausing(2.0, line()), *answer("Yes sir.")], id="a short pause"),
        pytest.param(
            lambda: [*pausing(6.0)[:-1], SleepFrame(6.0), line(), *answer(" Do come by.")[1:]],
            id="a second pause",
        ),
    ],
)
async def test_words_beside_a_line_in_a_pause_are_timed_by_what_is_heard(
    frames: Callable[[], list[Frame]],
) -> None:
    """Each begins where the sound before it ends; the voice alone does not know of the pause."""
    alone, voice = Recorded(), Recorded()
    bare, both = (
        await trace(alone, alone, Case(frames)),
        await trace(voice, hedged(voice), Case(frames)),
    )
    assert bare.pop("times") != both.pop("times")
    assert both == bare


@pytest.mark.parametrize("name", ["a line", "an answer", "two answers", "an interruption"])
async def test_words_of_a_voice_that_times_none(name: str) -> None:
    """A sentence is one word frame with a time, behind its audio, and not one of its own type."""
    case = CASES[name]
    alone, voice = Recorded(times_words=False), Recorded(times_words=False)
    bare = await trace(alone, alone, case)
    both = await trace(voice, hedged(voice), case)

    def said(traced: dict[str, list[Any]]) -> list[object]:
        return [each[:2] for each in traced["down"] if "Progress" not in each[0]]

    assert said(both) == said(bare)
    down, _ = await run_test(hedged(Recorded(times_words=False)), frames_to_send=[line()])
    words = [frame for frame in down if isinstance(frame, TTSTextFrame)]
    assert [(frame.text, frame.text_type) for frame in words] == [
        ("One moment please.", TextType.WORD)
    ]
    assert words[0].pts


KINDS = pytest.mark.parametrize("is_hedged", [False, True], ids=["bare", "hedged"])


def playing(is_hedged: bool, voice: TTSService) -> TTSService:
    return hedged(voice, Recorded()) if is_hedged else voice


async def remembered(tts: TTSService, *frames: Frame) -> list[Any]:
    """What the assistant is told that it has said."""
    context = LLMContext()
    aggregators = LLMContextAggregatorPair(context)
    await run_test(Pipeline([tts, aggregators.assistant()]), frames_to_send=frames)
    return [each["content"] for each in context.messages]  # pyright: ignore


@KINDS
async def test_characters_that_are_timed_are_remembered_without_spaces(is_hedged: bool) -> None:
    """As Chinese and Japanese are."""
    tts = playing(is_hedged, Recorded(spaced=True))
    assert await remembered(tts, *answer("你好。", "再见。")) == ["你好。再见。"]


@KINDS
async def test_lines_and_answers_are_remembered(is_hedged: bool) -> None:
    tts = playing(is_hedged, Recorded())
    frames = [line(), line("Never mind.", append_to_context=False), SleepFrame(2.0), *answer(*OPEN)]
    said = ["One moment please.", "".join(OPEN)]
    assert await remembered(tts, *frames, SleepFrame(2.0), *answer("A note.", skip_tts=True)) == [
        *said,
        "A note.",
    ]


@KINDS
async def test_sentences_end_as_in_the_language_of_the_voice(is_hedged: bool) -> None:
    voice = Recorded(language=Language.DE)
    await run_test(playing(is_hedged, voice), frames_to_send=answer("Das ist bzw. war so. Ja."))
    assert voice.got == ["Das ist bzw. war so.", "Ja.", "stopped"]


@KINDS
async def test_text_filters_are_applied(is_hedged: bool) -> None:
    """They are deprecated."""
    voice = Recorded()
    create = functools.partial(hedged, voice) if is_hedged else Recorded
    with pytest.warns(DeprecationWarning, match="text_filters"):
        tts: Any = create(text_filters=[NoStars()])
    await run_test(tts, frames_to_send=answer("Yes **we** are. ", "***"))
    assert (voice if is_hedged else tts).got == ["Yes we are.", "stopped"]


@KINDS
async def test_requests_are_handled(is_hedged: bool) -> None:
    """``on_tts_request`` is added to what is in the pipeline."""
    tts = playing(is_hedged, Recorded())
    asked: list[str] = []

    async def take(_: object, context_id: str, text: str) -> None:
        asked.append(text)

    tts.add_event_handler("on_tts_request", take)
    await run_test(tts, frames_to_send=answer(*OPEN))
    assert asked == ["We are open.", "Shall we book a table?"]


@KINDS
async def test_metrics_have_the_model_of_the_voice(is_hedged: bool) -> None:
    """And the name of what is in the pipeline."""
    tts = playing(is_hedged, Recorded())
    down, _ = await run_test(
        tts,
        frames_to_send=[*answer(*OPEN), SleepFrame(2.0), line()],
        pipeline_params=PipelineParams(
            enable_metrics=True, enable_usage_metrics=True, send_initial_empty_metrics=False
        ),
    )
    data = [each for frame in down if isinstance(frame, MetricsFrame) for each in frame.data]
    firsts = [each for each in data if isinstance(each, TTFBMetricsData)]
    usage = [each for each in data if isinstance(each, TTSUsageMetricsData)]
    assert [(each.processor, each.model) for each in firsts] == [(tts.name, "scripted-1")] * 2
    assert [(each.processor, each.model, each.value) for each in usage] == [
        (tts.name, "scripted-1", len(text))
        for text in ("We are open.", "Shall we book a table?", "One moment please.")
    ]


async def test_what_may_not_be_interrupted_is_said_behind_what_was() -> None:
    tts = hedged(Recorded())
    frames = [line(append_to_context=False), firm(), SleepFrame(0.03), InterruptionFrame()]
    assert await remembered(tts, *frames, SleepFrame(1.0)) == ["This is recorded."]


async def test_a_voice_that_takes_tokens_gets_sentences() -> None:
    mode = TextAggregationMode.TOKEN
    alone, voice = Recorded(text_aggregation_mode=mode), Recorded(text_aggregation_mode=mode)
    await run_test(alone, frames_to_send=answer(*OPEN))
    assert await remembered(hedged(voice), *answer(*OPEN)) == ["".join(OPEN)]
    assert alone.got == [*OPEN, "stopped"]
    assert voice.got == ["We are open.", "Shall we book a table?", "stopped"]


async def test_error_of_a_voice_goes_no_further(logged: list[str]) -> None:
    """Another voice speaks; if none does, an error without the services' texts says so."""
    _, up = await run_test(Recorded(), frames_to_send=[line(FAILS)])
    assert any("secret" in frame.error for frame in up if isinstance(frame, ErrorFrame))

    class Well(Recorded):
        async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
            yield TTSAudioRawFrame(SOUND, RATE, 1, context_id=context_id)

    for other, is_said in ((Well(), True), (Recorded(), False)):
        _, up = await run_test(hedged(Recorded(), other), frames_to_send=[line(FAILS)])
        errors = [frame.error for frame in up if isinstance(frame, ErrorFrame)]
        assert ("no voice has spoken a sentence" in errors) is not is_said
        assert "secret" not in "".join(errors)
    assert "secret" not in "".join(logged)


@KINDS
async def test_a_request_that_ends_without_a_sound_holds_nothing_up(is_hedged: bool) -> None:
    """Of a voice that gets one at a time; a second request to it is one more."""

    class Mute(Recorded):
        async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
            self.got.append(text)
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)
            yield None

    voice = Mute(pause_frame_processing=True)
    began = asyncio.get_running_loop().time()
    down, _ = await run_test(hedged(voice) if is_hedged else voice, frames_to_send=[line(), Mark()])
    assert asyncio.get_running_loop().time() - began < 1.0
    assert any(isinstance(frame, Mark) for frame in down)
    assert voice.got == [*["One moment please."] * (1 + is_hedged), "stopped"]


@KINDS
async def test_a_failed_voice_is_not_given_up(is_hedged: bool) -> None:
    """A bare one is, after three silent contexts, and its texts are remembered."""

    class Mute(Recorded):
        async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
            self.got.append(text)
            yield None

    voice = Mute()
    frames = [frame for _ in range(4) for frame in (line(), SleepFrame(20.0))]
    said = await remembered(hedged(voice) if is_hedged else voice, *frames)
    assert said == ([] if is_hedged else ["One moment please."] * 4)
    assert voice.is_usable is is_hedged


async def test_settings_that_are_rejected_are_warned_of(logged: list[str]) -> None:
    class Strict(Recorded):
        async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
            raise ValueError("secret words")

    voice = Strict()
    await run_test(hedged(voice), frames_to_send=[settings(), SleepFrame(0.1), line()])
    assert voice.got == ["One moment please.", "stopped"]
    assert any("voice-0: settings not changed: ValueError" in each for each in logged)
    assert "secret" not in "".join(logged)
