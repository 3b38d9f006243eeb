"""The second recogniser: one that streams, and one that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from pipecat.frames.frames import STTMuteFrame

from pipecat_hedge import ProviderStats
from tests.support.call import Event
from tests.support.hearing import HearingRescue, HearingSTT, Talk, speech, words

pytestmark = pytest.mark.virtual_time

LATE = (0.05, 0.05, 0.3)


class Late(HearingSTT):
    """The last transcript of each utterance comes after so many seconds."""

    def __init__(self, *late: float, every: int = 1):
        super().__init__(every=every, marks=False)
        self._late = list(late)

    async def _finish(self) -> None:
        text = self._final(marked=True)
        await asyncio.sleep(self._late.pop(0))
        if text.text:
            await self.push_frame(text)


def utterances(count: int, size: int = 5, then_secs: float = 6.0) -> list[Event]:
    parts = [speech(range(size * n, size * n + size), then_secs=then_secs) for n in range(count)]
    return [event for part in parts for event in part]


@pytest.mark.parametrize("marks", [True, False])
async def test_recogniser_that_streams_rescues(marks: bool) -> None:
    """Its transcripts of an utterance are one, whether it marks the last one or needs silence."""
    rescue = HearingSTT(finals=4, marks=marks)
    talk = Talk(lambda _: HearingSTT(says=0), rescue)
    said = await talk.hold(*utterances(6, size=10))
    assert rescue.heard == said
    assert [turn.split() for turn in talk.contexts] == [
        words(range(10 * n, 10 * n + 10)) for n in range(6)
    ]
    assert max(talk.waits) < 4.0


async def test_rescue_that_is_down_delays_nothing() -> None:
    """What the first one says late is waited for as without a rescue."""
    talk = Talk(lambda _: HearingSTT(late_secs=2.0), HearingRescue(fails=1000))
    said = await talk.hold(*utterances(10))
    assert said == words(range(50))
    assert talk.waits == pytest.approx([2.2] * 10, abs=0.01)
    assert talk.rescue.heard


async def test_rescue_that_fails_is_asked_again_when_it_may_have_recovered() -> None:
    """Its breaker opens after five failures, and closes after two answers."""
    rescue, stats = HearingRescue(fails=5), ProviderStats()
    talk = Talk(lambda _: HearingSTT(says=0), rescue, stats=stats)
    said = await talk.hold(*utterances(24, then_secs=8.5))
    missed = 24 - len(said) // 5
    print(f"{len(rescue.heard)} asked, {missed} not said")
    assert 5 + 60 * 0.8 / 10 - 1 <= missed <= 5 + 60 / 10 + 1
    assert len(rescue.heard) == 24 - (missed - 5)
    assert said == words(range(5 * missed, 120))


async def test_late_transcript_with_the_next_word_loses_none() -> None:
    """The caller speaks again, as the VAD has not noticed yet."""
    talk = Talk(lambda _: HearingSTT(late_secs=1.5), HearingRescue(secs=0.8), is_kept=True)
    said = await talk.hold(*speech(range(6), then_secs=1.6), *speech(range(6, 10)))
    assert said == words(range(10))


async def test_answer_of_the_rescue_that_comes_after_the_late_transcript_is_not_said() -> None:
    """That one is merged with the next utterance."""
    talk = Talk(lambda _: HearingSTT(late_secs=1.5), HearingRescue(secs=1.3), is_kept=True)
    said = await talk.hold(*speech(range(2), then_secs=0.9), *speech(range(2, 8)))
    assert said == words(range(8))


async def test_late_transcript_of_what_the_rescue_has_added_is_not_said() -> None:
    """The first one has said five words of six; the sixth comes with the next utterance."""
    talk = Talk(lambda _: HearingSTT(finals=5, late_secs=2.9), HearingRescue(), is_kept=True)
    said = await talk.hold(*speech(range(6), then_secs=1.6), *speech(range(6, 12)))
    assert said == words(range(12))
    assert talk.rescue.heard[0] == " ".join(words(range(6)))


async def test_slow_answer_is_of_the_utterance_it_was_asked_for() -> None:
    """It comes when the next utterance's is asked for, too."""
    talk = Talk(lambda _: HearingSTT(late_secs=1.0), HearingRescue(secs=2.5), is_kept=True)
    said = await talk.hold(*speech(range(3), then_secs=1.4), *speech(range(3, 5)), 3.0)
    assert said == words(range(5))
    assert len(talk.rescue.heard) == 2


