"""Where the time of a turn went: each moment at its time, and a filler is no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    FunctionCallCancelFrame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMUpdateSettingsFrame,
    OutputAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.settings import LLMSettings
from pipecat.services.tts_service import TextAggregationMode

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.answer_audio import AnswerAudio
from pipecat_hedge.voice.awaited_tools import AwaitedTools
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.support.call import (
    CHUNK,
    RATE,
    SPEAKS,
    TURN_OFF,
    TURN_ON,
    VAD_ON,
    Event,
    PhoneCall,
    Voice,
    ask,
    vad_off,
)

pytestmark = pytest.mark.virtual_time

ANSWER: list[Step] = [
    *(Wait(0.4), Say("We are ")),
    *(Wait(0.2), Say("open. ")),
    *(Wait(0.1), Say("Till nine.")),
]
BROKEN: list[Step] = [Wait(0.4), Say("We are "), Wait(2.0), Say("open. "), Say("Till nine.")]
AT_ITS_TIME: dict[str, Any] = {
    "anchor": "user_silence",
    "turn_end_secs": 0.3,
    "context_secs": 0.3,
    "first_token_secs": 0.7,
    "first_sentence_secs": 1.0,
    "first_tts_audio_secs": 1.1,
    "first_sound_secs": 1.1,
    "first_answer_secs": 1.1,
    "voice_to_voice_secs": 1.1,
    "filler_end_secs": None,
    "interrupted": False,
}


def hedged(*scripts: list[Step]) -> HedgedLLMService:
    slow = ScriptedLLMService([Wait(30)], model="slow")
    return HedgedLLMService(
        [ScriptedLLMService(*scripts, model="gpt-4.1"), Provider("slow", slow, stall_secs=60)],
        policy=HedgePolicy.race(2),
    )


both = pytest.mark.parametrize("make", [hedged, ScriptedLLMService])


def check(turn: TurnLatency, **expected: Any) -> None:
    """The output plays chunks: what follows one is known to the chunk."""
    for name, value in expected.items():
        exact = value is None or isinstance(value, (str, bool))
        found = getattr(turn, name)
        assert found == (value if exact else pytest.approx(value, abs=0.9 * CHUNK)), name


@both
async def test_each_moment_at_its_time(make: Any, tmp_path: Path) -> None:
    """From the caller's silence on; a hedged service adds its race."""
    log = tmp_path / "turns.jsonl"
    async with PhoneCall(make(ANSWER), log=log) as call:
        turn = await call.speak()
    assert len(call.turns) == 1
    for name, value in AT_ITS_TIME.items():
        found = getattr(turn, name)
        assert (round(found, 3) if isinstance(found, float) else found) == value, name
    assert not turn.may_wait
    assert {"endpointing_wait", "speech_synthesis"} <= {c["key"] for c in turn.contributions}
    (written,) = (json.loads(line) for line in log.read_text().splitlines())
    assert written["first_answer_secs"] == pytest.approx(1.1)
    if make is hedged:
        (report,) = turn.reports
        assert [a.outcome for a in report.attempts] == ["won", "superseded"]
        assert report.committed_secs == pytest.approx(0.7)
        assert turn.asked_secs == pytest.approx((0.3,), abs=0.001)
        assert written["reports"][0]["attempts"][0]["provider"] == "scripted:gpt-4.1"
    else:
        assert turn.reports == ()


async def test_filler_is_a_sound_and_no_answer() -> None:
    """Though the bot speaks on without a break; an answer that waits for the filler is later."""
    slow: list[Step] = [Wait(2.5), Say("We are open.")]
    waits: list[Step] = [Wait(0.95), Say("We are open.")]
    fillers = FillerProcessor(not_before_turn=1)
    async with PhoneCall(hedged(*[slow] * 32, waits), fillers=fillers) as call:
        for _ in range(32):
            await call.speak(20.0)
        call.voice.audio_secs = 1.0
        late = await call.speak(20.0)
    assert len(call.turns) == 33
    turn = call.turns[-2]
    assert turn.reports[0].filler is not None
    assert turn.reports[0].filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    check(turn, first_sound_secs=0.3 + 0.8 + 0.1, filler_end_secs=1.2 + 0.1 + 0.02)
    check(turn, first_answer_secs=0.3 + 2.5 + 0.1, first_tts_audio_secs=0.3 + 2.5 + 0.1)
    check(late, first_sound_secs=0.3 + 0.8 + 0.1, first_answer_secs=1.2 + 1.0)
    check(late, first_tts_audio_secs=0.3 + 0.95 + 0.1)


