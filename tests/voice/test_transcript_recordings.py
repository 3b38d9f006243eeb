"""Recorded callers who pause in mid-sentence: what the learned wait saves, and whether it splits.

Pipecat's voice activity detection and its turn analyzer hear the recordings, each with two of four
pauses of 0.4 to 1.3 s. The recogniser's transcripts come 0.22 to 0.28 s after an end of speech.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.audio.turn.smart_turn import base_smart_turn
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.frames.frames import InputAudioRawFrame, VADUserStartedSpeakingFrame
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    SpeechTimeoutUserTurnStopStrategy,
    TurnAnalyzerUserTurnStopStrategy,
    turn_analyzer_user_turn_stop_strategy,
)
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptTiming
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.replay import load_manifest
from tests.support.call import Event, PhoneCall
from tests.support.recognition import (
    CONSTANT_SECS,
    STOP_SECS,
    Said,
    ScriptedRescue,
    ScriptedSTT,
    stopped,
)
from tests.support.recorded_calls import MANIFEST, RATE, voice_activity
from tests.support.recorded_calls import Said as Sentence

PAUSES_SECS = ((0.4, 1.0), (0.7, 1.3))
"""Of every second recording, and of the others."""
ANALYZER_SECS = 0.03
CHUNK_SECS = 0.1
GAP_SECS = 5.0
EVERY = int(os.environ.get("EVERY_SENTENCE", "3"))
"""Which sentences are heard: with 1 all 30, for the figures in the docs."""


@functools.cache
def sentences() -> list[tuple[Sentence, list[tuple[float, bool]]]]:
    """Each sentence, and when the VAD hears speech begin and end."""
    found = [Sentence.of(recording) for recording in load_manifest(MANIFEST)]
    plain = [each for each in found if not each.pauses]
    said = [each.paused(s) for n, each in enumerate(plain) for s in PAUSES_SECS[n % 2]]

    async def find() -> list[tuple[Sentence, list[tuple[float, bool]]]]:
        return [(each, await voice_activity(each.samples)) for each in said]

    return asyncio.run(find())


@pytest.fixture
def recorded() -> list[Event]:
    """What the bot hears, in the order of time."""
    events: list[Event] = []
    for said, activity in sentences()[::EVERY]:
        step = round(CHUNK_SECS * RATE)
        samples = np.concatenate([said.samples, np.zeros(round(GAP_SECS * RATE), np.int16)])
        timed: list[tuple[float, Event]] = [
            (at, VADUserStartedSpeakingFrame if is_on else stopped) for at, is_on in activity
        ]
        for begin in range(0, len(samples) - step + 1, step):
            audio = samples[begin : begin + step].tobytes()
            timed.append(
                ((begin + step) / RATE, functools.partial(InputAudioRawFrame, audio, RATE, 1))
            )
        now = 0.0
        for at, event in sorted(timed, key=lambda each: each[0]):
            events += [at - now, event]
            now = at
    return events


loaded = functools.cache(LocalSmartTurnAnalyzerV3)


@functools.cache
def verdict(audio: bytes) -> dict[str, Any]:
    return loaded()._predict_endpoint(np.frombuffer(audio, np.float32))


class SmartTurn(LocalSmartTurnAnalyzerV3):
    """Pipecat's, in the loop's time."""

    def _predict_endpoint(self, audio_array: Any) -> dict[str, Any]:
        return verdict(audio_array.tobytes())

    async def analyze_end_of_turn(self) -> tuple[EndOfTurnState, MetricsData | None]:
        state, result = self._process_speech_segment(self._audio_buffer)
        await asyncio.sleep(ANALYZER_SECS)
        if state == EndOfTurnState.COMPLETE:
            self._clear(state)
        return state, result


def final_secs(number: int) -> float:
    return random.Random(number).uniform(0.22, 0.28)


def one_final(number: int) -> Sequence[Said]:
    return [(final_secs(number) - STOP_SECS, f"utterance {number}")]


def two_finals(number: int) -> Sequence[Said]:
    return [(0.01, "part of"), *one_final(number)]


def learned(recogniser: Backend, since_first_secs: float) -> tuple[ProviderStats, float]:
    """What is known after 200 utterances, and the p99."""
    stats = ProviderStats()
    for number in range(200):
        stats.record_transcript(recogniser, final_secs(number), since_first_secs)
    times = stats.transcripts(recogniser)
    assert times is not None
    return stats, times.p99_secs


@dataclass
class Heard:
    """What came of a call.

    Parameters:
        wait_secs: The median from the end of speech to the model's context.
        turns: The number of turns.
    """

    wait_secs: float
    turns: int


async def hear(
    events: Sequence[Event], stop: BaseUserTurnStopStrategy, *before: FrameProcessor
) -> Heard:
    llm = ScriptedLLMService([Wait(0.1), Say("Yes.")])
    strategies = UserTurnStrategies(start=[VADUserTurnStartStrategy()], stop=[stop])
    now = asyncio.get_running_loop().time
    clock = SimpleNamespace(time=now, monotonic=now, perf_counter=now)
    with (
        patch.object(turn_analyzer_user_turn_stop_strategy, "time", clock),
        patch.object(base_smart_turn, "time", clock),
    ):
        async with PhoneCall(llm, strategies=strategies, before=before) as phone:
            await phone.play(*events)
    waits = [turn.context_secs for turn in phone.turns if turn.context_secs is not None]
    return Heard(median(waits), sum(message["role"] == "user" for message in phone.messages))


STOPS: dict[str, tuple[Callable[[], BaseUserTurnStopStrategy], float]] = {
    "turn analyzer": (
        lambda: TurnAnalyzerUserTurnStopStrategy(turn_analyzer=SmartTurn()),
        STOP_SECS + ANALYZER_SECS,
    ),
    "speech timeout": (SpeechTimeoutUserTurnStopStrategy, STOP_SECS + 0.6),
}


@pytest.mark.virtual_time
@pytest.mark.slow
@pytest.mark.parametrize("name", STOPS)
async def test_learned_wait_splits_turns_as_marked_transcripts_do(
    recorded: list[Event], name: str
) -> None:
    """And the wait falls from the constant to what is learned, or what the strategy waits."""
    stop, least_secs = STOPS[name]
    constant = await hear(recorded, stop(), ScriptedSTT(two_finals))
    twin = await hear(recorded, stop(), ScriptedSTT(one_final, marks=True))
    backend = Backend("scripted", "scripted-1", measures="transcript")
    stats, p99_secs = learned(backend, 0.1)
    two = await hear(recorded, stop(), ScriptedSTT(two_finals), TranscriptTiming(stats=stats))
    stats, _ = learned(backend, 0.0)
    one = await hear(recorded, stop(), ScriptedSTT(one_final), TranscriptTiming(stats=stats))
    stats, _ = learned(Backend("scripted+scriptedrescue", measures="transcript"), 0.0)
    stt = HedgedSTTService(
        ScriptedSTT(one_final), rescue := ScriptedRescue(lambda _: ""), stats=stats
    )
    hedged = await hear(recorded, stop(), stt)
    print(f"\n{name}: {len(sentences()[::EVERY])} sentences, constant {constant}")
    print(f"marked by itself {twin}, learned {one}, two transcripts {two}, hedged {hedged}")
    assert max(one.turns, two.turns, hedged.turns) <= twin.turns
    falls_secs = CONSTANT_SECS - max(p99_secs, least_secs)
    assert constant.wait_secs - two.wait_secs == pytest.approx(falls_secs, abs=0.05)
    for each in (one, hedged):
        assert constant.wait_secs - each.wait_secs >= falls_secs - 0.05
    assert rescue.heard == []
