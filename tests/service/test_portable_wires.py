"""What one vendor wrote and what we add is accepted by the next, over sockets in each wire."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google.genai import types
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    Frame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TranscriptionFrame,
    UserStartedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.mistral.llm import MistralLLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import (
    OpenAIResponsesHttpLLMService,
    OpenAIResponsesReasoningConfig,
)
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgePolicy
from pipecat_hedge.retrieval import Document, RetrievalProcessor
from pipecat_hedge.service.token_budget import role_of
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.simulated import close
from tests.support.strict_upstream import Answer, StrictUpstream, pieces, strict_upstream

LATE = Answer("Too late.", secs=60)


@dataclass(frozen=True)
class Member:
    """A service to be, by its model."""

    model: str
    build: Callable[[str, str], LLMService[Any]]
    thinks: bool = False


def openai(model: str, kind: type[OpenAILLMService] = OpenAILLMService) -> Member:
    return Member(
        model,
        lambda url, model: kind(
            api_key="x", base_url=f"{url}/v1", settings=kind.Settings(model=model)
        ),
    )


def mistral(model: str) -> Member:
    return openai(model, MistralLLMService)


def claude(model: str, **thinking: Any) -> Member:
    def build(url: str, model: str) -> LLMService[Any]:
        settings = AnthropicLLMService.Settings(model=model)
        if thinking:
            settings.thinking = AnthropicLLMService.ThinkingConfig(**thinking)
        client = AsyncAnthropic(api_key="x", base_url=url)
        return AnthropicLLMService(api_key="x", client=client, settings=settings)

    return Member(model, build, thinks=bool(thinking))


THINKING = {"type": "enabled", "budget_tokens": 1024}


def gemini(model: str) -> Member:
    return Member(
        model,
        lambda url, model: GoogleLLMService(
            api_key="x",
            http_options=types.HttpOptions(base_url=url),
            settings=GoogleLLMService.Settings(model=model),
        ),
        thinks=True,
    )


def responses(model: str, **reasoning: Any) -> Member:
    def build(url: str, model: str) -> LLMService[Any]:
        settings = OpenAIResponsesHttpLLMService.Settings(model=model)
        if reasoning:
            settings.reasoning = OpenAIResponsesReasoningConfig(**reasoning)
        return OpenAIResponsesHttpLLMService(api_key="x", base_url=f"{url}/v1", settings=settings)

    return Member(model, build, thinks=bool(reasoning))


class Call:
    """A call of a hedged service, whose tool ``hours`` says when it opens.

    Attributes:
        context: The conversation.
        line: Where it is heard.
    """

    def __init__(self, line: Line, context: LLMContext):
        self.line, self.context = line, context
        self._requests = 0

    async def say(self, text: str, requests: int = 1) -> None:
        """Say something, and wait until so many answers have ended."""
        message: Any = {"role": "user", "content": text}
        await self.send(LLMMessagesAppendFrame([message], run_llm=True), requests=requests)

    async def speak(self, text: str) -> None:
        """Have the caller say something, and wait for the answer's end."""
        turns = len(self.line.frames(UserStartedSpeakingFrame)) + 1
        await self.line.send(VADUserStartedSpeakingFrame())
        await self.line.until(lambda: len(self.line.frames(UserStartedSpeakingFrame)) >= turns)
        transcript = TranscriptionFrame(text, "caller", "now", finalized=True)
        await self.send(VADUserStoppedSpeakingFrame(stop_secs=0.2), transcript)

    async def send(self, *frames: Frame, requests: int = 1) -> None:
        await self.line.send(*frames)
        self._requests += requests
        async with asyncio.timeout(3):
            await self.line.report(self._requests)

    @property
    def winners(self) -> str:
        return "".join(report.winner or "-" for report in self.line.reports)


