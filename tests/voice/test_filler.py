"""Fillers: when the silence is filled, when not, and that nothing else notices."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import example, given
from hypothesis import strategies as st
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMConfigureOutputFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSTextFrame,
    UserStartedSpeakingFrame,
)
from pipecat.services.llm_service import LLMService
from pipecat.turns.user_turn_strategies import EagerUserTurnStrategies, UserTurnStrategies

from pipecat_hedge import (
    FillerProcessor,
    HedgedLLMService,
    HedgePolicy,
    ProviderStats,
)
from pipecat_hedge.providers import Backend, SurvivalCurve
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.filler_playback import FillerFrame
from pipecat_hedge.voice.filler_policy import FillerDecision, FillerRule
from tests.support.call import CHUNK, STARTED, STOPPED, PhoneCall, Voice, eager, words
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

ANSWER = "We are open till nine."
SLOW: list[Step] = [Wait(2.5), Say(ANSWER)]
USUAL: list[Step] = [Wait(0.4), Say(ANSWER)]


class FilledCall(PhoneCall):
    """A call with fillers."""

    def __init__(
        self,
        llm: LLMService[Any],
        *,
        voice: Voice | None = None,
        tool_secs: float = 0.0,
        strategies: UserTurnStrategies | None = None,
        **options: Any,
    ):
        self.fillers = FillerProcessor(**{"rng": random.Random(1), **options})
        super().__init__(
            llm, voice=voice, fillers=self.fillers, tool_secs=tool_secs, strategies=strategies
        )

    @property
    def spoken(self) -> list[str]:
        """The fillers, and what else the bot said before its answers."""
        return [text for _, text in self.voice.asked if text != ANSWER]

    def spoken_at(self, asked: float = 0.0) -> list[float]:
        """When the fillers since were spoken."""
        return [at - asked for at, text in self.voice.asked if text != ANSWER and at >= asked]


def hedged(*scripts: Sequence[Step], **options: Any) -> HedgedLLMService:
    options.setdefault("policy", HedgePolicy.fallback(1, stall_secs=None))
    return HedgedLLMService([ScriptedLLMService(*scripts, model="gpt-4.1")], **options)


def bare(*scripts: Sequence[Step]) -> LLMService[Any]:
    return ScriptedLLMService(*scripts, model="gpt-4.1")


def known_waits(waits: dict[str, float]) -> ProviderStats:
    """Statistics in which each service or tool has always taken so many seconds."""
    stats = ProviderStats()
    for name, secs in waits.items():
        model = None if name.startswith("tool ") else "gpt-4.1"
        for _ in range(200):
            stats.record_wait(Backend(name, model, measures="wait"), secs, None)
    return stats


@pytest.mark.parametrize("make", [hedged, bare])
async def test_slow_answer_is_bridged(make: Callable[..., LLMService[Any]]) -> None:
    """From the second turn on, as soon as it may be; the answer follows whole."""
    async with FilledCall(make(SLOW)) as call:
        await call.ask()
        assert call.spoken == [], "not in the first turn"
        assert 0.8 <= call.spoken_at(await call.ask())[0] < 2.0
        await call.ask(10)
        asked = await call.ask()
        assert call.spoken_at(asked)[0] == pytest.approx(0.8, abs=0.01)
    assert len(call.spoken) == 12
    assert all(one != other for one, other in zip(call.spoken, call.spoken[1:], strict=False))
    assert [text for _, text in call.voice.asked if text == ANSWER] == [ANSWER] * 13
    assert call.remembered == [ANSWER] * 13
    assert call.line.errors == []


async def test_usual_answer_is_not_bridged() -> None:
    async with FilledCall(hedged(USUAL)) as call:
        await call.ask(60)
    assert call.spoken == []
    reports = call.line.reports
    assert reports[50].filler is not None
    assert reports[50].filler.spoken_secs is None
    assert " s, a filler needs " in reports[50].filler.reason
    assert reports[50].filler.reason.endswith("; the answer started at 0.40 s")


async def test_filler_is_inside_the_answers_frames() -> None:
    """Between its start and its end, separate from it, and in no figure."""
    async with FilledCall(hedged(SLOW)) as call:
        await call.ask(2)
        report = await call.line.report(2)
        kinds = (LLMFullResponseStartFrame, TTSStartedFrame, LLMFullResponseEndFrame)
        heard = [frame for _, frame in call.line.heard if isinstance(frame, kinds)][-4:]
    assert [type(frame) for frame in heard] == [kinds[0], kinds[1], kinds[1], kinds[2]]
    assert [f.append_to_context for f in heard if isinstance(f, TTSStartedFrame)] == [False, True]
    assert not any(t.append_to_context for t in call.line.frames(TTSTextFrame) if t.text != ANSWER)
    assert report.ttft_secs == pytest.approx(2.5)
    assert report.filler is not None
    assert report.filler.cause == "slow"
    assert report.filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    assert "s left to wait at 0.80 s" in report.filler.reason
    assert not report.filler.was_cut


@pytest.mark.parametrize(
    ("answer_secs", "voice", "is_cut"),
    [
        pytest.param(0.85, {"delay_secs": 0.3}, True, id="not sounding yet"),
        pytest.param(0.85, {"delay_secs": 0.6}, True, id="a slow voice"),
        pytest.param(1.2, {"delay_secs": 0.1}, False, id="it sounds already"),
        # Such a voice cannot tell whose audio comes in: the rest would count as the answer's.
        pytest.param(
            *(0.85, {"delay_secs": 0.3, "pause_frame_processing": True}, False), id="whose audio"
        ),
    ],
)
async def test_filler_is_withdrawn_before_it_sounds(
    answer_secs: float, voice: dict[str, Any], is_cut: bool
) -> None:
    """Without an error, and the answer is spoken as if there had been none."""
    scripts = [SLOW] * 12 + [[Wait(answer_secs), Say(ANSWER)]]
    async with FilledCall(hedged(*scripts), voice=Voice(**voice)) as call:
        call.voice.audio_secs = call.voice.stream_secs = 0.5
        asked = await call.ask(13)
    filler = call.turns[-1].reports[0].filler
    assert filler is not None
    assert filler.was_cut is is_cut
    assert filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    assert filler.reason.endswith("; but the answer started") is is_cut
    heard_at = next(
        at - asked
        for at, frame in call.line.heard
        if isinstance(frame, TTSAudioRawFrame) and any(frame.audio) and at > asked
    )
    sounds_secs = (answer_secs if is_cut else 0.8) + voice["delay_secs"]
    assert heard_at == pytest.approx(sounds_secs + CHUNK, abs=0.02)
    assert call.line.errors == []


class Cancelled(Voice):
    """Notes which requests it is told to drop."""

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        self.asked_to_drop = context_id


async def test_withdrawn_filler_does_not_hold_up_the_next() -> None:
    """It was not heard: the least time between two counts from the one before."""
    scripts = [SLOW] * 12 + [[Wait(0.85), Say(ANSWER)], SLOW]
    voice = Cancelled(delay_secs=0.3)
    async with FilledCall(hedged(*scripts), voice=voice) as call:
        await call.ask(12)
        await call.ask(gap_secs=5)
        assert voice.asked_to_drop
        assert call.spoken_at(await call.ask()) == [pytest.approx(0.8, abs=0.01)]


def marker() -> LLMTextFrame:
    """What a model begins with that says whether the caller has finished."""
    frame = LLMTextFrame("✓")
    frame.skip_tts = True
    return frame


@pytest.mark.parametrize("text", [Say("\n\n"), marker()], ids=["blank", "marker"])
async def test_text_that_is_not_spoken_is_no_answer(text: Step) -> None:
    """The answer is still awaited, and bridged."""
    async with FilledCall(bare([Wait(0.3), text, Wait(2.2), Say(ANSWER)])) as call:
        await call.ask()
        assert 0.8 <= call.spoken_at(await call.ask())[0] < 2.0


@pytest.mark.parametrize(
    ("make", "name"), [(hedged, "scripted:gpt-4.1"), (bare, "ScriptedLLMService")]
)
async def test_waits_without_an_answer_are_learned(
    make: Callable[..., LLMService[Any]], name: str
) -> None:
    """Until a tool is called, and at least until the caller interrupts."""
    stats = ProviderStats()
    llm = make(*[[Wait(2.5), Call("look_up")], USUAL] * 12, [Wait(20.0)])

    def share_after(secs: float) -> float:
        known = stats.latencies()[f"{name} | gpt-4.1 | waits"]
        return float(known.estimate(None, by_sentence=False).first_token.share_after(secs))

    async with FilledCall(llm, stats=stats) as call:
        await call.ask(12)
        assert share_after(2.0) > 0.3
        before = share_after(3.0)
        for _ in range(12):
            await call.line.send(LLMContextFrame(call.context))
            await asyncio.sleep(4.0)
            await call.line.interrupt()
            await asyncio.sleep(1.0)
        assert share_after(3.0) > before + 0.1


async def test_interruption_ends_the_wait() -> None:
    """A speaking caller hears nothing; the next turn works."""
    async with FilledCall(hedged(SLOW)) as call:
        await call.ask(4)
        said = len(call.spoken)
        asking = asyncio.create_task(call.line.ask(context=call.context))
        await asyncio.sleep(0.5)
        await call.line.send(InterruptionFrame())
        await asyncio.sleep(10)
        assert len(call.spoken) == said
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await call.ask()
        assert len(call.spoken) == said + 1


@pytest.mark.parametrize("make", [hedged, bare])
async def test_interrupted_answer_has_its_end(make: Callable[..., LLMService[Any]]) -> None:
    """As without fillers: the frame is not held where the interruption would drop it."""
    async with FilledCall(make(SLOW), not_before_turn=1) as call:
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(0.5)
        await call.line.interrupt()
        await asyncio.sleep(1)
    assert call.line.framing == ["<", ">"]


async def test_filler_that_was_interrupted_does_not_hold_up_the_next() -> None:
    """It will not be heard, so the next need not wait until it may have been."""
    options: dict[str, Any] = {"stats": known_waits({"ScriptedLLMService": 8.0}), "every_secs": 1.0}
    llm = bare([Wait(8.0), Say(ANSWER)])
    async with FilledCall(llm, voice=Voice(delay_secs=1.0), not_before_turn=1, **options) as call:
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(1.0)
        assert len(call.spoken) == 1
        await call.line.interrupt()
        await asyncio.sleep(1.0)
        assert call.spoken_at(await call.ask()) == [pytest.approx(0.8, abs=0.01)]


async def test_answer_that_is_not_spoken_has_no_filler() -> None:
    async with FilledCall(hedged(SLOW)) as call:
        await call.line.send(LLMConfigureOutputFrame(skip_tts=True))
        await call.ask(3)
    assert call.voice.asked == []


async def test_no_filler_while_the_bot_speaks() -> None:
    """The caller waits from the end of what is spoken, not from the next answer's start."""
    llm = hedged(*[USUAL] * 2, [Wait(6.0), Say(ANSWER)])
    async with FilledCall(llm) as call:
        await call.ask()
        call.voice.audio_secs = 3.0
        await call.line.send(LLMContextFrame(call.context), LLMContextFrame(call.context))
        await asyncio.sleep(15)
        quiet_at = call.line.times(BotStoppedSpeakingFrame)[1]
        assert call.spoken_at() == [pytest.approx(quiet_at + 0.8, abs=0.01)]


