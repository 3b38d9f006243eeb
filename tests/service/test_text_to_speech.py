"""What the caller hears with a text-to-speech service downstream, and when."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    LLMConfigureOutputFrame,
    LLMUpdateSettingsFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings, TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator, TextType
from pipecat.utils.text.pattern_pair_aggregator import MatchAction, PatternPairAggregator
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import asked, racing, said, scripted
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
    for word in re.findall(r"\s*\S+", text):
        steps += [Wait(secs), Say(word)]
    return steps


async def spoken(
    llm: LLMService[Any],
    speaker: Speaker,
    *before: FrameProcessor,
    settings: Frame | None = None,
) -> tuple[list[tuple[float, str]], Line]:
    """The texts spoken in one turn, with their times."""
    async with Line(llm, processors=[*before, speaker]) as line:
        if settings is not None:
            await line.send(settings)
        begun = asyncio.get_running_loop().time()
        await line.ask()
        if isinstance(llm, HedgedLLMService):
            await line.report()
    return [(round(at - begun, 6), text) for at, text in speaker.spoken], line


async def sentences(llm: HedgedLLMService) -> tuple[list[str], Line]:
    """The sentences spoken in one turn."""
    heard, line = await spoken(llm, Speaker())
    return [text.strip() for _, text in heard], line


ANSWER = "We are open till nine. It costs $29.95 with Mr. Fish. Do come by!"
ANSWERS = [ANSWER, "Yes.", "Yes", "One. Two. Three.", "Dr. Who?"]
CUT = [*tokens("We are open till nine. The kitchen closes"), Error()]
FALLBACK = HedgePolicy.fallback(stall_secs=0.5)


@pytest.mark.parametrize(
    ("mode", "answer"),
    [(mode, answer) for mode in TextAggregationMode for answer in ANSWERS] + [(None, ANSWER)],
)
async def test_speech_equals_that_of_a_bare_service(
    mode: TextAggregationMode | None, answer: str
) -> None:
    """Without a mode, a text processor collects the sentences."""
    before = [] if mode else [LLMTextProcessor()]
    speakers = [Speaker(mode or TextAggregationMode.SENTENCE) for _ in range(2)]
    expected, _ = await spoken(scripted(*tokens(answer)), speakers[0], *before)
    before = [] if mode else [LLMTextProcessor()]
    heard, line = await spoken(
        racing(scripted(*tokens(answer)), scripted(Wait(9))), speakers[1], *before
    )
    assert heard == expected
    assert "".join(text for _, text in heard).replace(" ", "") == answer.replace(" ", "")
    by_token = mode is TextAggregationMode.TOKEN
    assert line.reports[0].commit_on == ("first_token" if by_token else "first_sentence")


class Clauses(SimpleTextAggregator):
    """Yields what ends with a comma, too."""

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        for char in text:
            async for sentence in super().aggregate(char):
                yield sentence
            if char == "," and (clause := await self.flush()) is not None:
                yield clause


class Named(SimpleTextAggregator):
    """One of a user's own that collects sentences as Pipecat's does."""


def by_tokens() -> BaseTextAggregator:
    return SimpleTextAggregator(aggregation_type=TextType.TOKEN)


def by_patterns() -> BaseTextAggregator:
    return PatternPairAggregator().add_pattern("code", "[", "]", MatchAction.AGGREGATE)


def without_patterns() -> BaseTextAggregator:
    return PatternPairAggregator().add_pattern("code", "[", "]", MatchAction.REMOVE)


@pytest.mark.parametrize(
    ("aggregator", "commit_on"),
    [
        (by_tokens, "first_token"),
        (by_patterns, "first_token"),
        (Clauses, "first_token"),
        (without_patterns, "first_sentence"),
        (Named, "first_sentence"),
    ],
)
async def test_what_speaks_before_a_sentence_is_whole_gets_its_tokens(
    aggregator: Callable[[], BaseTextAggregator], commit_on: str
) -> None:
    answer = "Well, the code is [4 1. 1] and so on. Do come by!"
    bare, hedged = (LLMTextProcessor(text_aggregator=aggregator()) for _ in range(2))
    expected, _ = await spoken(scripted(*tokens(answer)), Speaker(), bare)
    heard, line = await spoken(racing(scripted(*tokens(answer))), Speaker(), hedged)
    assert heard == expected
    assert line.reports[0].commit_on == commit_on


async def test_leading_marker_does_not_delay_the_first_sentence() -> None:
    script = [Wait(0.1), Say("●"), *tokens(" We are open till nine. Do come by!")]
    settings = LLMUpdateSettingsFrame(delta=LLMSettings(filter_incomplete_user_turns=True))
    expected, _ = await spoken(scripted(*script), Speaker(), settings=settings)
    heard, line = await spoken(racing(scripted(*script)), Speaker(), settings=settings)
    assert heard == expected
    assert len(heard) == 2
    assert line.reports[0].commit_reason == "first_sentence"


@pytest.mark.parametrize("depth", [1, 2])
async def test_tts_outside_a_nested_pipeline_is_found(depth: int) -> None:
    llm = racing(scripted(*tokens(ANSWER)))
    nested: FrameProcessor = llm
    for _ in range(depth):
        nested = Pipeline([nested])
    line = await asked(llm, nested=nested, processors=[Speaker()])
    assert line.reports[0].commit_on == "first_sentence"


@pytest.mark.parametrize(
    ("mode", "winner", "first_heard"),
    [(TextAggregationMode.SENTENCE, "b", 1.2), (TextAggregationMode.TOKEN, "a", 0.1)],
)
async def test_slow_stream_loses_only_with_sentence_tts(
    mode: TextAggregationMode, winner: str, first_heard: float
) -> None:
    dribble = scripted(Wait(0.1), Say("We"), *tokens(" are open till nine.", 2.0))
    second = scripted(Wait(0.1), Say("Till nine."), Say(" Do come by."))
    policy = HedgePolicy.after(1.0, stall_secs=None)
    heard, line = await spoken(racing(dribble, second, policy=policy), Speaker(mode))
    assert line.reports[0].winner == winner
    assert heard[0][0] == pytest.approx(first_heard)


@pytest.mark.parametrize("broken", [[Error()], [Wait(9)]], ids=["cut", "stall"])
@pytest.mark.parametrize("sentence", ["The kitchen closes at eight.", "Last orders at eight."])
async def test_continuation_speaks_no_sentence_twice(broken: list[Step], sentence: str) -> None:
    """One that says something else starts a new sentence."""
    second = scripted(*tokens(f"{sentence} Do come by."))
    llm = racing(scripted(*CUT[:-1], *broken), second, policy=FALLBACK)
    heard, line = await sentences(llm)
    assert heard == ["We are open till nine.", sentence, "Do come by."]
    assert line.errors == []


@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("before", [[], [LLMTextProcessor]], ids=["alone", "with a processor"])
@pytest.mark.parametrize("fallback_text", [None, "One moment."])
async def test_uncontinued_answer_ends_with_its_last_sentence(
    commit: Any, before: list[type[LLMTextProcessor]], fallback_text: str | None
) -> None:
    first = ScriptedLLMService(CUT, tokens("Do come by."))
    policy = HedgePolicy.fallback(commit=commit, fallback_text=fallback_text)
    speaker, context = Speaker(), said()
    line = await asked(
        racing(first, scripted(Error()), policy=policy),
        turns=2,
        context=context,
        processors=[*(kind() for kind in before), speaker],
        after=[LLMContextAggregatorPair(context).assistant()],
    )
    ending = [fallback_text] if fallback_text else []
    heard = [text.strip() for _, text in speaker.spoken]
    assert heard == ["We are open till nine.", *ending, "Do come by."]
    assert len(line.errors) == 1
    messages: list[Any] = context.get_messages()
    answers = [m["content"] for m in messages if m["role"] == "assistant" and "content" in m]
    assert answers == [" ".join(["We are open till nine.", *ending]), "Do come by."]


async def test_uncontinued_silent_text_ends_with_its_last_sentence() -> None:
    llm = racing(scripted(*CUT), scripted(Error()), policy=FALLBACK)
    async with Line(llm, processors=[Speaker()]) as line:
        await line.send(LLMConfigureOutputFrame(skip_tts=True))
        await line.ask()
    texts = [f.text.strip() for f in line.frames(AggregatedTextFrame)]
    assert texts == ["We are open till nine."]


async def test_fully_retracted_answer_speaks_the_fallback() -> None:
    cut = scripted(*tokens("The kitchen closes"), Error())
    policy = HedgePolicy.fallback(commit="first_token", fallback_text="One moment, please.")
    heard, line = await sentences(racing(cut, policy=policy))
    assert heard == ["One moment, please."]
    assert len(line.errors) == 1