# ---- what happens in a call, and its records


def line(text: str = "One moment.", *, remembered: bool = True) -> Frame:
    """A line of the bot's own."""
    return TTSSpeakFrame(text, append_to_context=remembered)


def row(events: list[Event], *turns: dict[str, Any], id: str, **options: Any) -> Any:
    """What happens, and what the records have; ``script`` is the answer, ``voice`` its options."""
    return pytest.param(events, options, turns, id=id)


NO_VAD: list[Event] = [TURN_ON, 1.3, TURN_OFF, ask]
INTERRUPTS: list[Event] = [VAD_ON, TURN_ON, InterruptionFrame]
ALONE = {"anchor": "context", "first_answer_secs": 0.8, "voice_to_voice_secs": None}
"""The bot is asked to speak without a caller's turn."""
IN_MID = {"first_sound_secs": 0.3 + 0.5 + 0.1, "filler_end_secs": 0.3 + 0.5 + 0.2}
TOKENS = {"text_aggregation_mode": TextAggregationMode.TOKEN}


@both
@pytest.mark.parametrize(
    ("events", "options", "turns"),
    [
        # Pipecat's assistant aggregator sends the context on after an answer: no turn begins.
        row(
            [*SPEAKS, 10.0, *SPEAKS, 10.0, ask, 10.0],
            *(AT_ITS_TIME, AT_ITS_TIME, ALONE),
            id="a bot that is run again begins a turn",
        ),
        row(
            [line(), 3.0, line(remembered=False), 3.0, *SPEAKS, 10.0],
            AT_ITS_TIME,
            id="a greeting without the LLM is no turn's sound",
        ),
        row(
            [*SPEAKS, 0.1, VAD_ON, 0.25, vad_off, 10.0, *NO_VAD, 10.0],
            *(AT_ITS_TIME, {"anchor": "turn_end", "first_answer_secs": 0.8}),
            id="a cough before the answer does not count",
        ),
        row(
            [*SPEAKS, 0.1, VAD_ON, 10.0],
            AT_ITS_TIME,
            id="nor one that does not end",
        ),
        row(
            [*SPEAKS, 0.5, *INTERRUPTS, 0.5, *SPEAKS, 10.0],
            {"interrupted": True, "context_secs": 0.3, "first_answer_secs": None},
            AT_ITS_TIME,
            id="an interrupted answer",
        ),
        row(
            [line(), ask, 10.0],
            {"first_sound_secs": 0.1, "first_token_secs": 0.4, "first_tts_audio_secs": 0.8}
            | {"first_answer_secs": 2.1, "filler_end_secs": 2.1},
            id="a line that sounds after the LLM was asked",
            audio_secs=2.0,
        ),
        row(
            [line(remembered=False), ask, 10.0],
            {"first_sound_secs": 0.1, "first_answer_secs": 2.1, "filler_end_secs": 2.1},
            id="one that is not remembered",
            audio_secs=2.0,
        ),
        row(
            [*SPEAKS, 0.5, line(), 10.0],
            {**IN_MID, "first_answer_secs": 0.3 + 2.7 + 0.1, "first_tts_audio_secs": 3.1},
            id="a line before the text",
            script=[Wait(2.0), *ANSWER],
        ),
        row(
            [*SPEAKS, 0.5, line(), 10.0],
            {**IN_MID, "first_answer_secs": 0.3 + 2.4 + 0.1, "first_tts_audio_secs": 2.8},
            id="a line before the text, by tokens",
            script=[Wait(2.0), *ANSWER],
            voice=TOKENS,
        ),
        row(
            [*SPEAKS, 1.0, line(), 10.0],
            {"first_sound_secs": 1.4, "first_answer_secs": 2.8, "first_tts_audio_secs": 2.8},
            id="a line before the sentence",
            script=BROKEN,
        ),
        row(
            [*SPEAKS, 1.0, ask, 10.0],
            {"voice_to_voice_secs": 1.1, "interrupted": False},
            {"anchor": "context", "first_tts_audio_secs": 0.8, "first_answer_secs": 3.1 - 1.3},
            id="a second request while the answer sounds",
            audio_secs=2.0,
        ),
    ],
)
async def test_call_has_its_records(
    make: Any, events: list[Event], options: dict[str, Any], turns: tuple[dict[str, Any], ...]
) -> None:
    """A line of the bot's own is a sound and no answer."""
    voice = Voice(**options.get("voice", {}))
    voice.audio_secs = options.get("audio_secs", 0.1)
    async with PhoneCall(make(options.get("script", ANSWER)), voice=voice) as call:
        await call.play(*events)
    assert [turn.turn for turn in call.turns] == list(range(1, len(turns) + 1))
    for turn, expected in zip(call.turns, turns, strict=True):
        check(turn, **expected)