@pytest.mark.parametrize(("answer_secs", "filled"), [(2.5, False), (6.5, True)])
async def test_no_filler_while_speculating(answer_secs: float, filled: bool) -> None:
    """The caller may still be speaking; once the turn is confirmed, what is left counts."""
    stats = ProviderStats()
    wait = Backend("scripted:gpt-4.1", "gpt-4.1", measures="wait")
    for _ in range(200):
        stats.record_wait(wait, answer_secs, None)
    llm = hedged([Wait(answer_secs), Say(ANSWER)])
    options: dict[str, Any] = {"not_before_turn": 1, "stats": stats}
    async with FilledCall(llm, strategies=EagerUserTurnStrategies(), **options) as call:
        await call.play(STARTED, 1.0, eager, 3.2, STOPPED, words, 16.0)
    assert bool(call.spoken) is filled
    assert all(at > 4.2 + 0.7 for at in call.spoken_at()), "not before the turn was confirmed"
    assert ANSWER in [text for _, text in call.voice.asked]


async def test_fillers_do_not_overlap() -> None:
    """Though no time is asked for between two of them."""
    options: dict[str, Any] = {"per_turn": 3, "every_secs": 0.0}
    async with FilledCall(hedged([Wait(12.0), Say(ANSWER)]), **options) as call:
        await call.ask(12, gap_secs=30.0)
    spoken = call.spoken_at()
    assert len(spoken) > 12
    assert all(later - at > 0.7 for at, later in itertools.pairwise(spoken))


