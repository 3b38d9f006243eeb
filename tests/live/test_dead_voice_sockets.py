"""A voice's socket that is half-open from mid-call on: what a caller hears, and the model is told.

The output is recorded at the speed of sound, and the recording is transcribed. A bare service has
the same call beside it.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from pipecat.services.tts_service import TTSService

from pipecat_hedge import HedgedTTSService, ProviderStats, Voice
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.simulator import LETTER_SECS, Simulator
from tests.live.test_voices import Make, cartesia, elevenlabs
from tests.support.call import RATE, PhoneCall, ask
from tests.support.recording import Recorder
from tests.support.speech import bare

pytestmark = [pytest.mark.live, pytest.mark.realtime]

ANSWERS = [
    ["Yes we are open. ", "We close at nine. ", "Is that fine?"],
    ["Two of you it is. ", "We have a table by the door. ", "Shall I book it?"],
    ["Well it is done. ", "We will see you then. ", "Good bye."],
]
FAULTS = {"fault=half_open": "between sentences", "fault=half_open&after=3": "within one"}
TURN_SECS = 6.0
OTHER_RATE = 24000
"""Of the second connection; the first one has that of the output."""
AFTER_SECS = 4.0
GAP_SECS = 0.3
"""Between two sentences of the model. The first is whole when the second begins."""
DEAD_AIR_SECS = 1.5


@dataclass
class Heard:
    """What became of a call.

    Parameters:
        words: Those of the recording.
        told: Those in the model's context.
        silent_secs: The longest silence in each turn, from its first sentence to its last sound.
        silent_end_secs: The silence at the end of the call.
    """

    words: list[str]
    told: list[str]
    silent_secs: list[float]
    silent_end_secs: float


async def hold(service: Make, fault: str, *, is_hedged: bool) -> Heard:
    """Hold a call of three turns; the second one's second sentence meets a half-open socket."""
    script = [*[""] * 4, f"?{fault}", *[""] * 60]
    async with (
        AsyncExitStack() as last,
        Simulator(voice_script=script) as first,
        Simulator() as second,
    ):
        tts: TTSService = service(first, sample_rate=RATE)
        if is_hedged:
            other = service(second, sample_rate=OTHER_RATE)
            voices = [Voice("first", tts), Voice("second", other, same_voice=True)]
            tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
        recorder, asked_at = Recorder(), list[float]()
        call = PhoneCall(ScriptedLLMService(*map(streamed, ANSWERS)), speech=(tts, recorder))
        await last.enter_async_context(call)  # a half-open socket answers no close
        for _ in ANSWERS:
            call.context.add_message({"role": "user", "content": "And?"})
            asked_at.append(asyncio.get_running_loop().time())
            await call.play(ask, TURN_SECS)
        ends = [*asked_at[1:], asyncio.get_running_loop().time()]
        return Heard(
            recorder.words,
            bare(" ".join(call.remembered)).split(),
            [
                max(recorder.silences(a + 2 * GAP_SECS, b))
                for a, b in zip(asked_at, ends, strict=True)
            ],
            ends[-1] - recorder.sounds()[-1][1],
        )


def streamed(sentences: list[str]) -> list[Step]:
    """As a model writes them: some time passes between two sentences."""
    return [step for each in sentences for step in (Wait(GAP_SECS), Say(each))]


async def test_the_recording_of_a_call_with_a_half_open_socket_is_what_the_model_is_told() -> None:
    """From between two sentences on, or from the middle of one on."""
    cases = list(itertools.product((cartesia, elevenlabs), FAULTS, (False, True)))
    calls = await asyncio.gather(*(hold(s, fault, is_hedged=h) for s, fault, h in cases))
    whole = bare(" ".join(text for answer in ANSWERS for text in answer)).split()
    for (service, fault, is_hedged), heard in zip(cases, calls, strict=True):
        print(
            f"{service.__name__}, {FAULTS[fault]}, {'hedged' if is_hedged else 'bare'}:"
            f" {len(heard.words)} of {len(whole)} words heard, {len(heard.told)} told to the model;"
            f" longest silence in each turn {', '.join(f'{x:.2f}' for x in heard.silent_secs)} s,"
            f" at the end {heard.silent_end_secs:.1f} s"
        )
    for (_, _, is_hedged), heard in zip(cases, calls, strict=True):
        if is_hedged:
            assert heard.words == heard.told == whole
            assert max(heard.silent_secs) < DEAD_AIR_SECS
        else:
            assert len(heard.words) < len(whole)


async def interrupted(sim: Simulator, number: int) -> tuple[float, str, list[str]]:
    """Interrupt an answer whose first voice is silent, at one of 20 instants.

    Returns:
        How long there was sound after it; the letters heard; the words told to the model.
    """
    service, first, second = (
        (elevenlabs, "eleven_v3", "eleven_v3@region=well"),
        (cartesia, "sonic-3", "sonic-3?region=well"),
    )[number % 2]
    voices = [
        Voice(model, service(sim, model, sample_rate=RATE), same_voice=True)
        for model in (first, second)
    ]
    recorder = Recorder()
    tts = HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)
    llm = ScriptedLLMService([Say("".join(ANSWERS[0]))])
    async with PhoneCall(llm, speech=(tts, recorder)) as call:
        call.context.add_message({"role": "user", "content": "And?"})
        await call.play(ask, 0.15 * (number + 1))
        at = asyncio.get_running_loop().time()
        await call.line.interrupt()
        await asyncio.sleep(AFTER_SECS)
        ends_at = recorder.sounds()[-1][1] if recorder.sounds() else at
        told = bare(" ".join(call.remembered)).split()
        return ends_at - at, "".join(recorder.words), told


async def test_a_barge_in_at_20_instants_of_a_rescue_leaves_no_sound() -> None:
    async with Simulator() as sim:
        for model in ("sonic-3", "eleven_v3"):
            sim.set_conditions(model, fault="silent")
        found = await asyncio.gather(*(interrupted(sim, number) for number in range(20)))
        await sim.wait_idle()
    print(f"letters heard: {[len(heard) for _, heard, _ in found]};")
    print(f"sound after the barge-in: at most {max(secs for secs, _, _ in found):.2f} s")
    words = bare("".join(ANSWERS[0])).split()
    for after_secs, heard, told in found:
        assert after_secs < 1.0  # what the player has in hand; a sentence takes longer
        assert "".join(words).startswith(heard)
        assert told == words[: len(told)]
        ahead_secs = (len("".join(told)) - len(heard)) * LETTER_SECS
        assert abs(ahead_secs) < 0.5  # half a word, and what a busy loop is late
    assert found[-1][1]