async def test_sound_that_is_no_speech_is_no_answer() -> None:
    async with PhoneCall(hedged(ANSWER)) as call:
        await call.play(*SPEAKS, 0.2)
        sound = OutputAudioRawFrame(b"\1\1" * round(0.1 * RATE), RATE, 1)
        await call.voice.push_frame(sound)
        await call.play(10.0)
    (turn,) = call.turns
    check(turn, first_sound_secs=0.5 + 0.02, first_answer_secs=1.1, filler_end_secs=None)


async def test_interrupted_race_belongs_to_its_turn() -> None:
    async with PhoneCall(hedged(ANSWER)) as call:
        await call.play(*SPEAKS, 0.5, *INTERRUPTS, 0.5)
        assert [turn.interrupted for turn in call.turns] == [True]
        await call.speak()
    assert call.turns[0].asked_secs == pytest.approx((0.3,), abs=0.001)
    assert [[(r.turn, r.outcome) for r in turn.reports] for turn in call.turns] == [
        [(1, "interrupted")],
        [(2, "answered")],
    ]


async def test_speech_after_a_failure_interrupts_nothing() -> None:
    llm = HedgedLLMService([ScriptedLLMService([Error("no")])], policy=HedgePolicy.fallback())
    async with PhoneCall(llm) as call:
        await call.play(*SPEAKS, 2.0, *SPEAKS, 1.0)
    assert [turn.interrupted for turn in call.turns] == [False, False]


async def test_turn_without_answer_may_wait_for_the_caller() -> None:
    """Where the LLM decides whether the caller has finished."""
    llm = HedgedLLMService([ScriptedLLMService([Wait(0.2), Say("○")])])
    settings = LLMUpdateSettingsFrame(delta=LLMSettings(filter_incomplete_user_turns=True))
    async with PhoneCall(llm) as call:
        # Pipecat's timer for the rest of the turn ends with an interruption.
        await call.play(settings, *SPEAKS, 2.0, InterruptionFrame)
    (turn,) = call.turns
    check(turn, may_wait=True, first_answer_secs=None)


@pytest.mark.parametrize(
    ("script", "secs", "answer_secs"),
    [
        # It may still be interrupted.
        ([Wait(0.4), Say("We are open. "), Say("So "), Wait(5.0), Say("come.")], 3.0, 0.8),
        ([Wait(0.2)], 5.0, None),
    ],
    ids=["pause of a bare service", "unheard"],
)
async def test_turn_is_not_over_before_its_answer(
    script: list[Step], secs: float, answer_secs: float | None
) -> None:
    async with PhoneCall(ScriptedLLMService(script)) as call:
        await call.play(*SPEAKS, secs)
        assert call.turns == []
        await call.play(10.0)
    (turn,) = call.turns
    check(turn, first_answer_secs=answer_secs, first_sound_secs=answer_secs)


def test_speech_to_speech_model_says_only_answers() -> None:
    audio, model = AnswerAudio(), ScriptedLLMService(ANSWER)
    for turn in (1, 2):
        audio.audio_started(TTSStartedFrame(), model, turn)
        assert audio.turn_of(None) == turn


# ---- tools: one turn with what is said before them, while they run, and after

CALLS: list[Step] = [Wait(0.3), Call("look_up")]
ANNOUNCES: list[Step] = [Wait(0.3), Say("Let me look. "), Call("look_up")]
ANSWERED = 0.3 + 0.3 + 3.0 + 0.8
LINE = {"first_sound_secs": 0.7, "filler_end_secs": 0.8 + 0.02}
LATE = {"anchor": "user_silence", "first_tts_audio_secs": ANSWERED, "voice_to_voice_secs": ANSWERED}
ANNOUNCED = {"voice_to_voice_secs": 0.7, "first_token_secs": 0.6, "first_sentence_secs": 0.6}