async def test_long_wait_has_a_second_filler() -> None:
    """If it is allowed, with the least time between."""
    dead: list[Step] = [Wait(29.0), Say(ANSWER)]
    async with FilledCall(hedged(dead), per_turn=2, every_secs=6.0) as call:
        await call.ask(8)
        call.voice.asked.clear()
        asked = await call.ask()
    first, second = (at - asked for at, text in call.voice.asked if text != ANSWER)
    assert second - first == pytest.approx(6.0, abs=0.01)


# ---- causes


LOOKS_UP: list[Step] = [Wait(0.3), Call("look_up")]


@pytest.mark.parametrize("make", [hedged, bare])
async def test_slow_tool_is_announced(make: Callable[..., LLMService[Any]]) -> None:
    """At once when it is known to be slow, behind what tells the context of it."""
    phrases = {"tool": ["I'll look it up."]}
    llm = make(*[LOOKS_UP, USUAL] * 20)
    async with FilledCall(llm, tool_secs=3.0, phrases=phrases) as call:
        await call.ask(12, gap_secs=25)
        call.line.forget()
        call.voice.asked.clear()
        asked = await call.ask(gap_secs=25)
        told_at = call.line.times(FunctionCallInProgressFrame)[0]
        filler = call.line.times(TTSStartedFrame)[0]
    assert [text for _, text in call.voice.asked] == ["I'll look it up.", ANSWER]
    assert call.spoken_at(asked)[0] == pytest.approx(0.35, abs=0.02)
    assert told_at < filler
    assert call.remembered[-1] == ANSWER
    if call.line.reports:
        told = [report.filler for report in call.line.reports if report.filler is not None]
        assert {f.cause for f in told if f.spoken_secs is not None} == {"tool"}


