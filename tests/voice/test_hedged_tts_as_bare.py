"""A hedged voice behaves as its first voice alone: what goes in and comes out, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
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
    StopFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
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
        words = list(text) if self._spaced else text.split()
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


async def trace(voice: Recorded, played: FrameProcessor, case: Case) -> dict[str, list[object]]:
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
