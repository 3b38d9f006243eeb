"""What the caller hears with a text-to-speech service downstream, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    LLMConfigureOutputFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings, TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.service.retract import RetractText, RetractTextFrame
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time


class Speaker(TTSService):
    """Records the texts that it gets, and when."""

    def __init__(self, mode: TextAggregationMode = TextAggregationMode.SENTENCE):
        super().__init__(
            text_aggregation_mode=mode,
            sample_rate=16000,
            settings=TTSSettings(model=None, voice=None, language=None),
        )
        self.spoken: list[tuple[float, str]] = []

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        self.spoken.append((round(asyncio.get_running_loop().time(), 6), text))
        yield TTSAudioRawFrame(bytes(320), 16000, 1, context_id=context_id)


def tokens(text: str, secs: float = 0.05) -> list[Step]:
    """The text as models stream it."""
    steps: list[Step] = []
    for number, word in enumerate(text.split(" ")):
        steps += [Wait(secs), Say(f" {word}" if number else word)]
    return steps


async def spoken(
    llm: LLMService[Any],
    speaker: Speaker,
    before: Sequence[FrameProcessor] = (),
    settings: Frame | None = None,
) -> tuple[list[tuple[float, str]], Line]:
    """The texts spoken in one turn, with their times."""
    async with Line(llm, processors=[*before, speaker]) as line:
        if settings is not None:
            await line.send(settings)
        begun = asyncio.get_running_loop().time()
        await line.ask()
        if line.reports or isinstance(llm, HedgedLLMService):
            await line.report()
    return [(round(at - begun, 6), text) for at, text in speaker.spoken], line


ANSWER = "We are open till nine. It costs $29.95 with Mr. Fish. Do come by!"


@pytest.mark.parametrize("mode", TextAggregationMode)
@pytest.mark.parametrize("answer", [ANSWER, "Yes.", "Yes", "One. Two. Three.", "Dr. Who?"])
async def test_speech_equals_that_of_a_bare_service(mode: TextAggregationMode, answer: str) -> None:
    script = tokens(answer)
    expected, _ = await spoken(ScriptedLLMService(script), Speaker(mode))
    slow = ScriptedLLMService([Wait(9)])
    hedged = HedgedLLMService([ScriptedLLMService(script), slow], policy=HedgePolicy.race(2))
    heard, line = await spoken(hedged, Speaker(mode))
    assert heard == expected
    assert "".join(text for _, text in heard).replace(" ", "") == answer.replace(" ", "")
    wanted = "first_sentence" if mode is TextAggregationMode.SENTENCE else "first_token"
    assert line.reports[0].commit_on == wanted


async def test_leading_marker_does_not_delay_the_first_sentence() -> None:
    script = [Wait(0.1), Say("●"), *tokens(" We are open till nine. Do come by!")]
    settings = LLMUpdateSettingsFrame(delta=LLMSettings(filter_incomplete_user_turns=True))
    expected, _ = await spoken(ScriptedLLMService(script), Speaker(), settings=settings)
    hedged = HedgedLLMService([ScriptedLLMService(script)])
    heard, line = await spoken(hedged, Speaker(), settings=settings)
    assert heard == expected
    assert len(heard) == 2
    assert line.reports[0].commit_reason == "first_sentence"


@pytest.mark.parametrize("depth", [1, 2])
async def test_tts_outside_a_nested_pipeline_is_found(depth: int) -> None:
    llm = HedgedLLMService([ScriptedLLMService(tokens(ANSWER))])
    nested: FrameProcessor = llm
    for _ in range(depth):
        nested = Pipeline([nested])
    async with Line(llm, nested=nested, processors=[Speaker()]) as line:
        await line.ask()
        report = await line.report()
    assert report.commit_on == "first_sentence"


async def test_llm_text_processor_counts_as_sentence_collector() -> None:
    script = tokens(ANSWER)
    alone, other = ScriptedLLMService(script), ScriptedLLMService([Wait(9)])
    expected, _ = await spoken(ScriptedLLMService(script), Speaker(), [LLMTextProcessor()])
    hedged = HedgedLLMService([alone, other], policy=HedgePolicy.race(2))
    heard, line = await spoken(hedged, Speaker(), [LLMTextProcessor()])
    assert heard == expected
    assert line.reports[0].commit_on == "first_sentence"


@pytest.mark.parametrize(
    ("mode", "winner", "first_heard"),
    [(TextAggregationMode.SENTENCE, "b", 1.1), (TextAggregationMode.TOKEN, "a", 0.1)],
)
async def test_slow_stream_loses_only_with_sentence_tts(
    mode: TextAggregationMode, winner: str, first_heard: float
) -> None:
    dribble = [Wait(0.1), Say("We"), *tokens(" are open till nine.", 2.0)]
    second = [Wait(0.1), Say("Till nine."), Say(" Do come by.")]
    hedged = HedgedLLMService(
        [_named("a", dribble), _named("b", second)],
        policy=HedgePolicy.after(1.0, stall_secs=None),
    )
    heard, line = await spoken(hedged, Speaker(mode))
    assert line.reports[0].winner == f"scripted:{winner}"
    assert heard[0][0] == pytest.approx(first_heard + (0.1 if winner == "b" else 0))


@pytest.mark.parametrize("broken", [[Error()], [Wait(9)]], ids=["cut", "stall"])
async def test_continuation_speaks_no_sentence_twice(broken: list[Step]) -> None:
    first = [*tokens("We are open till nine. The kitchen"), *broken]
    second = tokens("The kitchen closes at eight. Do come by.")
    hedged = HedgedLLMService(
        [ScriptedLLMService(first), ScriptedLLMService(second)],
        policy=HedgePolicy.fallback(stall_secs=0.5),
    )
    heard, line = await spoken(hedged, Speaker())
    assert [text.strip() for _, text in heard] == [
        "We are open till nine.",
        "The kitchen closes at eight.",
        "Do come by.",
    ]
    assert line.errors == []


SEVERED = [*tokens("We are open till nine. The kitchen closes"), Error()]


@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("before", [[], [LLMTextProcessor]], ids=["alone", "with a processor"])
@pytest.mark.parametrize("told", [None, "One moment."])
async def test_uncontinued_answer_ends_with_its_last_sentence(
    commit: Any, before: list[type[LLMTextProcessor]], told: str | None
) -> None:
    hedged = HedgedLLMService(
        [ScriptedLLMService(SEVERED, tokens("Do come by.")), ScriptedLLMService([Error()])],
        policy=HedgePolicy.fallback(commit=commit, fallback_text=told),
    )
    speaker, context = Speaker(), LLMContext([{"role": "user", "content": "Hello?"}])
    aggregator = LLMContextAggregatorPair(context).assistant()
    async with Line(
        hedged, processors=[*(kind() for kind in before), speaker], after=[aggregator]
    ) as line:
        await line.ask(context=context)
        assert [text.strip() for _, text in speaker.spoken] == [
            "We are open till nine.",
            *([told] if told else []),
        ]
        assert len(line.errors) == 1
        speaker.spoken.clear()
        await line.ask(context=context)
        assert [text.strip() for _, text in speaker.spoken] == ["Do come by."]
    said = [
        message["content"]
        for message in context.get_messages()
        if isinstance(message, dict) and message["role"] == "assistant" and "content" in message
    ]
    assert said == [f"We are open till nine. {told or ''}".strip(), "Do come by."]


async def test_uncontinued_silent_text_ends_with_its_last_sentence() -> None:
    hedged = HedgedLLMService(
        [ScriptedLLMService(SEVERED), ScriptedLLMService([Error()])], policy=HedgePolicy.fallback()
    )
    async with Line(hedged, processors=[Speaker()]) as line:
        await line.send(LLMConfigureOutputFrame(skip_tts=True))
        await line.ask()
        assert [f.text.strip() for f in line.frames(AggregatedTextFrame)] == [
            "We are open till nine."
        ]


async def test_different_continuation_starts_a_new_sentence() -> None:
    hedged = HedgedLLMService(
        [
            ScriptedLLMService(SEVERED),
            ScriptedLLMService(tokens("Last orders are at eight. Do come by.")),
        ],
        policy=HedgePolicy.fallback(),
    )
    heard, line = await spoken(hedged, Speaker())
    assert [text.strip() for _, text in heard] == [
        "We are open till nine.",
        "Last orders are at eight.",
        "Do come by.",
    ]
    assert line.errors == []


async def test_fully_retracted_answer_speaks_the_fallback() -> None:
    hedged = HedgedLLMService(
        [ScriptedLLMService([*tokens("The kitchen closes"), Error()])],
        policy=HedgePolicy.fallback(commit="first_token", fallback_text="One moment, please."),
    )
    heard, line = await spoken(hedged, Speaker())
    assert [text.strip() for _, text in heard] == ["One moment, please."]
    assert len(line.errors) == 1


async def test_retraction_keeps_other_aggregated_text() -> None:
    collector = LLMTextProcessor()
    RetractText().attach(collector)
    async with Line(
        HedgedLLMService([ScriptedLLMService([Say("Yes.")])]), processors=[collector]
    ) as line:
        for frame in (LLMTextFrame("Call <"), RetractTextFrame("Another")):
            await line.send(frame)
        await line.send(LLMFullResponseEndFrame())
        await line.until(lambda: bool(line.frames(LLMFullResponseEndFrame)))
        assert [f.text for f in line.frames(AggregatedTextFrame)] == ["Call <"]


def _named(model: str, script: Sequence[Step]) -> ScriptedLLMService:
    return ScriptedLLMService(script, model=model)