@pytest.mark.parametrize(
    ("calls", "answer_secs", "tool_secs", "spoken"),
    [
        # Pipecat asks the LLM again when the bot is silent: a filler would make the wait longer.
        pytest.param(LOOKS_UP, 1.5, 1.0, set(), id="the LLM is slow, not the tool"),
        pytest.param(LOOKS_UP, 0.4, 0.05, set(), id="quick"),
        pytest.param(
            [Wait(0.3), Say("Let me look. "), Call("look_up")],
            0.4,
            3.0,
            {"Let me look."},
            id="announced by the answer",
        ),
    ],
)
async def test_tool_is_not_announced(
    calls: list[Step], answer_secs: float, tool_secs: float, spoken: set[str]
) -> None:
    llm = hedged(*[calls, [Wait(answer_secs), Say(ANSWER)]] * 20)
    phrases = {"tool": ["I'll look it up."]}
    async with FilledCall(llm, tool_secs=tool_secs, phrases=phrases) as call:
        await call.ask(14, gap_secs=25)
    assert set(call.spoken) == spoken


async def test_interrupted_tool_is_cancelled_in_the_context() -> None:
    """Though the caller speaks before the filler sounds."""
    llm = hedged(*[LOOKS_UP, USUAL] * 12, LOOKS_UP)
    async with FilledCall(llm, tool_secs=3.0) as call:
        await call.ask(12, gap_secs=25)
        said = len(call.spoken)
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(0.4)
        assert len(call.spoken) == said + 1
        await call.line.interrupt()
        await asyncio.sleep(1)
    assert call.messages[-1]["content"] == "CANCELLED"


async def test_answer_after_an_interrupted_tool_is_a_turn_of_its_own() -> None:
    """It has a filler though the interrupted turn had one."""
    llm = hedged(*[LOOKS_UP, USUAL] * 12, LOOKS_UP, [Wait(12.0), Say(ANSWER)])
    async with FilledCall(llm, tool_secs=3.0) as call:
        await call.ask(12, gap_secs=25)
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(1.0)
        await call.line.interrupt()
        await asyncio.sleep(20.0)
        assert len(call.spoken_at(await call.ask())) == 1


