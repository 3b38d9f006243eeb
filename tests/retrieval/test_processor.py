"""Documents that are looked up while the caller speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    EagerTranscriptionFrame,
    Frame,
    InterimTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import EagerUserTurnStrategies, UserTurnStrategies

from pipecat_hedge import HedgedLLMService, HedgePolicy, TurnReport
from pipecat_hedge.retrieval import Document, RetrievalProcessor, RetrievalReport, Retriever
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.voice import EagerStopStrategy
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

NEVER = float("inf")
Event = Frame | float


class Library:
    """Finds a document that repeats the question, after some seconds."""

    def __init__(self, *secs: float, documents: Sequence[Document] | None = None):
        self._secs, self._documents = list(secs), documents
        self.queries: list[str] = []
        self.live = 0

    async def retrieve(self, query: str) -> Sequence[Document]:
        self.queries.append(query)
        self.live += 1
        try:
            secs = self._secs.pop(0) if len(self._secs) > 1 else self._secs[0]
            await asyncio.sleep(secs if secs != NEVER else 1e6)
        finally:
            self.live -= 1
        if secs < 0:
            raise RuntimeError(query)
        return [Document(query, "book")] if self._documents is None else self._documents


class Reading(ScriptedLLMService):
    """Notes the prompts that it gets."""

    def __init__(self) -> None:
        super().__init__([Say("Till nine.")])
        self.prompts: list[list[Any]] = []

    async def _play(self, script: Any, context: LLMContext) -> None:
        self.prompts.append(list(context.messages))
        await super()._play(script, context)


def spoken(*interims: str, final: str, secs: float = 0.3) -> list[Event]:
    """A caller's turn: words that are recognised one after the other, and the transcript."""
    events: list[Event] = [VADUserStartedSpeakingFrame()]
    for text in interims:
        events += [secs, InterimTranscriptionFrame(text, "caller", "now")]
    transcript = TranscriptionFrame(final, "caller", "now", finalized=True)
    return [*events, secs, VADUserStoppedSpeakingFrame(), 0.2, transcript, 2.0]


QUESTION = spoken("when do", "when do you", "when do you open", final="When do you open?")


def ends() -> SpeechTimeoutUserTurnStopStrategy:
    return SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.0)


async def call(
    retriever: Retriever | list[Retriever],
    *events: Event,
    strategies: UserTurnStrategies | None = None,
    turns: list[TurnReport] | None = None,
    **options: Any,
) -> tuple[list[list[Any]], list[RetrievalReport]]:
    """The prompts of a call's turns and the retrievals."""
    reports: list[RetrievalReport] = []
    processor = RetrievalProcessor(retriever, **options)

    @processor.event_handler("on_retrieval")
    async def on_retrieval(_: object, report: RetrievalReport) -> None:
        reports.append(report)

    strategies = strategies or UserTurnStrategies(stop=[ends()])
    params = LLMUserAggregatorParams(user_turn_strategies=strategies)
    pair = LLMContextAggregatorPair(LLMContext(), user_params=params)
    member = Reading()
    llm = HedgedLLMService([member], policy=HedgePolicy.fallback())

    @llm.event_handler("on_turn_report")
    async def on_turn_report(_: object, report: TurnReport) -> None:
        if turns is not None:
            turns.append(report)

    async with Line(llm, before=[processor, pair.user()], after=[pair.assistant()]) as line:
        for event in events:
            await (line.send(event) if isinstance(event, Frame) else asyncio.sleep(event))
    return member.prompts, reports


def documents(prompt: list[Any]) -> str:
    """What stands before the caller's words."""
    return prompt[-1]["content"].rpartition("\n\n")[0]


@pytest.mark.parametrize(
    ("secs", "waited", "found"),
    [
        pytest.param(0.1, 0.0, 1, id="there before the turn ended"),
        pytest.param(0.45, 0.1, 1, id="a little late"),
        pytest.param(NEVER, 0.25, 0, id="hangs"),
        pytest.param(-1, 0.0, 0, id="fails"),
    ],
)
async def test_documents_are_handed_to_the_turn_or_it_goes_without(
    secs: float, waited: float, found: int
) -> None:
    library = Library(secs)
    (prompt,), (report,) = await call(library, *QUESTION)
    assert [m["role"] for m in prompt] == ["user"]
    assert bool(documents(prompt)) == found
    assert (report.documents, report.waited_secs) == (found, pytest.approx(waited))
    assert report.was_ready == (secs == 0.1)
    assert library.live == 0
    if found:
        assert report.saved_secs == pytest.approx(secs - waited)
        assert "[book] when do you open" in documents(prompt)


async def test_retrieval_is_refreshed_when_the_words_change() -> None:
    """One at a time, and the last one in progress is ended if the transcript says other words."""
    library = Library(0.5, 0.5, NEVER, 0.1)
    texts = ["when do", "when do you", "when do you close", "when do you close on"]
    last, final = "when do you close on Sunday", "When do you open on Sunday?"
    events = spoken(*texts, last, final=final)
    (prompt,), (report,) = await call(library, *events)
    assert library.queries == [texts[1], texts[2], last, final]
    assert final in documents(prompt)
    assert (report.documents, report.retrievals, report.waited_secs) == (1, 4, pytest.approx(0.1))
    assert library.live == 0


async def test_documents_of_an_earlier_turn_go() -> None:
    second = spoken("where is", "where is the car park", final="Where is the car park?")
    prompts, _ = await call(Library(0.1, 0.1, NEVER), *QUESTION, *second)
    assert "open" in documents(prompts[0])
    assert documents(prompts[1]) == ""
    assert [m["role"] for m in prompts[1]] == ["user", "assistant", "user"]