@both
@pytest.mark.parametrize(
    ("first", "said", "runs_llm", "events", "turns"),
    [
        pytest.param(CALLS, line(), None, [], [LINE | LATE], id="a line is no answer"),
        pytest.param(
            *(CALLS, line(remembered=False), None, [], [LINE | LATE]), id="nor one not remembered"
        ),
        # The record goes on to the end of the answer after the tool.
        pytest.param(
            *(ANNOUNCES, None, None, [], [ANNOUNCED | {"interrupted": False}]), id="the LLM's text"
        ),
        pytest.param(
            *(
                ANNOUNCES,
                None,
                False,
                [10.0, *SPEAKS],
                [ANNOUNCED | {"interrupted": False}, AT_ITS_TIME],
            ),
            id="a result that asks for no answer",
        ),
        pytest.param(
            *(ANNOUNCES, None, None, [2.0, TURN_ON], [ANNOUNCED | {"interrupted": True}]),
            id="speech while it runs",
        ),
    ],
)
async def test_turn_with_a_tool_is_one_record(
    make: Any,
    first: list[Step],
    said: TTSSpeakFrame | None,
    runs_llm: bool | None,
    events: list[Event],
    turns: list[dict[str, Any]],
) -> None:
    """The tool takes three seconds."""
    async with PhoneCall(make(first, ANSWER), tool_secs=3.0) as call:
        call.tool_line, call.runs_llm = said, runs_llm
        await call.play(*SPEAKS, *events, 10.0)
    for turn, expected in zip(call.turns, turns, strict=True):
        check(turn, **expected)
    if make is hedged and not events:
        (turn,) = call.turns
        assert [r.outcome for r in turn.reports] == ["answered_with_tools", "answered"]
        assert turn.asked_secs == pytest.approx((0.3, 3.6), abs=0.01)


# ---- what is waited for


def started(*ids: str) -> FunctionCallsStartedFrame:
    context = LLMContext()
    return FunctionCallsStartedFrame([FunctionCallFromLLM("f", id_, {}, context) for id_ in ids])


def running(id_: str, *, waits: bool = True) -> FunctionCallInProgressFrame:
    return FunctionCallInProgressFrame("f", id_, {}, cancel_on_interruption=waits)


def result(id_: str, value: Any = "x", **options: Any) -> FunctionCallResultFrame:
    properties = FunctionCallResultProperties(**options) if options else None
    return FunctionCallResultFrame("f", id_, {}, value, properties=properties)


def cancelled(id_: str, *, run_llm: bool) -> FunctionCallCancelFrame:
    return FunctionCallCancelFrame("f", id_, run_llm=run_llm)


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        pytest.param([], False, id="no tools"),
        pytest.param([started("a")], True, id="called"),
        pytest.param([started("a"), result("a")], True, id="the LLM has yet to be asked"),
        pytest.param(
            [started("a"), result("a"), LLMFullResponseStartFrame()], False, id="it has been"
        ),
        pytest.param([started("a"), result("a", None)], False, id="an empty result asks nothing"),
        pytest.param([started("a"), result("a", run_llm=False)], False, id="without a run"),
        pytest.param([started("a", "b"), result("a", None)], True, id="one of two"),
        pytest.param(
            [started("a", "b"), result("a"), LLMFullResponseStartFrame()],
            True,
            id="asked between the two",
        ),
        pytest.param([running("a")], True, id="never announced"),
        pytest.param([started("a"), running("a", waits=False)], False, id="runs beside"),
        pytest.param([running("a", waits=False), result("a", is_final=False)], True, id="so far"),
        pytest.param([running("a", waits=False), result("a")], True, id="it asks, though beside"),
        pytest.param([started("a"), cancelled("a", run_llm=False)], False, id="cancelled"),
        pytest.param([started("a"), cancelled("a", run_llm=True)], True, id="timed out"),
        pytest.param([result("a"), cancelled("b", run_llm=True)], False, id="of another turn"),
    ],
)
def test_tools_are_awaited(frames: list[Any], waits: bool) -> None:
    """Until every tool has returned, and the LLM has been asked again if one wants it to be."""
    tools = AwaitedTools()
    for frame in frames:
        tools.take(frame)
    assert bool(tools) is waits