async def test_turn_after_a_tool_is_new_without_an_interruption() -> None:
    """Where the caller interrupts nothing, and the tool's result asked for no answer."""
    stats = known_waits({"tool look_up": 3.0, "ScriptedLLMService": 8.0})
    options: dict[str, Any] = {"stats": stats, "not_before_turn": 1, "every_secs": 1.0}
    llm = bare(LOOKS_UP, [Wait(8.0), Say(ANSWER)])
    async with FilledCall(llm, tool_secs=3.0, **options) as call:
        call.runs_llm = False
        await call.ask()
        assert len(call.spoken) == 1
        await call.line.send(UserStartedSpeakingFrame())
        assert len(call.spoken_at(await call.ask())) == 1


async def test_nothing_is_said_behind_the_end_of_the_call() -> None:
    """A tool may end the call; the voice has then closed its connection."""
    options: dict[str, Any] = {"stats": known_waits({"tool look_up": 3.0}), "not_before_turn": 1}
    async with FilledCall(bare(LOOKS_UP), tool_secs=6.0, **options) as call:
        await call.line.send(LLMContextFrame(call.context))
        await call.line.until(lambda: bool(call.line.frames(FunctionCallInProgressFrame)))
        await call.line.send(EndFrame())
        await asyncio.sleep(8.0)
        assert call.spoken == []


async def test_tool_called_in_a_filler_is_cancelled_in_the_context() -> None:
    """Its start is behind the filler when the caller speaks; a flow would wait for it for ever."""
    llm = hedged(SLOW, SLOW, [Wait(1.2), Call("look_up")])
    async with FilledCall(llm, tool_secs=3.0) as call:
        await call.ask(2)
        call.voice.audio_secs = 1.0
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(1.5)
        assert len(call.spoken) == 2
        await call.line.interrupt()
        await asyncio.sleep(1)
    assert call.messages[-1]["content"] == '"CANCELLED"'


@pytest.mark.parametrize(
    ("script", "interrupted_at"), [(LOOKS_UP, 0.7), ([Wait(1.2), Call("look_up")], 8.0)]
)
async def test_cancelled_tool_has_no_result(script: list[Step], interrupted_at: float) -> None:
    """Where its start was before the filler, or the filler is over: the context knows of it."""
    stats = known_waits({"tool look_up": 3.0, "scripted:gpt-4.1": 2.5})
    options: dict[str, Any] = {"stats": stats, "not_before_turn": 1}
    async with FilledCall(hedged(script), tool_secs=30.0, **options) as call:
        call.voice.audio_secs = 1.0
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(interrupted_at)
        assert len(call.spoken) == 1
        await call.line.interrupt()
        await asyncio.sleep(1)
    assert call.messages[-1]["content"] == "CANCELLED"
    assert call.line.frames(FunctionCallResultFrame) == []


async def test_slowest_of_several_tools_is_announced() -> None:
    """Though another one has returned before."""
    stats = known_waits({"tool quick": 0.1, "tool slow": 3.0})
    calls = [FunctionCallFromLLM(name, name, {}, None) for name in ("quick", "slow")]
    llm = bare([Wait(0.3), FunctionCallsStartedFrame(calls)])
    async with FilledCall(llm, stats=stats, not_before_turn=1) as call:
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(0.32)
        await call.line.send(FunctionCallResultFrame("quick", "quick", {}, "done"))
        await asyncio.sleep(1)
    assert len(call.spoken) == 1


async def test_waits_for_a_simulator_are_marked() -> None:
    """So that they are neither saved nor shared."""
    stats = ProviderStats()
    stats.mark_simulated(Backend("scripted:gpt-4.1", "gpt-4.1"))
    async with FilledCall(hedged(LOOKS_UP, USUAL, stats=stats)) as call:
        await call.ask()
    assert stats.is_simulated(Backend("tool look_up", measures="wait"))


