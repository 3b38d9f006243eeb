"""A hedged recogniser behaves as the primary alone: what goes in and comes out, frame by frame."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextAssistantTurnFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    StartFrame,
    StopFrame,
    STTMetadataFrame,
    STTMuteFrame,
    STTUpdateSettingsFrame,
    TextFrame,
    TranscriptionFrame,
    UserAudioRawFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import STTUsageMetricsData
from pipecat.pipeline.service_switcher import ServiceSwitcher, ServiceSwitcherStrategyFailover
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.tests.utils import SleepFrame, run_test
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedSTTService, ProviderStats
from tests.support.hearing import HearingSTT, speech
from tests.support.recognition import STOP_SECS, Said, ScriptedRescue, ScriptedSTT, stopped

pytestmark = pytest.mark.virtual_time

RATE = 16_000


FAILS = 7


@dataclass(frozen=True)
class Case:
    """Frames, which way they go, and whether the call ends behind them."""

    frames: Callable[[], list[Frame]]
    direction: FrameDirection = FrameDirection.DOWNSTREAM
    ends: bool = True


class Recorded(ScriptedSTT):
    """Notes the audio, the answers and the settings that it gets."""

    def __init__(
        self,
        script: Callable[[int], Sequence[Said]] = lambda _: [(0.05, "hello there")],
        **options: Any,
    ):
        super().__init__(script, **options)
        self.got: list[object] = []

    def can_generate_metrics(self) -> bool:
        return True

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self.got.append(audio[0])
        if audio[0] == FAILS:
            yield ErrorFrame("the recogniser has failed", category=ErrorCategory.SERVER)

    async def _process_assistant_turn(self, text: str) -> None:
        self.got.append(text)

    async def _update_settings(self, delta: STTSettings) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        self.got.append((self._settings.model, self._settings.language))
        await self._request_reconnect()
        return changed

    async def _do_reconnect(self) -> None:
        self.got.append("reconnected")

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        self.got.append("stopped")

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        self.got.append("cancelled")


def audio(sample: int = 1, user: str | None = None) -> Frame:
    sound = bytes([sample, 0]) * (RATE // 50)
    if user is not None:
        return UserAudioRawFrame(sound, RATE, 1, user_id=user)
    return InputAudioRawFrame(sound, RATE, 1)


def utterance(sample: int = 1, user: str | None = None) -> list[Frame]:
    return [
        VADUserStartedSpeakingFrame(start_secs=0.2),
        audio(sample, user),
        SleepFrame(0.5),
        VADUserStoppedSpeakingFrame(stop_secs=STOP_SECS),
        SleepFrame(0.3),
    ]


def hedged(primary: Any, rescue: STTService, **options: Any) -> HedgedSTTService:
    return HedgedSTTService(primary, rescue, stats=ProviderStats(), **options)


def settings() -> STTUpdateSettingsFrame:
    return STTUpdateSettingsFrame(delta=STTSettings(model="scripted-2", language=Language.FR))


def chosen(service: STTService) -> tuple[object, ...]:
    settings = service.settings.given_fields()
    return settings["model"], settings["language"]


def described(frame: Frame) -> tuple[object, ...]:
    """What a frame says, without what is its own."""
    kind = type(frame).__name__
    if isinstance(frame, TranscriptionFrame):
        return kind, frame.text, frame.user_id, frame.language, frame.finalized
    if isinstance(frame, STTMetadataFrame):
        return kind, frame.ttfs_p99_latency
    if isinstance(frame, ErrorFrame):
        return kind, frame.error, frame.category, type(frame.processor).__name__
    if isinstance(frame, MetricsFrame):
        return kind, *((type(each).__name__, each.model) for each in frame.data)
    return kind, getattr(frame, "text", None)


async def trace(stt: Recorded, played: FrameProcessor, case: Case) -> dict[str, list[object]]:
    """What comes out downstream and upstream, and what the recogniser gets."""
    down, up = await run_test(
        played,
        frames_to_send=case.frames(),
        frames_to_send_direction=case.direction,
        send_end_frame=case.ends,
        pipeline_params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
    )
    got = [*stt.got]
    if not case.ends:  # Pipecat leaves the processors of a stopped pipeline as they are
        await played.cleanup()
    frames: list[object] = [described(f) for f in down if not isinstance(f, MetricsFrame)]
    return {
        "down": frames,
        "metrics": [described(frame) for frame in down if isinstance(frame, MetricsFrame)],
        "up": [described(frame) for frame in up],
        "got": got,
    }


CASES = {
    "utterances": Case(lambda: [*utterance(), *utterance()]),
    "a participant's audio": Case(lambda: utterance(user="alice")),
    "muting": Case(
        lambda: [
            audio(1),
            STTMuteFrame(mute=True),
            *utterance(2),
            STTMuteFrame(mute=False),
            *utterance(3),
        ]
    ),
    "settings": Case(lambda: [settings(), SleepFrame(0.1), *utterance()]),
    "settings while the caller speaks": Case(
        lambda: [
            *utterance()[:-2],
            settings(),
            SleepFrame(0.1),
            VADUserStoppedSpeakingFrame(stop_secs=STOP_SECS),
            SleepFrame(0.1),
            UserStoppedSpeakingFrame(),
            SleepFrame(0.1),
        ]
    ),
    "an error": Case(lambda: [*utterance(FAILS), *utterance(1)]),
    "an interruption": Case(
        lambda: [*utterance()[:-1], InterruptionFrame(), SleepFrame(0.3), *utterance()]
    ),
    "the bot's audio and texts": Case(
        lambda: [OutputAudioRawFrame(b"\1\0", RATE, 1), TextFrame("hi"), audio(), TextFrame("you")]
    ),
    "what the aggregators send": Case(
        lambda: [
            VADUserStartedSpeakingFrame(),
            SleepFrame(0.5),
            VADUserStoppedSpeakingFrame(stop_secs=STOP_SECS),
            SleepFrame(0.3),
            UserStoppedSpeakingFrame(),
            LLMContextAssistantTurnFrame(text="We are open.", timestamp="now"),
            SleepFrame(0.1),
        ],
        direction=FrameDirection.UPSTREAM,
    ),
    "a cancelled call": Case(lambda: [*utterance(), CancelFrame()], ends=False),
    "a stopped pipeline": Case(lambda: [*utterance(), StopFrame()], ends=False),
}


@pytest.mark.parametrize("name", CASES)
async def test_same_frames_as_the_primary_alone(name: str) -> None:
    """Metrics aside, which may come a moment earlier or later, in the same order."""
    alone, primary, rescue = Recorded(), Recorded(), ScriptedRescue(lambda _: "rescued")
    bare = await trace(alone, alone, CASES[name])
    assert await trace(primary, hedged(primary, rescue), CASES[name]) == bare
    assert rescue.heard == []


KINDS = pytest.mark.parametrize("is_hedged", [False, True], ids=["bare", "hedged"])


async def texts(played: FrameProcessor, *frames: Frame, rate: int = RATE) -> list[str]:
    down, _ = await run_test(
        played,
        frames_to_send=frames,
        pipeline_params=PipelineParams(audio_in_sample_rate=rate),
    )
    return [frame.text for frame in down if isinstance(frame, TranscriptionFrame)]


@KINDS
async def test_end_of_a_call_waits_for_the_last_transcript(is_hedged: bool) -> None:
    primary = ScriptedRescue(lambda _: "goodbye", secs=1.0)
    stt = hedged(primary, ScriptedRescue(lambda _: "rescued")) if is_hedged else primary
    assert await texts(stt, *utterance()[:-1]) == ["goodbye"]


@KINDS
async def test_end_of_a_call_waits_two_seconds_for_a_slow_recogniser(is_hedged: bool) -> None:
    primary = ScriptedRescue(lambda _: "goodbye", secs=2.5)
    stt = hedged(primary, ScriptedRescue(lambda _: "rescued")) if is_hedged else primary
    assert await texts(stt, *utterance()[:-1]) == ["goodbye"] * (not is_hedged)


@KINDS
async def test_service_that_has_ended_serves_the_next_call(is_hedged: bool) -> None:
    primary = Recorded()
    stt = hedged(primary, ScriptedRescue(lambda _: "rescued")) if is_hedged else primary
    for _ in range(2):
        assert await texts(stt, *utterance()) == ["hello there"]


@KINDS
async def test_words_that_the_rescue_has_missed_are_said(is_hedged: bool) -> None:
    """It adds nothing to what the first one has said, which says the rest late."""
    primary = Recorded(lambda _: [(0.0, "two pizzas"), (0.05, "…and a"), (4.0, "and a coke")])
    rescue = ScriptedRescue(lambda _: "two pizzas")
    stt = hedged(primary, rescue) if is_hedged else primary
    assert await texts(stt, *utterance(), SleepFrame(6.0)) == ["two pizzas", "and a coke"]
    assert len(rescue.heard) == is_hedged


@KINDS
async def test_recogniser_that_marks_its_final_transcripts(is_hedged: bool) -> None:
    class Confirmed(Recorded):
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            if isinstance(frame, VADUserStoppedSpeakingFrame):
                self.request_finalize()
            await super().process_frame(frame, direction)
            self.confirm_finalize()

    primary = Confirmed(lambda _: [(0.05, "one"), (0.1, "two")])
    stt = hedged(primary, ScriptedRescue(lambda _: "")) if is_hedged else primary
    down, _ = await run_test(stt, frames_to_send=utterance())
    finals = [frame for frame in down if isinstance(frame, TranscriptionFrame)]
    assert [(frame.text, frame.finalized) for frame in finals] == [("one", True), ("two", False)]


@KINDS
async def test_idle_connection_is_kept_alive(is_hedged: bool) -> None:
    """Each second, in ten."""

    class Kept(Recorded):
        async def start(self, frame: StartFrame) -> None:
            await super().start(frame)
            self._create_keepalive_task()

        async def _send_keepalive(self, silence: bytes) -> None:
            self.got.append("kept alive")

    primary = Kept(keepalive_timeout=0.0, keepalive_interval=1.0)
    stt = hedged(primary, ScriptedRescue(lambda _: "")) if is_hedged else primary
    await texts(stt, SleepFrame(10.5))
    assert primary.got == [*["kept alive"] * 10, "stopped"]


@KINDS
async def test_handlers_of_the_recogniser_are_called(is_hedged: bool) -> None:
    """They are added to the primary itself."""

    class Connected(Recorded):
        async def start(self, frame: StartFrame) -> None:
            await super().start(frame)
            await self._call_event_handler("on_connected")

    primary, called = Connected(), list[object]()

    async def connected(service: object) -> None:
        called.append(service)

    primary.add_event_handler("on_connected", connected)
    await texts(hedged(primary, ScriptedRescue(lambda _: "")) if is_hedged else primary)
    assert called == [primary]


class Translating(Recorded):
    """Has names of its own for languages, as services do."""

    def language_to_service_language(self, language: Language) -> str:
        return f"{language}-primary"


class TranslatingRescue(ScriptedRescue):
    """Has others."""

    def language_to_service_language(self, language: Language) -> str:
        return f"{language}-rescue"


@pytest.mark.parametrize("service", ["nobody", "itself", "primary", "rescue", "another"])
async def test_settings_reach_the_recognisers_they_are_for(service: str) -> None:
    """Without a service, the primary; the language is for both. A model belongs to one vendor."""
    primary, rescue, another = Translating(), TranslatingRescue(lambda _: ""), Recorded()
    stt = hedged(primary, rescue)
    services = {"itself": stt, "primary": primary, "rescue": rescue, "another": another}
    update = settings()
    update.service = services.get(service)
    down, _ = await run_test(stt, frames_to_send=[update, SleepFrame(0.1)])
    first, second = ("scripted-1", None), ("scripted-rescue", None)
    if service in ("nobody", "itself", "primary"):
        first = ("scripted-2", "fr-primary")
    if service in ("nobody", "itself"):
        second = ("scripted-rescue", "fr-rescue")
    if service == "rescue":
        second = ("scripted-2", "fr-rescue")
    assert chosen(primary) == first
    assert chosen(rescue) == second
    passed = [frame for frame in down if isinstance(frame, STTUpdateSettingsFrame)]
    assert passed == ([update] if service == "another" else [])


@pytest.mark.parametrize("is_addressed", [False, True])
async def test_fresh_recogniser_has_the_settings_of_the_one_before(is_addressed: bool) -> None:
    """And is muted if it was."""
    made: list[Translating] = []

    def create() -> Translating:
        made.append(Translating(lambda _: [] if len(made) == 1 else [(0.05, "fresh")]))
        return made[-1]

    stt = hedged(create, ScriptedRescue(lambda _: "rescued"))
    update = settings()
    update.service = made[0] if is_addressed else None
    frames = [update, *utterance(), STTMuteFrame(mute=True), SleepFrame(4.0), *utterance(2)]
    assert await texts(stt, *frames) == ["rescued", "fresh"]
    assert chosen(made[1]) == ("scripted-2", "fr-primary")
    assert 2 not in made[1].got


async def test_rescue_is_of_the_participant_who_spoke() -> None:
    stt = hedged(Recorded(lambda _: []), ScriptedRescue(lambda _: "rescued"))
    down, _ = await run_test(stt, frames_to_send=[*utterance(user="alice"), SleepFrame(4.0)])
    assert [f.user_id for f in down if isinstance(f, TranscriptionFrame)] == ["alice"]


@pytest.mark.parametrize("rate", [8_000, 16_000])
async def test_rescue_hears_audio_at_the_rate_of_the_call(rate: int) -> None:
    rescue = ScriptedRescue(lambda _: "rescued")
    sound = InputAudioRawFrame(bytes(2 * rate), rate, 1)  # a second
    speech = [VADUserStartedSpeakingFrame(), sound, VADUserStoppedSpeakingFrame(stop_secs=0.2)]
    stt = hedged(Recorded(lambda _: []), rescue)
    assert await texts(stt, *speech, SleepFrame(4.0), rate=rate) == ["rescued"]
    assert rescue.sample_rate == rate
    assert rescue.heard == [1.0]


async def test_both_recognisers_are_told_what_the_bot_has_said() -> None:
    """Some recognise more with it: AssemblyAI's."""

    class Told(ScriptedRescue):
        said = ""

        async def _process_assistant_turn(self, text: str) -> None:
            self.said += text

    primary, rescue = Recorded(), Told(lambda _: "")
    turn = LLMContextAssistantTurnFrame(text="How can I help?", timestamp="")
    await run_test(
        hedged(primary, rescue),
        frames_to_send=[turn, SleepFrame(0.2)],
        frames_to_send_direction=FrameDirection.UPSTREAM,
    )
    assert "How can I help?" in primary.got
    assert rescue.said == "How can I help?"