@asynccontextmanager
async def call_of(
    upstream: StrictUpstream,
    *members: Member,
    policy: HedgePolicy | None = None,
    messages: tuple[Any, ...] = (),
    retrieval: RetrievalProcessor | None = None,
) -> AsyncIterator[Call]:
    """A call of members a and b."""
    services = [member.build(upstream.url, member.model) for member in members]
    llm = racing(*services, policy=policy, warm=False)

    async def hours(params: FunctionCallParams) -> None:
        await params.result_callback({"opens": 9})

    schema: Any = FunctionSchema("hours", "Opening hours.", {}, [], handler=hours)
    context = LLMContext([*messages], tools=[schema])
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.0)
    params = LLMUserAggregatorParams(user_turn_strategies=UserTurnStrategies(stop=[stop]))
    pair = LLMContextAggregatorPair(context, user_params=params)
    before = [pair.user()] if retrieval is None else [retrieval, pair.user()]
    try:
        async with Line(llm, before=before, after=[pair.assistant()]) as line:
            yield Call(line, context)
    finally:
        await close(*services)


PLAIN_CLAUDE, THINKING_CLAUDE = claude("plain"), claude("claude", **THINKING)
GPT = openai("gpt")


@pytest.mark.parametrize(
    ("a", "b", "ids"),
    [
        pytest.param(GPT, PLAIN_CLAUDE, ("functions.hours:{}", "toolu_{}"), id="kimi"),
        pytest.param(GPT, PLAIN_CLAUDE, ("call_0", "call_0"), id="numbered alike"),
        pytest.param(GPT, PLAIN_CLAUDE, (None, "toolu_{}"), id="without ids"),
        pytest.param(GPT, openai("other"), ("x" * 50 + "{}", "a.b:{}"), id="long ids"),
        pytest.param(GPT, THINKING_CLAUDE, ("call_{}", "toolu_{}"), id="thinks"),
        pytest.param(PLAIN_CLAUDE, THINKING_CLAUDE, ("toolu_a{}", "toolu_b{}"), id="one thinks"),
        pytest.param(GPT, claude("c", type="adaptive"), ("call_{}", "toolu_{}"), id="may think"),
        pytest.param(GPT, mistral("mistral-small"), ("call_{}", "aB3dE5gH{}"), id="mistral"),
        pytest.param(GPT, openai("mistral-7b"), ("call_{}", "aB3dE5gH{}"), id="mistral's model"),
        pytest.param(THINKING_CLAUDE, gemini("pro"), ("toolu_{}", "f.{}"), id="gemini"),
        pytest.param(gemini("flash"), gemini("pro"), ("f{}", "g{}"), id="two of gemini"),
        pytest.param(GPT, responses("o", effort="low"), ("a.b:{}", "call_{}"), id="responses"),
        pytest.param(
            responses("azure", effort="low"),
            responses("o", effort="low"),
            ("call_a{}", "call_b{}"),
            id="two of responses",
        ),
        pytest.param(
            responses("o", effort="low"),
            responses("plain"),
            ("call_a{}", "call_b{}"),
            id="one of responses reasons",
        ),
    ],
)
async def test_two_vendors_take_turns_in_one_conversation(
    a: Member, b: Member, ids: tuple[str | None, str]
) -> None:
    """Both are asked each time, and one of them answers; a prompt begins like the one before."""
    winners, calls = "abbaaaabb", (0, 2, 5, 7)
    answers: dict[str, list[Answer]] = {a.model: [], b.model: []}
    for number, winner in enumerate(winners):
        for member, name, call_id in zip((a, b), "ab", ids, strict=True):
            own_id = call_id and call_id.format(number)
            call = (own_id, "hours", {"day": number}) if number in calls else None
            answer = Answer("" if call else f"At nine, says {name}.", call, member.thinks)
            answers[member.model].append(answer if name == winner else LATE)
    async with strict_upstream(answers, is_race=True) as upstream:
        async with call_of(upstream, a, b, policy=HedgePolicy.race(2, probes=False)) as call:
            for number, requests in enumerate((2, 2, 1, 2, 2)):
                await call.say(f"When do you open on day {number}?", requests)
                assert upstream.rejections == []
        assert call.winners == winners
        assert call.line.errors == []
        for prompts in upstream.prompts.values():
            assert len(prompts) == len(winners)
            for before, after in itertools.pairwise(map(pieces, prompts)):
                assert after[: len(before)] == before
                assert len(after) > len(before)
            assert json.dumps(prompts[-1]).count("opens") == len(calls)