async def test_tool_that_has_ended_is_not_announced() -> None:
    """Its result asks for no answer, and the next filler may be spoken only later."""
    llm = hedged(*[LOOKS_UP, USUAL] * 13, LOOKS_UP)
    async with FilledCall(llm, tool_secs=3.0) as call:
        await call.ask(12, gap_secs=25)
        await call.ask(gap_secs=6)
        said, call.runs_llm = len(call.spoken), False
        call._tool_secs = 0.1
        await call.line.send(LLMContextFrame(call.context))
        await asyncio.sleep(20)
    assert call.messages[-1]["role"] == "tool"
    assert len(call.spoken) == said


@pytest.mark.parametrize(
    ("hedge", "filled"),
    [(None, True), (USUAL, False), ([Wait(6.0), Say(ANSWER)], True)],
    ids=["none", "fast", "slow as well"],
)
async def test_hedge_is_counted_on(hedge: list[Step] | None, filled: bool) -> None:
    """A provider that hangs is bridged, but not where a fast one has been asked."""
    hangs: list[Step] = [Wait(6.0), Say(ANSWER)]
    members = [ScriptedLLMService(*[USUAL] * 30, hangs, model="gpt-4.1")]
    policy = HedgePolicy.fallback(1, stall_secs=None)
    if hedge is not None:
        model = "gpt-4.1" if hedge is USUAL else "claude-sonnet-4-6"
        members.append(ScriptedLLMService(hedge, model=model))
        policy = HedgePolicy.after(0.9, stall_secs=None)
    async with FilledCall(HedgedLLMService(members, policy=policy)) as call:
        asked = await call.ask(31)
    report = call.line.reports[-1]
    if hedge is USUAL:
        assert [a.outcome for a in report.attempts] == ["superseded", "won"]
        assert report.ttft_secs == pytest.approx(1.3)
    assert len(call.spoken) == filled
    if filled:
        assert 0.8 <= call.spoken_at(asked)[0] < 5.0
        assert report.filler is not None
        assert report.filler.spoken_secs is not None


async def test_failures_have_phrases_of_their_own() -> None:
    fails: list[Step] = [Wait(0.6), Error()]
    broken = ScriptedLLMService(*[[Wait(3.1), Say(ANSWER)], fails] * 6, model="gpt-4.1")
    slow = ScriptedLLMService(SLOW, model="gpt-4.1")
    llm = HedgedLLMService([broken, slow], policy=HedgePolicy.fallback(2, stall_secs=None))
    phrases = {"slow": ["Hm."], "failing": ["Sorry, bear with me."]}
    async with FilledCall(llm, phrases=phrases) as call:
        await call.ask(12)
    assert call.spoken[-2:] == ["Hm.", "Sorry, bear with me."]
    report = call.line.reports[-1].filler
    assert report is not None
    assert report.cause == "failing"


# ---- the rule

FILLER = 0.8
RULE = FillerRule(after_secs=0.8, margin_secs=0.4)


def fixed(secs: float) -> SurvivalCurve:
    """All answers after so long, give or take a tenth; a few never before much later."""
    return SurvivalCurve.of([0.9 * secs, secs, 1.1 * secs], [0.9, 0.5, 0.01], 0.1)


def decided(wait: SurvivalCurve, rule: FillerRule = RULE, **known: Any) -> FillerDecision:
    facts: dict[str, Any] = {"turn": 5, "waited_secs": 0.0, "filler_secs": FILLER, **known}
    return rule.decide(wait, **facts)


@given(
    st.lists(st.floats(0.05, 8.0), min_size=3, max_size=30),
    st.floats(0.0, 2.0),
    st.floats(0.2, 2.0),
    st.floats(0.05, 5.0),
)
@example(answers=[1.0, 1.0, 2.0], waited=0.0, filler_secs=1.0, tail=1.0)
def test_filler_begins_when_it_first_pays(
    answers: list[float], waited: float, filler_secs: float, tail: float
) -> None:
    """Compared with looking at every hundredth of a second."""
    secs = np.sort(np.array(answers))
    wait = SurvivalCurve.of(secs, 1.0 - np.arange(1, len(secs) + 1) / (len(secs) + 1), tail)
    decision = decided(wait, waited_secs=waited, filler_secs=filler_secs)

    def pays(at: float, give: float = 0.0) -> bool:
        landing = 1.0 - float(wait.share_after(at + filler_secs) / wait.share_after(at))
        return wait.expected_remaining(at) >= filler_secs + 0.4 - give and landing <= 0.5 + give

    begins = max(waited, 0.8)
    at_secs = decision.at_secs
    assert at_secs is not None
    hangs_at = max(begins, 2 * wait.quantile(0.998))
    # At a step of the curve it pays before or behind it; where exactly half land, only there.
    assert at_secs == hangs_at or pays(at_secs - 1e-9, 1e-6) or pays(at_secs + 1e-9, 1e-6)
    assert begins <= at_secs <= hangs_at
    assert not any(pays(at) for at in np.arange(begins, at_secs - 1e-6, 0.01))


