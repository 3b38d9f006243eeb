"""A service with known answers sends no request for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google.genai.types import HttpOptions
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import AdapterType, ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    LLMContextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import ExactAnswers, FaqAnswers, HedgePolicy, TokenBudget
from pipecat_hedge.answers import FaqEntry, store
from pipecat_hedge.service.known_answers import Question
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.vllm import VLLMService
from tests.service.builders import Tool, racing, said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

ENTRIES = [FaqEntry(questions=["When do you open?"], answer="We open at noon. Do come.")]
FIVE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
ANSWER: list[Step] = [Wait(0.5), Say("Hello, "), Say("caller.")]


def member(*scripts: list[Step], **options: Any) -> ScriptedLLMService:
    return ScriptedLLMService(*(scripts or (ANSWER,)), **options)


def asked_of(line: Line) -> list[int]:
    return [len(report.attempts) for report in line.reports]


async def test_same_turn_is_answered_from_memory_and_stays_as_it_was() -> None:
    answers = ExactAnswers(ttl_secs=60)
    for session in range(3):
        llm = racing(member(), answers=[answers])
        async with Line(llm) as line:
            await line.ask("Hello?")
            report = await line.report()
        assert line.text == "Hello, caller."
        assert line.framing == ["<", "t", "t", ">"]
        assert (len(report.attempts), report.known_answer) == (
            (1, None) if session == 0 else (0, "exact")
        )
        if session:
            assert (report.outcome, report.winner, report.ttft_secs) == ("answered", None, 0.0)


async def test_answer_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: now))
    answers = ExactAnswers(ttl_secs=60)
    async with Line(racing(member(), answers=[answers])) as line:
        for _ in range(2):
            await line.ask("Hello?")
        now += 60.0
        await line.ask("Hello?")
        await line.report(3)
    assert asked_of(line) == [1, 0, 1]


def tools() -> ToolsSchema:
    return ToolsSchema([FunctionSchema("book", "Books.", {}, [])])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: (said("Goodbye?"), {}), id="another message"),
        pytest.param(lambda: (LLMContext(said().messages, tools()), {}), id="tools"),
        pytest.param(lambda: (said(), {"model": "another"}), id="model"),
        pytest.param(lambda: (said(), {"system": "Be rude."}), id="instruction"),
        pytest.param(
            lambda: (
                LLMContext([{"role": "system", "content": "x"}, *said().messages]),
                {},
            ),
            id="message before",
        ),
    ],
)
async def test_any_difference_is_another_turn(other: Any) -> None:
    answers = ExactAnswers(ttl_secs=60, with_tools=True)
    context, options = other()
    instruction = options.pop("system", "")
    for service, of_turn in ((member(), said()), (member(**options), context)):
        if instruction and of_turn is context:
            service.append_system_instruction(instruction)
        async with Line(racing(service, answers=[answers])) as line:
            await line.ask(context=of_turn)
            await line.report()
        assert asked_of(line) == [1]


async def test_only_whole_answers_of_text_are_kept() -> None:
    answers = ExactAnswers(ttl_secs=60)
    broken = member([Wait(0.1), Say("Hel"), Error()], ANSWER)
    async with Line(racing(broken, answers=[answers])) as line:
        for _ in range(3):
            await line.ask()
        await line.report(3)
    assert asked_of(line) == [1, 1, 0]
    assert line.text.endswith("Hello, caller.")


async def test_answer_that_the_caller_interrupts_is_not_kept() -> None:
    answers = ExactAnswers(ttl_secs=60)
    slow = member([Say("Hello, "), Wait(0.5), Say("caller.")])
    async with Line(racing(slow, answers=[answers])) as line:
        await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "Hello?"}])))
        await line.until(lambda: bool(line.text))
        await line.interrupt()
        await line.report()
        await line.ask()
        await line.report(2)
    assert asked_of(line) == [1, 1]
    assert line.text == "Hello, Hello, caller."


@pytest.mark.parametrize(
    ("members", "options", "heard"),
    [
        pytest.param(
            lambda: (member([Say("We open at "), Wait(0.1), Error()]), member([Say("noon.")])),
            {"policy": HedgePolicy.fallback(commit="first_token")},
            "We open at noon.",
            id="stitched from two models",
        ),
        pytest.param(
            lambda: (member([Say("We are open")], usage=LLMTokenUsage(**FIVE)),),
            {"token_budget": TokenBudget(answer=5)},
            "We are open",
            id="cut by its limit",
        ),
    ],
)
async def test_answer_in_parts_is_not_kept(members: Any, options: Any, heard: str) -> None:
    answers = ExactAnswers(ttl_secs=60)
    for _ in range(2):
        async with Line(racing(*members(), answers=[answers], **options)) as line:
            await line.ask()
            report = await line.report()
        assert (line.text, report.outcome, report.known_answer) == (heard, "answered", None)


async def test_tools_are_the_same_by_their_schema() -> None:
    """Each session has handlers of its own."""
    answers, handlers = ExactAnswers(ttl_secs=60, with_tools=True), [Tool(), Tool()]
    sources = [None, None, {AdapterType.GEMINI: [{"google_search": {}}]}]
    asked: list[int] = []
    for tool, custom in zip([*handlers, handlers[0]], sources, strict=True):
        schema = FunctionSchema("book", "Books.", {}, [], handler=tool.run)
        context = LLMContext(said().messages, ToolsSchema([schema], custom))
        async with Line(racing(member(), answers=[answers])) as line:
            await line.ask(context=context)
            asked.append(len((await line.report()).attempts))
    assert asked == [1, 0, 1]


@pytest.mark.parametrize(
    "service",
    [
        lambda url: OpenAILLMService(api_key="x", base_url=url),
        lambda url: GoogleLLMService(api_key="x", http_options=HttpOptions(base_url=url)),
        lambda url: VLLMService(base_url=f"{url}/v1"),
        lambda url: AnthropicLLMService(
            api_key="x", client=AsyncAnthropic(api_key="x", base_url=url)
        ),
    ],
)
def test_server_at_another_address_is_another_model(service: Any) -> None:
    urls = "http://a.test", "http://b.test", "http://a.test"
    one, other, same = (Question.of(said(), [service(url)]).key for url in urls)
    assert one == same != other


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_early_answer_is_reported_when_the_turn_has_ended(is_confirmed: bool) -> None:
    async with Line(racing(member(), answers=[FaqAnswers(ENTRIES)])) as line:
        await line.send(
            UserStartedSpeakingFrame(),
            LLMContextFrame(said("When do you open?"), speculation=True),
        )
        await asyncio.sleep(0.3)
        assert line.reports == []
        if is_confirmed:
            await line.send(UserStoppedSpeakingFrame())
        else:
            await line.send(EagerEndOfTurnCancelFrame())
        report = await line.report()
    if is_confirmed:
        assert (report.outcome, report.known_answer) == ("answered", "faq")
        assert report.confirmed_secs == pytest.approx(0.3)
    else:
        assert (report.outcome, report.known_answer) == ("withdrawn", None)
    assert line.text == ("We open at noon. Do come." if is_confirmed else "")


async def test_memory_is_bounded() -> None:
    answers = ExactAnswers(ttl_secs=60, most_mb=0.001)
    async with Line(racing(member(), answers=[answers])) as line:
        for text in ("One", "Two", "Three", "Four", "One"):
            await line.ask(text)
        await line.report(5)
    assert asked_of(line) == [1, 1, 1, 1, 1]


async def test_curated_question_is_answered_unless_it_may_need_a_tool() -> None:
    faq = FaqAnswers(ENTRIES)
    async with Line(racing(member(), answers=[faq])) as line:
        await line.ask("When are you opening?")
        await line.ask("What about Sunday?")
        await line.ask(context=LLMContext(said("When do you open?").messages, tools=tools()))
        await line.report(3)
    assert line.text.startswith("We open at noon. Do come.")
    assert asked_of(line) == [0, 1, 1]
    assert line.reports[0].known_answer == "faq"


@pytest.mark.parametrize(("warm", "asked"), [(True, [0, 0]), (False, [1, 0])])
async def test_slow_embeddings_are_made_once_before_the_first_turn(
    warm: bool, asked: list[int]
) -> None:
    embedded: list[Sequence[str]] = []

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        embedded.append(texts)
        await asyncio.sleep(0.5 if texts == ENTRIES[0].questions else 0.01)
        return [[1.0]] * len(texts)

    faq, question = FaqAnswers(ENTRIES, embed=embed), "When are you opening?"
    async with Line(racing(member(), answers=[faq], warm=warm)) as line:
        await asyncio.sleep(1.0)
        for _ in asked:
            await line.ask(question)
            await asyncio.sleep(1.0)
        await line.report(2)
    assert asked_of(line) == asked
    assert embedded[0] == ENTRIES[0].questions
    assert embedded[1:] == [[question]] * (2 if warm else 1)


async def test_pronoun_needs_something_said_before() -> None:
    faq = FaqAnswers(ENTRIES)
    asks = {"role": "user", "content": "When does it open?"}
    before = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Hi!"}]
    async with Line(racing(member(), answers=[faq])) as line:
        for messages in ([before[0], asks], [*before, asks]):
            await line.ask(context=LLMContext(messages))  # type: ignore[arg-type]
        await line.report(2)
    assert asked_of(line) == [0, 1]


async def test_shadow_mode_only_writes_down(tmp_path: Path) -> None:
    log = tmp_path / "shadow.jsonl"
    faq = FaqAnswers(ENTRIES, shadow=True, shadow_log=log)
    async with Line(racing(member(), answers=[faq])) as line:
        await line.ask("When are you opening?")
        await line.ask("Do you deliver?")
        await line.report(2)
    assert asked_of(line) == [1, 1]
    (record,) = map(json.loads, log.read_text().splitlines())
    assert record["answers"] == {"said": "Hello, caller.", "faq": "We open at noon. Do come."}
    assert (record["question"], record["similarity"]) == ("When are you opening?", 1.0)


@pytest.mark.parametrize(
    ("end", "was_said"), [(UserStoppedSpeakingFrame, True), (EagerEndOfTurnCancelFrame, False)]
)
async def test_answer_that_was_not_said_is_not_written_down(
    tmp_path: Path, end: type[Frame], was_said: bool
) -> None:
    log = tmp_path / "shadow.jsonl"
    faq = FaqAnswers(ENTRIES, shadow=True, shadow_log=log)
    async with Line(racing(member(), answers=[faq])) as line:
        question = LLMContextFrame(said("When are you opening?"), speculation=True)
        await line.send(UserStartedSpeakingFrame(), question)
        await asyncio.sleep(1.0)
        await line.send(end())
        await line.report()
    assert log.exists() is was_said


class Broken:
    name = "broken"

    async def find(self, question: object) -> str | None:
        raise RuntimeError("secret")

    async def learn(self, question: object, answer: str) -> None:
        raise RuntimeError("secret")


async def test_source_that_fails_costs_no_answer() -> None:
    async with Line(racing(member(), answers=[Broken(), ExactAnswers(60)])) as line:
        for _ in range(2):
            await line.ask()
        await line.report(2)
    assert (asked_of(line), line.text) == ([1, 0], "Hello, caller." * 2)
