"""What the caller is heard to say, and whether the LLM was asked about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMContextUserTurnFrame,
    LLMRunFrame,
    TranscriptionFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.turns.user_turn_strategies import EagerUserTurnStrategies

from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.voice.caller_turn import CallerTurn
from tests.voice.test_turn_latency import ANSWER, AT_ITS_TIME, Phone, hedged, rounded
from tests.voice.test_turn_taking import committed, eager, started, stopped

pytestmark = pytest.mark.virtual_time

VAD_ON, TURN_ON = VADUserStartedSpeakingFrame, UserStartedSpeakingFrame
TURN_OFF = UserStoppedSpeakingFrame


def vad_off() -> VADUserStoppedSpeakingFrame:
    return VADUserStoppedSpeakingFrame(stop_secs=0.2)


def words(text: str = "Are you open?") -> TranscriptionFrame:
    return TranscriptionFrame(text, "", "")


def message() -> LLMContextUserTurnFrame:
    return LLMContextUserTurnFrame("Are you open?", "")


COUGHS = [
    pytest.param([VAD_ON(), TURN_ON(), 0.3, vad_off(), TURN_OFF()], id="a turn"),
    pytest.param([VAD_ON(), 0.3, vad_off()], id="a sound"),
    pytest.param([TURN_ON(), 0.3, TURN_OFF()], id="a turn without VAD"),
    pytest.param([VAD_ON(), TURN_ON(), words(" "), 0.3, vad_off(), TURN_OFF()], id="no words"),
]


async def happen(phone: Phone, events: Sequence[Frame | float]) -> None:
    for event in events:
        if isinstance(event, Frame):
            await phone.line.send(event)
        else:
            await asyncio.sleep(event)


@pytest.mark.parametrize("make", [hedged, ScriptedLLMService])
@pytest.mark.parametrize("cough", COUGHS)
async def test_a_cough_is_not_what_a_reminder_answers(make: Any, cough: Any) -> None:
    """Twenty seconds later the bot speaks up of its own accord, and nobody waited for it."""
    async with Phone(make(ANSWER)) as phone:
        await phone.speak()
        first = await phone.answered()
        await happen(phone, [*cough, 20.0, LLMContextFrame(LLMContext())])
        turn = await phone.answered()
        await phone.speak()
        last = await phone.answered()
    assert turn.anchor == "context"
    assert turn.voice_to_voice_secs is None
    assert turn.context_secs == 0.0
    assert turn.turn_end_secs is None
    assert turn.first_answer_secs == pytest.approx(0.8)
    assert turn.contributions == ()
    assert rounded(first) == rounded(last) == AT_ITS_TIME
    assert [told.turn for told in phone.told] == [1, 2, 3]


async def test_an_mhm_that_was_talked_over() -> None:
    """Was understood, but nobody is asked about it: it is not in the conversation."""
    mhm = [VAD_ON(), 0.3, words("Mhm."), vad_off()]
    async with Phone(hedged(ANSWER)) as phone:
        await phone.line.send(VAD_ON(), words(), vad_off(), message())
        await phone.speak()
        await phone.answered()
        await happen(phone, [*mhm, 20.0, LLMContextFrame(LLMContext())])
        turn = await phone.answered()
    assert turn.anchor == "context"


@pytest.mark.parametrize(
    ("events", "silent_secs"),
    [
        pytest.param(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), 3.0, words(), TURN_OFF(), message()],
            3.2,
            id="the turn is held until the thought is finished",
        ),
        pytest.param(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF(), 6.0, words(), message()],
            6.2,
            id="a late transcript",
        ),
        pytest.param(
            [VAD_ON(), 1.0, vad_off(), 6.0, words(), TURN_ON(), 0.5, TURN_OFF(), message()],
            6.7,
            id="a turn that begins with its transcript",
        ),
        pytest.param(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF(), 6.0, words()],
            6.2,
            id="a late transcript, and an aggregator of another make",
        ),
        pytest.param([VAD_ON(), 1.0, vad_off(), message(), 5.0], 5.2, id="no turns are told"),
        pytest.param([VAD_ON(), 1.0, vad_off(), 0.5], 0.7, id="nor any words"),
        pytest.param(
            [VAD_ON(), 0.3, vad_off(), 20.0, VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF()],
            0.2,
            id="a cough long before it",
        ),
    ],
)
async def test_a_turn_of_the_callers(events: Any, silent_secs: float) -> None:
    """Counts from the last sound, however the turn is found to be over."""
    async with Phone(hedged(ANSWER)) as phone:
        await happen(phone, [*events, LLMContextFrame(LLMContext())])
        turn = await phone.answered()
    assert turn.anchor == "user_silence"
    assert turn.voice_to_voice_secs == pytest.approx(silent_secs + 0.8)
    assert turn.context_secs == pytest.approx(silent_secs)


async def test_a_turn_that_speech_to_text_ends() -> None:
    """Without a local VAD, and with its transcript behind it."""
    events = [words(), TURN_ON(), 1.0, TURN_OFF(), 2.0, words(), LLMContextFrame(LLMContext())]
    async with Phone(hedged(ANSWER)) as phone:
        await happen(phone, events)
        turn = await phone.answered()
    assert turn.anchor == "turn_end"
    assert turn.context_secs == pytest.approx(2.0)


async def test_a_soft_turn_long_after_a_cough() -> None:
    """Counts from its own end where the VAD has missed it."""
    async with Phone(hedged(ANSWER)) as phone:
        await happen(phone, [VAD_ON(), 0.3, vad_off(), 10.0, TURN_ON(), 1.0, words(), TURN_OFF()])
        await phone.line.send(LLMContextFrame(LLMContext()))
        turn = await phone.answered()
    assert turn.anchor == "turn_end"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_a_reminder_that_is_asked_for_from_behind() -> None:
    """Where the answer was told of when it was over, which is not when the LLM was asked."""
    async with Phone(hedged(ANSWER), remembers=True) as phone:
        await phone.speak(context=phone.context)
        await happen(phone, [10.0, TURN_ON(), 0.3, TURN_OFF(), 20.0])
        reminder = LLMContextFrame(phone.context)
        await phone.line.service.queue_frame(reminder, FrameDirection.UPSTREAM)
        turn = await phone.answered()
    assert turn.anchor == "context"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_with_pipecats_own_aggregators() -> None:
    """A turn, a cough, and a reminder, as they really come."""
    user = LLMContextAggregatorPair(LLMContext()).user()
    async with Phone(hedged(ANSWER), before=[user]) as phone:
        await happen(phone, [VAD_ON(), 1.0, words(), vad_off(), 10.0])
        await happen(phone, [VAD_ON(), 0.3, vad_off(), 20.0, LLMRunFrame()])
        await phone.answered()
    turn, reminder = phone.told
    assert turn.anchor == "user_silence"
    assert turn.turn_end_secs == turn.context_secs
    assert turn.context_secs is not None
    assert turn.voice_to_voice_secs == pytest.approx(turn.context_secs + 0.8)
    assert reminder.anchor == "context"
    assert reminder.first_answer_secs == pytest.approx(0.8)


@pytest.mark.parametrize("answer_secs", [0.2, 0.7])
@pytest.mark.parametrize("make", [hedged, ScriptedLLMService])
async def test_a_turn_that_was_expected_to_end(make: Any, answer_secs: float) -> None:
    """Is answered before it is certain: the race is in the record, at its real times."""
    strategies = LLMUserAggregatorParams(user_turn_strategies=EagerUserTurnStrategies())
    user = LLMContextAggregatorPair(LLMContext(), user_params=strategies).user()
    async with Phone(make([Wait(answer_secs), Say("Till nine.")]), before=[user]) as phone:
        await happen(phone, [VAD_ON(), started(), 1.0, vad_off(), eager()])
        await happen(phone, [0.5, stopped(), committed("are you open")])
        turn = await phone.answered()
    assert not turn.interrupted
    assert turn.anchor == "user_silence"
    assert turn.context_secs == pytest.approx(0.2)
    assert turn.turn_end_secs == pytest.approx(0.7)
    assert turn.voice_to_voice_secs == pytest.approx(max(0.7, 0.2 + answer_secs) + 0.1)
    if make is hedged:
        assert [report.outcome for report in turn.reports] == ["answered"]
        assert turn.asked_secs == pytest.approx((0.2,))
        assert turn.first_token_secs == pytest.approx(0.2 + answer_secs)


async def test_the_llm_is_asked_before_the_turn_is_certain() -> None:
    """When it was over is told afterwards."""
    async with Phone(hedged(ANSWER)) as phone:
        llm_started = LLMContextFrame(LLMContext())
        events = [VAD_ON(), TURN_ON(), 1.0, vad_off(), message(), llm_started, 0.1, TURN_OFF()]
        await happen(phone, events)
        turn = await phone.answered()
    assert turn.anchor == "user_silence"
    assert turn.context_secs == pytest.approx(0.2)
    assert turn.turn_end_secs == pytest.approx(0.3)


@pytest.mark.parametrize(("asked_at", "is_reply"), [(2.9, True), (3.1, False)])
def test_a_model_that_hears_for_itself(asked_at: float, is_reply: bool) -> None:
    """Is handed no context, and takes its time to answer."""
    caller = CallerTurn()
    for at, frame in ((-1.0, VAD_ON()), (-1.0, TURN_ON()), (0.0, vad_off()), (0.0, TURN_OFF())):
        caller.take(frame, at)
    turn = caller.llm_started(asked_at, None, provisional=False)
    assert turn == ((-0.2, 0.0) if is_reply else None)


def test_a_turn_that_is_expected_to_end_here() -> None:
    """Is what the LLM is asked about, before anything is written."""
    caller = CallerTurn()
    caller.take(VAD_ON(), 0.0)
    caller.take(TURN_ON(), 0.0)
    caller.take(vad_off(), 1.0)
    assert caller.llm_started(9.0, 8.0, provisional=True) == (0.8, None)
    assert caller.llm_started(9.1, 9.1, provisional=False) is None, "that is done with"
