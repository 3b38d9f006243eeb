"""A recogniser that says nothing more: a fresh one hears what nobody has answered, and no more."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.processors.frame_processor import FrameProcessorSetup

from tests.support.hearing import HearingRescue, HearingSTT, Talk, speech, words

pytestmark = pytest.mark.virtual_time


async def test_words_said_before_it_was_stuck_are_not_said_twice() -> None:
    """The fresh one hears the utterance from its beginning, while the caller speaks on."""
    talk = Talk(lambda number: HearingSTT(says=14, finals=10) if number == 0 else HearingSTT())
    said = await talk.hold(*speech(range(40)))
    assert said == words(range(40))
    assert talk.made[1].heard == words(range(40))
    assert talk.rescue.heard == []


@pytest.mark.parametrize("is_kept", [True, False])
async def test_recogniser_that_goes_on_after_a_silence_loses_no_word(is_kept: bool) -> None:
    """After 4.8 s; one that cannot be replaced has not been."""
    talk = Talk(lambda _: HearingSTT(finals=10, silent=range(14, 30)), is_kept=is_kept)
    said = await talk.hold(*speech(range(36)))
    assert said == words(range(36))
    assert len(talk.made) == (1 if is_kept else 2)


async def test_next_utterance_is_heard_from_its_beginning() -> None:
    """The caller speaks again before the rescue has shown that the first one is stuck."""
    talk = Talk(lambda number: HearingSTT(says=0 if number == 0 else 1000), HearingRescue(secs=1.5))
    first = speech(range(5), then_secs=1.4)
    said = await talk.hold(*first, *speech(range(5, 15)), *speech(range(15, 20)))
    assert said == words(range(20))


@pytest.mark.parametrize("every", [12, 15])
async def test_recogniser_that_says_little_is_not_taken_for_stuck_again(every: int) -> None:
    """It sends a transcript after each 3.6 or 4.5 s of speech."""
    talk = Talk(lambda _: HearingSTT(every=every))
    said = await talk.hold(*speech(range(60)), *speech(range(60, 120)))
    assert said == words(range(120))
    assert len(talk.made) <= 2


@pytest.mark.parametrize("secs", [1.2, 2.4, 3.6])
async def test_utterance_in_which_it_gets_stuck_is_not_waited_for_long(secs: float) -> None:
    """The fresh one answers, or the rescue; observers see one caller."""
    talk = Talk(lambda number: HearingSTT(says=160) if number == 0 else HearingSTT())
    known = [event for n in range(20) for event in speech(range(8 * n, 8 * n + 8), then_secs=3.0)]
    last = range(160, 160 + round(secs / 0.3))
    said = await talk.hold(*known, *speech(last))
    assert said == words(range(last.stop))
    print(f"{secs} s: {talk.waits[-1]:.2f} s, {len(talk.rescue.heard)} rescued")
    assert talk.waits[-1] == pytest.approx(talk.reports[-1].transcript_secs, abs=0.03)
    assert talk.waits[-1] <= (0.75 if secs <= 3 else 0.3)


class Hanging(HearingSTT):
    """Its handshake never ends."""

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        await asyncio.Event().wait()


async def test_handshake_that_hangs_holds_up_nothing() -> None:
    """Not the call's beginning, and no utterance: the rescue answers, or a fresh one."""
    talk = Talk(lambda number: Hanging() if number < 2 else HearingSTT())
    said = await talk.hold(*(e for n in range(4) for e in speech(range(5 * n, 5 * n + 5))))
    assert said == words(range(20))
    assert len(talk.rescue.heard) == 2
    assert max(talk.waits) < 3.0


async def test_rescue_whose_handshake_hangs_holds_up_nothing() -> None:
    talk = Talk(lambda _: HearingSTT(), Hanging())
    said = await talk.hold(*speech(range(10)), *speech(range(10, 20)))
    assert said == words(range(20))
    assert talk.waits == pytest.approx([0.25, 0.25], abs=0.02)