ENDED = SurvivalCurve.of([1.0, 2.0], [0.5, 0.0], 0.1)
"""A curve without longer waits."""
LONG = fixed(5.0)
TWO = FillerRule(per_turn=2)


@pytest.mark.parametrize(
    ("wait", "rule", "known", "decision"),
    [
        (LONG, RULE, {"turn": 1}, "no fillers before turn 2"),
        (LONG, RULE, {"turn": 2}, 0.8),
        (LONG, RULE, {"fillers": 1}, "1 spoken in this turn, the most per turn"),
        (LONG, TWO, {"fillers": 1}, 0.8),
        (LONG, RULE, {"since_filler_secs": 12.5}, 2.5),
        # At 4.5 s little is left to wait, until the wait is exceptional.
        (LONG, RULE, {"since_filler_secs": 10.5}, 2 * LONG.quantile(0.998)),
        (LONG, RULE, {"since_filler_secs": 60.0}, 0.8),
        (LONG, RULE, {"quiet_secs": math.inf}, "the bot is speaking"),
        (LONG, RULE, {"quiet_secs": 1.5}, 2.3),
        # Beyond all observations a wait is exceptional.
        (fixed(1.0), RULE, {"waited_secs": 9.0}, 9.0),
        (ENDED, RULE, {"waited_secs": 3.0}, 4.0),
        (ENDED, RULE, {"waited_secs": 9.0}, 9.0),
    ],
)
def test_fillers_are_rare(
    wait: SurvivalCurve, rule: FillerRule, known: dict[str, Any], decision: float | str
) -> None:
    """Not in the first turn, once a turn, and not soon after the last one."""
    found = decided(wait, rule, **known)
    if isinstance(decision, str):
        assert found == FillerDecision(None, decision)
    else:
        assert found.at_secs == pytest.approx(decision)


# ---- a sound instead


async def test_earcon_replaces_the_phrase(tmp_path: Path) -> None:
    """The bot does not count as speaking."""
    file = tmp_path / "ding.wav"
    soundfile.write(file, np.full(24_000, 1000, np.int16), 48_000)
    async with FilledCall(hedged(SLOW), earcon=file) as call:
        await call.ask(4)
    assert call.spoken == []
    assert len([1 for turn in call.turns if turn.first_sound_secs != turn.first_answer_secs]) == 3
    sounds = [f for f in call.line.frames(OutputAudioRawFrame) if type(f) is OutputAudioRawFrame]
    assert sum(f.num_frames / f.sample_rate for f in sounds) == pytest.approx(
        3 * 0.5, abs=6 * CHUNK
    )


async def test_each_filler_is_an_event_and_learned_in_the_registry() -> None:
    stats = ProviderStats()
    events: list[Any] = []
    async with FilledCall(hedged(SLOW), stats=stats) as call:

        @call.fillers.event_handler("on_filler")
        async def on_filler(_: FillerProcessor, report: Any) -> None:
            events.append(report)

        await call.ask(10)
    assert len(events) == len(call.spoken)
    async with FilledCall(hedged(SLOW), stats=stats, not_before_turn=1) as call:
        assert call.spoken_at(await call.ask())[0] == pytest.approx(0.8, abs=0.05)


async def test_without_a_voice_nothing_is_said() -> None:
    llm = hedged(SLOW)
    async with Line(llm, processors=[FillerProcessor(not_before_turn=1)]) as line:
        for _ in range(12):
            await line.ask()
            await asyncio.sleep(20.0)
    assert line.frames(FillerFrame) == []
    assert line.text == ANSWER * 12
    filler = line.reports[-1].filler
    assert filler is not None
    assert filler.spoken_secs is None
    assert filler.reason.startswith("no text-to-speech downstream")