async def test_usage_of_the_rescue_is_reported_under_its_name() -> None:
    """A rescued utterance has no time to first byte: that is the primary's."""

    class Metered(ScriptedRescue):
        def can_generate_metrics(self) -> bool:
            return True

    primary, rescue = Recorded(lambda _: []), Metered(lambda _: "rescued")
    down, _ = await run_test(
        hedged(primary, rescue),
        frames_to_send=[*utterance(), SleepFrame(4.0)],
        pipeline_params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
    )
    first, *later = [frame.data for frame in down if isinstance(frame, MetricsFrame)]
    names = [primary.name, rescue.name]
    assert [each.processor for each in first] == [names[0], names[0], names[1], names[1]]
    assert [(type(each), each.processor) for data in later for each in data] == [
        (STTUsageMetricsData, rescue.name),
        (STTUsageMetricsData, primary.name),
    ]


async def test_error_of_the_rescue_goes_no_further(logged: list[str]) -> None:
    """The primary's transcript may still come."""

    class Failing(ScriptedRescue):
        async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
            yield ErrorFrame("secret words", category=ErrorCategory.SERVER)

    primary = Recorded(lambda _: [(4.0, "late")])
    stt = hedged(primary, Failing(lambda _: ""))
    down, up = await run_test(stt, frames_to_send=[*utterance(), SleepFrame(6.0)])
    assert not any(isinstance(frame, ErrorFrame) for frame in up)
    assert [frame.text for frame in down if isinstance(frame, TranscriptionFrame)] == ["late"]
    assert any("rescue" in line for line in logged)
    assert "secret" not in "".join(logged)