async def test_words_from_before_the_caller_was_muted_in_mid_speech_are_rescued() -> None:
    talk = Talk(lambda _: HearingSTT(late_secs=4.0, every=1000), is_kept=True)
    events = speech(range(8), then_secs=8.0)
    muted = [STTMuteFrame(mute=True), 0.2, STTMuteFrame(mute=False)]
    assert await talk.hold(*events[:24], *muted, *events[24:]) == words(range(8))


async def test_second_transcript_of_the_rescue_adds_only_what_was_not_said() -> None:
    rescue = HearingSTT(finals=4, late_secs=2.0)
    talk = Talk(lambda _: HearingSTT(finals=5), rescue, is_kept=True)
    said = await talk.hold(*speech(range(10)))
    assert said == rescue.heard == words(range(10))


@pytest.mark.parametrize("seed", range(20))
async def test_each_word_is_said_once(seed: int) -> None:
    """Recognisers get stuck at any word, and each fresh one, too."""
    rng = random.Random(seed)

    def make(_: int) -> HearingSTT:
        says = rng.randint(0, 60) if rng.random() < 0.6 else 1000
        return HearingSTT(says=says, finals=rng.choice([6, 10, 1000]), late_secs=rng.choice(LATE))

    streaming = HearingSTT(finals=rng.choice([4, 1000]), marks=rng.random() < 0.5)
    segmented = HearingRescue(secs=rng.uniform(0.1, 1.5))
    talk = Talk(make, rng.choice([streaming, segmented]), is_kept=rng.random() < 0.3)
    events: list[Event] = []
    number = 0
    for _ in range(rng.randint(3, 7)):
        last = number + rng.choice([2, 4, 6, 10, 20])
        events += speech(range(number, last), then_secs=rng.uniform(0.6, 6))
        number = last
    said = await talk.hold(*events, 9.0)
    assert said == words(range(number))


Part = tuple[float, int, float]
"""The seconds to its transcript, its words, and the pause behind it."""


@pytest.mark.parametrize(
    ("parts", "every"),
    [
        ([(2.6, 2, 2.0), (2.6, 2, 1.0), (1.5, 1, 0.6), (4.0, 2, 5.0)], 1000),
        ([(2.6, 2, 3.0), (3.6, 5, 2.0), (1.5, 5, 0.6), (0.05, 5, 5.0)], 1),
        ([(1.5, 1, 0.6), (2.6, 2, 2.0), (2.6, 5, 1.0), (2.6, 1, 5.0)], 1000),
        ([(2.6, 1, 0.6), (2.6, 1, 2.0), (1.5, 5, 5.0)], 1),
        ([(0.05, 1, 3.0), (1.5, 1, 2.0), (1.5, 5, 5.0)], 1),
    ],
    ids=[
        *("goes on while the rescue is asked", "interim transcripts tell them apart"),
        *("late while the caller speaks", "both late", "audio of the one before is gone"),
    ],
)
async def test_late_transcripts_of_several_utterances_are_said_once(
    parts: Sequence[Part], every: int
) -> None:
    late = [secs for secs, _, _ in parts]
    talk = Talk(lambda _: Late(*late, every=every), HearingRescue(secs=0.6), is_kept=True)
    events: list[Event] = []
    count = 0
    for _, size, then_secs in parts:
        events += speech(range(count, count + size), then_secs=then_secs)
        count += size
    said = await talk.hold(*events, 8.0)
    assert said == words(range(count))
