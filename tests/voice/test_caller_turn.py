"""When the caller's turn ended, and which request to the LLM answers it."""

from __future__ import annotations

from typing import Any

import pytest
from pipecat.frames.frames import Frame, LLMContextFrame, LLMContextUserTurnFrame, LLMRunFrame
from pipecat.processors.frame_processor import FrameDirection
from pipecat.turns.user_turn_strategies import EagerUserTurnStrategies, UserTurnStrategies

from pipecat_hedge.testing import Say, Wait
from pipecat_hedge.voice.caller_turn import CallerTurn
from tests.support.call import (
    SPEAKS,
    STARTED,
    STOPPED,
    TURN_OFF,
    TURN_ON,
    VAD_ON,
    Event,
    PhoneCall,
    ask,
    eager,
    vad_off,
    words,
)
from tests.voice.test_turn_latency import ANSWER, AT_ITS_TIME, both, check, hedged

pytestmark = pytest.mark.virtual_time


def message() -> LLMContextUserTurnFrame:
    return LLMContextUserTurnFrame("Are you open?", "")


def case(events: list[Event], *answered: float | None, id: str) -> Any:
    return pytest.param(events, answered or None, id=id)


MHM: list[Event] = [VAD_ON, 0.3, lambda: words("Mhm."), vad_off]


@pytest.mark.parametrize(
    ("events", "answered"),
    [
        case(SPEAKS[:-1], 0.3, 0.0, id="a turn"),
        case(
            [VAD_ON, TURN_ON, 1.0, vad_off, 3.0, words, TURN_OFF, message],
            *(3.2, 0.0),
            id="the turn is held until the thought is finished",
        ),
        case(
            [VAD_ON, TURN_ON, 1.0, vad_off, TURN_OFF, 6.0, words, message],
            *(6.2, 6.0),
            id="a late transcript",
        ),
        case(
            [VAD_ON, 1.0, vad_off, 6.0, words, TURN_ON, 0.5, TURN_OFF, message],
            *(6.7, 0.0),
            id="a turn that begins with its transcript",
        ),
        case(
            [VAD_ON, TURN_ON, 1.0, vad_off, TURN_OFF, 6.0, words],
            *(6.2, 6.0),
            id="a late transcript, and an aggregator of another make",
        ),
        case([VAD_ON, 1.0, vad_off, message, 5.0], 5.2, None, id="no turn frames"),
        case([VAD_ON, 1.0, vad_off, 0.5], 0.7, None, id="nor any words"),
        case(
            [VAD_ON, TURN_ON, 1.0, vad_off, 0.5, VAD_ON, 1.0, vad_off, TURN_OFF],
            *(0.2, 0.0),
            id="two utterances",
        ),
        case(
            [VAD_ON, 0.3, vad_off, 20.0, VAD_ON, TURN_ON, 1.0, vad_off, TURN_OFF],
            *(0.2, 0.0),
            id="a cough long before it",
        ),
        case(
            [words, TURN_ON, 1.0, TURN_OFF, 2.0, words],
            *(None, 2.0),
            id="ended by speech-to-text, without a local VAD",
        ),
        case(
            [VAD_ON, 0.3, vad_off, 10.0, TURN_ON, 1.0, words, TURN_OFF],
            *(None, 0.0),
            id="a soft turn that the VAD missed, long after a cough",
        ),
        case(
            [VAD_ON, words, vad_off, message, ask, 9.0, *MHM, 20.0],
            id="an mhm that was talked over",
        ),
        *(
            case([*SPEAKS, 10.0, *cough, 20.0], id=f"long after {what}")
            for cough, what in (
                ([VAD_ON, TURN_ON, 0.3, vad_off, TURN_OFF], "a cough that was a turn"),
                ([VAD_ON, 0.3, vad_off], "a cough"),
                ([TURN_ON, 0.3, TURN_OFF], "a cough that was a turn, without VAD"),
                ([VAD_ON, TURN_ON, lambda: words(" "), 0.3, vad_off, TURN_OFF], "no words"),
            )
        ),
    ],
)
def test_wait_counts_from_the_last_sound(
    events: list[Event], answered: tuple[float | None, float | None] | None
) -> None:
    """However the turn is found to be over: how long ago the last sound and the turn's end were."""
    caller, now, found = CallerTurn(), 100.0, None
    for event in [*events, ask]:
        if isinstance(event, (int, float)):
            now += event
        elif event is ask:
            found = caller.llm_started(now, now, provisional=False)
        else:
            caller.take(event if isinstance(event, Frame) else event(), now)
    ago = found and tuple(None if at is None else round(now - at, 6) for at in found)
    assert ago == answered


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