@pytest.mark.parametrize(
    ("failing", "said"), [("primary", "rescued"), ("primary and rescue", "spare")]
)
async def test_switcher_fails_over_when_neither_can_work(failing: str, said: str) -> None:
    """A rejected key; the rescue hears the utterance of which the primary says nothing."""

    class Rejected(ScriptedRescue):
        async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
            yield ErrorFrame("no such key", category=ErrorCategory.AUTHENTICATION)

    rescue = (Rejected if "rescue" in failing else ScriptedRescue)(lambda _: "rescued")
    spare = Recorded(lambda _: [(0.05, "spare")])
    services = [hedged(Rejected(lambda _: ""), rescue), spare]
    switcher = ServiceSwitcher(services, strategy_type=ServiceSwitcherStrategyFailover)
    frames = [*utterance(), SleepFrame(4.0), *utterance(), SleepFrame(4.0)]
    assert (await texts(switcher, *frames))[-1] == said
    assert services[0].is_usable is (failing == "primary")


@KINDS
async def test_service_that_has_failed_is_brought_back(is_hedged: bool) -> None:
    class Rejected(ScriptedRescue):
        async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
            yield ErrorFrame("no such key", category=ErrorCategory.AUTHENTICATION)

    primary = Rejected(lambda _: "")
    stt = hedged(primary, Rejected(lambda _: "")) if is_hedged else primary
    changes: list[bool] = []

    async def changed(_: object, is_usable: bool) -> None:
        changes.append(is_usable)

    stt.add_event_handler("on_usable_changed", changed)
    await texts(stt, *utterance(), SleepFrame(4.0))
    assert not stt.is_usable
    await stt.set_usable(True)
    await stt.cleanup()  # it waits for the handlers
    assert stt.is_usable
    assert changes == [False, True]


