"""What the caller hears, with a text-to-speech service downstream: when, and in which units."""

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
    """Speaks nothing, at once, and notes what it was asked to speak, and when."""

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
    """The text as models stream it, a word at a time."""
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
    """What was spoken of one turn, timed from its beginning."""
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
async def test_the_same_is_spoken_at_the_same_time(mode: TextAggregationMode, answer: str) -> None:
    """Unit for unit as from a bare service: keeping half sentences back costs nothing."""
    script = tokens(answer)
    expected, _ = await spoken(ScriptedLLMService(script), Speaker(mode))
    slow = ScriptedLLMService([Wait(9)])
    hedged = HedgedLLMService([ScriptedLLMService(script), slow], policy=HedgePolicy.race(2))
    heard, line = await spoken(hedged, Speaker(mode))
    assert heard == expected
    assert "".join(text for _, text in heard).replace(" ", "") == answer.replace(" ", "")
    wanted = "first_sentence" if mode is TextAggregationMode.SENTENCE else "first_token"
    assert line.reports[0].commit_on == wanted


async def test_a_marker_in_front_does_not_hide_the_first_sentence() -> None:
    """With turn completion on, sentences are spoken when the bare service speaks them."""
    script = [Wait(0.1), Say("●"), *tokens(" We are open till nine. Do come by!")]
    settings = LLMUpdateSettingsFrame(delta=LLMSettings(filter_incomplete_user_turns=True))
    expected, _ = await spoken(ScriptedLLMService(script), Speaker(), settings=settings)
    hedged = HedgedLLMService([ScriptedLLMService(script)])
    heard, line = await spoken(hedged, Speaker(), settings=settings)
    assert heard == expected
    assert len(heard) == 2
    assert line.reports[0].commit_reason == "first_sentence"


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_service_in_a_pipeline_of_its_own(depth: int) -> None:
    """The text-to-speech is found outside it."""
    llm = HedgedLLMService([ScriptedLLMService(tokens(ANSWER))])
    nested: FrameProcessor = llm
    for _ in range(depth):
        nested = Pipeline([nested])
    async with Line(llm, nested=nested, processors=[Speaker()]) as line:
        await line.ask()
        report = await line.report()
    assert report.commit_on == "first_sentence"


async def test_a_processor_that_makes_sentences_counts_too() -> None:
    """Pipecat's LLMTextProcessor puts sentences together in front of the text-to-speech."""
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
async def test_a_dribbling_stream(
    mode: TextAggregationMode, winner: str, first_heard: float
) -> None:
    """It loses where sentences are spoken, and wins where its first token is spoken at once."""
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
async def test_a_rescue_speaks_no_sentence_twice(broken: list[Step]) -> None:
    """What is heard is the answer, whole, though two providers said it."""
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
async def test_an_answer_that_nobody_continues_ends_after_its_last_whole_sentence(
    commit: Any, before: list[type[LLMTextProcessor]], told: str | None
) -> None:
    """The beginning of the next one, which the text-to-speech had to see, is not spoken.

    The fallback text is a sentence of its own, and part of the conversation.
    """
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


async def test_silent_text_ends_there_too() -> None:
    """Where the answer is shown and not spoken."""
    hedged = HedgedLLMService(
        [ScriptedLLMService(SEVERED), ScriptedLLMService([Error()])], policy=HedgePolicy.fallback()
    )
    async with Line(hedged, processors=[Speaker()]) as line:
        await line.send(LLMConfigureOutputFrame(skip_tts=True))
        await line.ask()
        assert [f.text.strip() for f in line.frames(AggregatedTextFrame)] == [
            "We are open till nine."
        ]


async def test_a_rescuer_with_other_words_begins_a_sentence_of_its_own() -> None:
    """The beginning that broke off is not put in front of it."""
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


async def test_an_answer_taken_back_whole_has_not_been_heard() -> None:
    """Then the fallback text is spoken, as if nobody had answered."""
    hedged = HedgedLLMService(
        [ScriptedLLMService([*tokens("The kitchen closes"), Error()])],
        policy=HedgePolicy.fallback(commit="first_token", fallback_text="One moment, please."),
    )
    heard, line = await spoken(hedged, Speaker())
    assert [text.strip() for _, text in heard] == ["One moment, please."]
    assert len(line.errors) == 1


async def test_an_aggregator_that_holds_more_keeps_it() -> None:
    """Only what was taken back is forgotten."""
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
