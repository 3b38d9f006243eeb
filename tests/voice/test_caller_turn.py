"""When the caller's turn ended, and which request to the LLM answers it."""

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


MHM = [VAD_ON(), 0.3, words("Mhm."), vad_off()]
ASKED = LLMContextFrame(LLMContext())


@pytest.mark.parametrize("make", [hedged, ScriptedLLMService])
@pytest.mark.parametrize("cough", COUGHS)
async def test_reminder_after_a_cough_has_its_own_anchor(make: Any, cough: Any) -> None:
    """Twenty seconds later the bot speaks up of its own accord, and nobody waited for it."""
    async with Phone(make(ANSWER)) as phone:
        await phone.speak()
        first = await phone.answered()
        await happen(phone, [*cough, 20.0, ASKED])
        turn = await phone.answered()
        await phone.speak()
        last = await phone.answered()
    assert turn.anchor == "context"
    assert turn.voice_to_voice_secs is None
    assert (turn.context_secs, turn.turn_end_secs) == (0.0, None)
    assert turn.first_answer_secs == pytest.approx(0.8)
    assert turn.contributions == ()
    assert rounded(first) == rounded(last) == AT_ITS_TIME
    assert [told.turn for told in phone.told] == [1, 2, 3]


def case(events: list[Any], context_secs: float, anchor: str = "user_silence", *, id: str) -> Any:
    return pytest.param(events, context_secs, anchor, id=id)


@pytest.mark.parametrize(
    ("events", "context_secs", "anchor"),
    [
        case(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), 3.0, words(), TURN_OFF(), message()],
            3.2,
            id="the turn is held until the thought is finished",
        ),
        case(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF(), 6.0, words(), message()],
            6.2,
            id="a late transcript",
        ),
        case(
            [VAD_ON(), 1.0, vad_off(), 6.0, words(), TURN_ON(), 0.5, TURN_OFF(), message()],
            6.7,
            id="a turn that begins with its transcript",
        ),
        case(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF(), 6.0, words()],
            6.2,
            id="a late transcript, and an aggregator of another make",
        ),
        case([VAD_ON(), 1.0, vad_off(), message(), 5.0], 5.2, id="no turn frames"),
        case([VAD_ON(), 1.0, vad_off(), 0.5], 0.7, id="nor any words"),
        case(
            [VAD_ON(), TURN_ON(), 1.0, vad_off(), 0.5, VAD_ON(), 1.0, vad_off(), TURN_OFF()],
            0.2,
            id="two utterances",
        ),
        case(
            [VAD_ON(), 0.3, vad_off(), 20.0, VAD_ON(), TURN_ON(), 1.0, vad_off(), TURN_OFF()],
            0.2,
            id="a cough long before it",
        ),
        case(
            [words(), TURN_ON(), 1.0, TURN_OFF(), 2.0, words()],
            2.0,
            "turn_end",
            id="ended by speech-to-text, without a local VAD",
        ),
        case(
            [VAD_ON(), 0.3, vad_off(), 10.0, TURN_ON(), 1.0, words(), TURN_OFF()],
            0.0,
            "turn_end",
            id="a soft turn that the VAD missed, long after a cough",
        ),
        case(
            [VAD_ON(), words(), vad_off(), message(), ASKED, 9.0, *MHM, 20.0],
            0.0,
            "context",
            id="an mhm that was talked over",
        ),
    ],
)
async def test_wait_counts_from_the_last_sound(
    events: Any, context_secs: float, anchor: str
) -> None:
    """However the turn is found to be over."""
    async with Phone(hedged(ANSWER)) as phone:
        await happen(phone, [*events, ASKED])
        turn = await phone.answered()
    assert turn.anchor == anchor
    assert turn.context_secs == pytest.approx(context_secs)
    assert turn.first_answer_secs == pytest.approx(context_secs + 0.8)
    assert (turn.voice_to_voice_secs is not None) == (anchor == "user_silence")


@pytest.mark.parametrize(("asked_at", "is_reply"), [(2.9, True), (3.1, False)])
def test_speech_to_speech_model_answers_within_three_seconds(
    asked_at: float, is_reply: bool
) -> None:
    """It gets no context, so only the time tells what it answers."""
    caller = CallerTurn()
    for at, frame in ((-1.0, VAD_ON()), (-1.0, TURN_ON()), (0.0, vad_off()), (0.0, TURN_OFF())):
        caller.take(frame, at)
    turn = caller.llm_started(asked_at, None, provisional=False)
    assert turn == ((-0.2, 0.0) if is_reply else None)


async def test_reminder_from_behind_the_llm_has_its_own_anchor() -> None:
    async with Phone(hedged(ANSWER), remembers=True) as phone:
        await phone.speak(context=phone.context)
        await happen(phone, [10.0, TURN_ON(), 0.3, TURN_OFF(), 20.0])
        reminder = LLMContextFrame(phone.context)
        await phone.line.service.queue_frame(reminder, FrameDirection.UPSTREAM)
        turn = await phone.answered()
    assert turn.anchor == "context"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_pipecats_own_aggregators_are_understood() -> None:
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
async def test_speculative_race_has_its_real_times(make: Any, answer_secs: float) -> None:
    """The turn is answered before its end is certain."""
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


async def test_turn_end_after_the_request_is_recorded() -> None:
    """The LLM is asked before the turn is certain."""
    async with Phone(hedged(ANSWER)) as phone:
        events = [VAD_ON(), TURN_ON(), 1.0, vad_off(), message(), ASKED, 0.1, TURN_OFF()]
        await happen(phone, events)
        turn = await phone.answered()
    assert turn.anchor == "user_silence"
    assert (turn.context_secs, turn.turn_end_secs) == pytest.approx((0.2, 0.3))