def tool_turn(call_id: str) -> tuple[Any, Any]:
    function = {"name": "hours", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": call_id, "content": "9"}
    return {"role": "assistant", "tool_calls": calls}, result


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((), id="after a question"),
        pytest.param(tool_turn("functions.hours:0"), id="after a tool"),
        pytest.param(({"role": "assistant", "content": "One moment."},), id="after the bot"),
    ],
)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(GPT, openai("strict"), id="chat template"),
        pytest.param(GPT, mistral("mistral-small"), id="mistral"),
        pytest.param(GPT, PLAIN_CLAUDE, id="claude"),
        pytest.param(claude("c", type="adaptive"), THINKING_CLAUDE, id="claude thinks"),
        pytest.param(GPT, gemini("pro"), id="gemini"),
        pytest.param(GPT, responses("o", effort="low"), id="responses"),
    ],
)
async def test_continuation_is_accepted(a: Member, b: Member, messages: tuple[Any, ...]) -> None:
    answers = {
        a.model: [Answer("We are open till nine. Shall I", thinks=a.thinks, is_cut=True)],
        b.model: [Answer(" Do come by.", thinks=b.thinks), Answer("Bye.", thinks=b.thinks)],
    }
    policy = HedgePolicy.fallback(commit="first_sentence")
    question = {"role": "user", "content": "Are you open?"}
    async with strict_upstream(answers) as upstream:
        async with call_of(upstream, a, b, policy=policy, messages=(question, *messages)) as call:
            await call.send(LLMRunFrame())
        (prompt,) = upstream.prompts[b.model]
        assert upstream.rejections == []
    assert call.line.text == "We are open till nine. Do come by."
    assert "broken connection" in pieces(prompt)[-1]
    assert [piece.count("open till nine") for piece in pieces(prompt)[-2:]] == [1, 0]


async def test_thought_of_a_continuation_is_not_sent_again() -> None:
    """It was signed with a prompt that no later one begins with."""
    half = Answer("We are open till nine. Shall I", is_cut=True)
    thinking = [Answer(" Do come by.", thinks=True), Answer("Bye.", thinks=True), Answer("Bye.")]
    first = iter("abb")
    policy = HedgePolicy.fallback(commit="first_sentence", route=lambda turn: next(first))
    async with strict_upstream({"gpt": [half], "claude": thinking}) as upstream:
        async with call_of(upstream, GPT, THINKING_CLAUDE, policy=policy) as call:
            for text in ("Are you open?", "Bye.", "Bye!"):
                await call.say(text)
        assert upstream.rejections == []
    thoughts = [str(prompt).count("thinking") for prompt in upstream.prompts["claude"]]
    assert [count > 0 for count in thoughts] == [False, False, True]


async def test_documents_are_the_callers_for_a_chat_template_and_ours_for_a_route() -> None:
    class Library:
        async def retrieve(self, query: str) -> list[Document]:
            return [Document(f"Passage for {query}")]

    heard: list[str] = []
    policy = HedgePolicy.race(2, probes=False, route=lambda turn: heard.append(turn.last_words))
    answers = {"strict-a": [Answer("Till nine.")], "strict-b": [LATE]}
    texts = ["When do you open?", "Where are you?"]
    async with strict_upstream(answers, is_race=True) as upstream:
        members, retrieval = (openai("strict-a"), openai("strict-b")), RetrievalProcessor(Library())
        async with call_of(upstream, *members, policy=policy, retrieval=retrieval) as call:
            for text in texts:
                await call.speak(text)
            roles = [role_of(message) for message in call.context.messages]
    assert upstream.rejections == []
    assert heard == texts
    for first, second in upstream.prompts.values():
        assert f"Passage for {texts[0]}\n\n{texts[0]}" in first[-1]["content"]
        assert [message["role"] for message in second] == ["user", "assistant", "user"]
        assert second[0]["content"] == texts[0]
        assert second[-1]["content"].endswith(f"Passage for {texts[1]}\n\n{texts[1]}")
    assert roles[:4] == ["user", "assistant", "developer", "user"]


async def test_result_of_a_call_without_an_id_reaches_the_model() -> None:
    answers = {"gpt": [Answer(call=(None, "hours", {})), Answer("At nine.")]}
    async with strict_upstream(answers) as upstream, call_of(upstream, GPT) as call:
        await call.say("When do you open?", 2)
    assert json.loads(upstream.prompts["gpt"][-1][-1]["content"]) == {"opens": 9}