async def test_audio_passes_by_a_recogniser_that_passes_none_on() -> None:
    """``audio_passthrough`` is not heeded: audio does not pass through the primary."""

    def sent(stt: FrameProcessor) -> Any:
        return run_test(stt, frames_to_send=[audio()])

    alone = Recorded(audio_passthrough=False)
    primary = Recorded(audio_passthrough=False)
    bare, _ = await sent(alone)
    both, _ = await sent(hedged(primary, ScriptedRescue(lambda _: "")))
    assert not any(isinstance(frame, InputAudioRawFrame) for frame in bare)
    assert any(isinstance(frame, InputAudioRawFrame) for frame in both)


async def test_audio_passes_when_no_fresh_recogniser_can_be_created() -> None:
    made: list[HearingSTT] = []

    def create() -> HearingSTT:
        if made:
            raise ValueError("no key")
        made.append(HearingSTT(says=2))
        return made[-1]

    sounds = [event for event in speech(range(30)) if event is not stopped]
    frames: list[Any] = [SleepFrame(each) if isinstance(each, float) else each for each in sounds]
    down, _ = await run_test(hedged(create, ScriptedRescue(lambda _: "")), frames_to_send=frames)
    sent = [frame for frame in frames if isinstance(frame, InputAudioRawFrame)]
    assert [frame for frame in down if isinstance(frame, InputAudioRawFrame)] == sent


async def test_replaced_recogniser_leaves_no_task() -> None:
    """Also one that Pipecat's pipelines cancel, and do not only clean up."""
    made: list[ScriptedRescue] = []

    def create() -> ScriptedRescue:
        made.append(ScriptedRescue(lambda _: "" if len(made) == 1 else "fresh"))
        return made[-1]

    stt = hedged(create, ScriptedRescue(lambda _: "rescued"))
    down, _ = await run_test(stt, frames_to_send=[*utterance(), SleepFrame(4.0), *utterance()])
    assert [f.text for f in down if isinstance(f, TranscriptionFrame)] == ["rescued", "fresh"]
    assert len(made) == 2