@both
async def test_reminder_after_a_cough_has_its_own_anchor(make: Any) -> None:
    """Twenty seconds later the bot speaks of its own accord; no caller waited for it."""
    async with PhoneCall(make(ANSWER)) as call:
        first = await call.speak()
        await call.play(VAD_ON, TURN_ON, 0.3, vad_off, TURN_OFF, 20.0, ask, 10.0)
        turn = call.turns[-1]
        last = await call.speak()
    check(turn, anchor="context", context_secs=0.0, turn_end_secs=None)
    check(turn, first_answer_secs=0.8, voice_to_voice_secs=None)
    assert turn.contributions == ()
    check(first, **AT_ITS_TIME)
    check(last, **AT_ITS_TIME)
    assert [turn.turn for turn in call.turns] == [1, 2, 3]


async def test_reminder_from_behind_the_llm_has_its_own_anchor() -> None:
    async with PhoneCall(hedged(ANSWER)) as call:
        await call.play(*SPEAKS, 10.0, TURN_ON, 0.3, TURN_OFF, 20.0)
        reminder = LLMContextFrame(call.context)
        await call.line.service.queue_frame(reminder, FrameDirection.UPSTREAM)
        await call.play(10.0)
    check(call.turns[-1], anchor="context", first_answer_secs=0.8)


async def test_pipecats_own_aggregators_are_understood() -> None:
    """A turn, a cough, and a reminder, as they really come."""
    async with PhoneCall(hedged(ANSWER), strategies=UserTurnStrategies()) as call:
        await call.play(VAD_ON, 1.0, words, vad_off, 10.0)
        await call.play(VAD_ON, 0.3, vad_off, 20.0, LLMRunFrame, 10.0)
    turn, reminder = call.turns
    assert turn.context_secs is not None
    check(turn, anchor="user_silence", turn_end_secs=turn.context_secs)
    check(turn, voice_to_voice_secs=turn.context_secs + 0.8)
    check(reminder, anchor="context", first_answer_secs=0.8)


@both
@pytest.mark.parametrize("answer_secs", [0.2, 0.7])
async def test_speculative_race_has_its_real_times(make: Any, answer_secs: float) -> None:
    """The turn is answered before its end is certain."""
    llm = make([Wait(answer_secs), Say("Till nine.")])
    async with PhoneCall(llm, strategies=EagerUserTurnStrategies()) as call:
        await call.play(VAD_ON, STARTED, 1.0, vad_off, eager)
        await call.play(0.5, STOPPED, lambda: words("are you open"), 10.0)
    (turn,) = call.turns
    check(turn, anchor="user_silence", context_secs=0.2, turn_end_secs=0.7, interrupted=False)
    check(turn, voice_to_voice_secs=max(0.7, 0.2 + answer_secs) + 0.1)
    if make is hedged:
        assert [report.outcome for report in turn.reports] == ["answered"]
        assert turn.asked_secs == pytest.approx((0.2,))
        assert turn.first_token_secs == pytest.approx(0.2 + answer_secs)


async def test_turn_end_after_the_request_is_recorded() -> None:
    """The LLM is asked before the turn is certain."""
    async with PhoneCall(hedged(ANSWER)) as call:
        await call.play(VAD_ON, TURN_ON, 1.0, vad_off, message, ask, 0.1, TURN_OFF, 10.0)
    check(call.turns[-1], anchor="user_silence", context_secs=0.2, turn_end_secs=0.3)