async def test_questions_of_one_turn_are_retrieved_side_by_side() -> None:
    library = Library(0.2)
    (prompt,), (report,) = await call(
        library, *spoken(final="When do you open? Where are you and what does it cost?")
    )
    assert library.queries == ["When do you open?", "Where are you", "what does it cost?"]
    assert (report.documents, report.waited_secs) == (3, pytest.approx(0.2))
    assert all(query in documents(prompt) for query in library.queries)


async def test_documents_are_taken_by_rank_until_the_budget_is_full() -> None:
    ranked = [Document(f"{n} " + "x" * 360) for n in range(9)]
    (prompt,), (report,) = await call(Library(0.1, documents=ranked), *QUESTION, max_tokens=300)
    assert report.documents == 3
    assert [f"{n} x" in documents(prompt) for n in range(4)] == [True, True, True, False]


async def test_retrievers_are_hedged_like_providers() -> None:
    first, second = Library(NEVER), Library(0.05)
    (prompt,), (report,) = await call(
        [first, second], *spoken(final="When do you open?"), policy=HedgePolicy.after(0.1)
    )
    assert (report.documents, report.waited_secs) == (1, pytest.approx(0.15))
    assert "When do you open?" in documents(prompt)
    assert (first.live, second.live) == (0, 0)


class Clinging(Library):
    """Takes a second to be cancelled."""

    async def retrieve(self, query: str) -> Sequence[Document]:
        try:
            return await super().retrieve(query)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
            raise


@pytest.mark.parametrize(("others", "waited"), [([], 0.25), ([Library(0.05)], 0.15)])
async def test_retriever_that_is_slow_to_cancel_costs_the_deadline_at_most(
    others: list[Retriever], waited: float
) -> None:
    """And nothing where another one has found the documents."""
    turn = spoken("when do", "when do you", "when do they open", final="When do you open?")
    (prompt,), (report,) = await call([Clinging(NEVER), *others], *turn)
    assert report.waited_secs == pytest.approx(waited)
    assert (report.documents, bool(documents(prompt))) == (len(others), bool(others))


@pytest.mark.parametrize(
    ("secs", "outcomes"),
    [
        pytest.param(0.1, ["answered"], id="there before the end of speech"),
        pytest.param(0.35, ["withdrawn", "answered"], id="there before the final transcript"),
        pytest.param(0.45, ["withdrawn", "answered"], id="the final transcript waits"),
        pytest.param(NEVER, ["answered"], id="hangs"),
    ],
)
async def test_answer_that_was_begun_early_has_the_documents_of_its_turn(
    secs: float, outcomes: list[str]
) -> None:
    turns: list[TurnReport] = []
    strategies = UserTurnStrategies(stop=[EagerStopStrategy(ends())])
    prompts, _ = await call(Library(secs), *QUESTION, strategies=strategies, turns=turns)
    assert [turn.outcome for turn in turns] == outcomes
    assert len(prompts) == len(outcomes)
    expected = "" if secs == NEVER else "[book] when do you open"
    assert documents(prompts[-1]).endswith(expected)
    assert bool(documents(prompts[-1])) == bool(expected)


def predicted(*, resumes: bool = False) -> list[Event]:
    """A turn whose end the recogniser predicts."""
    first = EagerTranscriptionFrame("when do you", "caller", "now")
    whole = EagerTranscriptionFrame("when do you open", "caller", "now")
    return [
        *(ProposedUserStartedSpeakingFrame(), 0.5),
        *((first, 0.1, EagerEndOfTurnCancelFrame(), 0.5) if resumes else ()),
        *(whole, 0.4, TranscriptionFrame("When do you open?", "caller", "now", finalized=True)),
        *(ProposedUserStoppedSpeakingFrame(), 2.0),
    ]


@pytest.mark.parametrize(
    ("secs", "resumes"),
    [
        pytest.param(0.2, False, id="there by the deadline"),
        pytest.param(0.2, True, id="the caller goes on meanwhile"),
        pytest.param(NEVER, False, id="hangs"),
    ],
)
async def test_transcript_of_a_predicted_end_waits_for_documents(
    secs: float, resumes: bool
) -> None:
    turns: list[TurnReport] = []
    events, strategies = predicted(resumes=resumes), EagerUserTurnStrategies()
    (prompt,), (report,) = await call(Library(secs), *events, strategies=strategies, turns=turns)
    assert [turn.outcome for turn in turns] == ["answered"]
    assert [m["role"] for m in prompt] == ["user"]
    assert report.waited_secs == 0.0
    if secs != NEVER:
        assert documents(prompt).endswith("[book] when do you open")


async def test_final_transcript_waits_for_no_predicted_one() -> None:
    predicted = EagerTranscriptionFrame("when do you", "caller", "now")
    events: list[Event] = [ProposedUserStartedSpeakingFrame(), 0.5, predicted, 0.05]
    events += [TranscriptionFrame("When do you open?", "caller", "now", finalized=True)]
    events += [ProposedUserStoppedSpeakingFrame(), 2.0]
    turns: list[TurnReport] = []
    strategies = EagerUserTurnStrategies()
    _, (report,) = await call(Library(NEVER), *events, strategies=strategies, turns=turns)
    assert report.waited_secs == pytest.approx(0.25)
    assert [turn.outcome for turn in turns] == ["answered"]
