"""Nothing interrupts the bot while the caller is silent, however late transcripts come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    UserStartedSpeakingFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.turns.user_stop import turn_analyzer_user_turn_stop_strategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedSTTService, ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.call import PhoneCall, Voice
from tests.support.recognition import Said, ScriptedRescue, ScriptedSTT, analyzed, spoken

pytestmark = pytest.mark.virtual_time

UTTERANCES = 150


def text(number: int) -> str:
    return f"I would like number {number} and {7 * number} please"


def late_tenth(number: int) -> Sequence[Said]:
    """A tenth is late by 2 to 5 s, with interim transcripts before, and some never come."""
    rng = random.Random(number)
    kind, secs = rng.random(), rng.uniform(2, 5)
    if kind < 0.02:
        return []
    if kind < 0.12:
        interims = [(secs - 0.3 * n, f"…{text(number)[: -5 * n]}") for n in (3, 2, 1)]
        return [*interims, (secs, text(number))]
    return [(rng.uniform(0, 0.1), text(number))]


async def interruptions(stt: FrameProcessor) -> tuple[int, int]:
    """How often the bot was interrupted while the caller was silent; and by the caller."""
    llm = ScriptedLLMService([Wait(0.1), Say("Yes, we are open till nine in the evening.")])
    voice = Voice()
    voice.audio_secs = 4.0
    strategies = UserTurnStrategies(stop=[analyzed()])  # Pipecat's own to find a turn's start
    clock = SimpleNamespace(time=lambda: asyncio.get_running_loop().time())
    with patch.object(turn_analyzer_user_turn_stop_strategy, "time", clock):
        async with PhoneCall(llm, voice=voice, strategies=strategies, before=[stt]) as phone:
            for number in range(UTTERANCES):
                await phone.play(*spoken(), random.Random(-number).uniform(3.5, 8))
    spoken_at = {round(at, 3) for at in phone.line.times(VADUserStartedSpeakingFrame)}
    frames = (InterruptionFrame, UserStartedSpeakingFrame)
    at = [round(secs, 3) for kind in frames for secs in phone.line.times(kind)]
    return sum(secs not in spoken_at for secs in at), sum(secs in spoken_at for secs in at)


@pytest.mark.slow
async def test_late_transcripts_of_a_rescued_utterance_interrupt_no_answer() -> None:
    numbers: list[int] = []

    def script(number: int) -> Sequence[Said]:
        numbers.append(number)
        return late_tenth(number)

    rescue = ScriptedRescue(lambda _: text(numbers[-1]))
    stt = HedgedSTTService(ScriptedSTT(script, constant_secs=1.0), rescue, stats=ProviderStats())
    in_silence, by_caller = await interruptions(stt)
    print(f"{in_silence} in silence, {len(rescue.heard)} rescued")
    assert len(rescue.heard) >= 15
    assert by_caller == 2 * UTTERANCES
    assert in_silence == 0
