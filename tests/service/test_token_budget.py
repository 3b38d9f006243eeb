"""Bounded prompts and answers."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import TokenBudget
from pipecat_hedge.service.token_budget import STEP, answer_limit, trimmed
from pipecat_hedge.service.tokens import message_tokens
from pipecat_hedge.testing import Say, ScriptedLLMService, Step
from pipecat_hedge.vllm import VLLMService
from tests.service.builders import asked, racing

Messages = list[Any]


def message(role: str, tokens: int, **more: Any) -> Any:
    """A message that is estimated at so many tokens, or hardly more."""
    text = {"role": role, "content": "", **more}
    return {**text, "content": "x" * (4 * max(tokens - message_tokens(text), 1))}


SYSTEM = message("system", 50)
CALL = message("assistant", 30, tool_calls=[{"id": "1", "function": {"name": "book"}}])
RESULT = message("tool", 30, tool_call_id="1")
TURN = st.tuples(st.integers(12, 90), st.booleans()).map(
    lambda turn: [
        message("user", turn[0]),
        *([CALL, RESULT] if turn[1] else []),
        message("assistant", turn[0]),
    ]
)
CALLS = st.lists(TURN, min_size=1, max_size=60).map(lambda turns: [SYSTEM, *chain(*turns)])


def size(messages: Messages) -> int:
    return sum(message_tokens(each) for each in messages)


@given(CALLS, st.integers(300, 3_000))
def test_trimmed_conversation_fits_and_every_tool_call_keeps_its_result(
    messages: Messages, most: int
) -> None:
    kept: Messages = [*trimmed(messages, most)]
    assert size(kept) <= most or [m["role"] for m in kept[1:]].count("user") == 1
    assert kept[0] is SYSTEM
    assert kept[1:] == messages[len(messages) - len(kept) + 1 :], "only the beginning is left out"
    assert kept[1]["role"] == "user"
    assert sum(m is CALL for m in kept) == sum(m is RESULT for m in kept)
    if size(messages) <= most:
        assert kept == messages
    else:  # no more than a step and a turn is cut in vain
        assert size(kept) >= (1 - STEP) * most - 300 or len(kept) < 6


@given(CALLS, st.integers(1_000, 3_000))
def test_cut_stays_for_many_turns(messages: Messages, most: int) -> None:
    """So that a provider's prefix cache holds the prompt."""
    ends = [n for n, m in enumerate(messages) if m["role"] == "user"]
    cuts = [id(trimmed(messages[: end + 1], most)[1]) for end in ends]
    moves = sum(before != after for before, after in pairwise(cuts))
    assert moves <= size(messages) / (STEP * most) + 1


async def test_older_talk_goes_before_documents_and_summary() -> None:
    """As Pipecat and ``RetrievalProcessor`` put them into the context."""
    talk = [message("user", 90), message("assistant", 90)] * 3
    pair = LLMContextAggregatorPair(context := LLMContext([SYSTEM, *talk]))
    summarizer = pair.assistant()._summarizer
    assert summarizer is not None
    await summarizer._apply_summary("They ask for a table.", 2)
    documents, asks = message("developer", 200), message("user", 20)
    messages = [*context.messages, documents, asks, CALL, RESULT]
    assert [m["role"] for m in messages[:3]] == ["system", "user", "user"]
    kept = trimmed(messages, 400)
    assert kept == [*messages[:2], *messages[-4:]]
    assert trimmed(messages, 100) == kept


def test_no_budget_changes_nothing() -> None:
    assert trimmed([SYSTEM, RESULT], None) == [SYSTEM, RESULT]
    assert trimmed([SYSTEM, message("user", 900)], 100)[0] is SYSTEM, "the last turn stays"
    assert len(trimmed([SYSTEM, message("user", 900)], 100)) == 2


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (OpenAILLMService(api_key="x"), ("max_completion_tokens", 200)),
        (
            OpenAILLMService(api_key="x", settings=OpenAILLMService.Settings(max_tokens=90)),
            ("max_tokens", 90),
        ),
        (AnthropicLLMService(api_key="x"), ("max_tokens", 200)),
        (VLLMService(settings=VLLMService.Settings(model="m")), ("max_tokens", 200)),
    ],
)
def test_limit_of_an_answer_has_the_services_own_name(
    service: Any, expected: tuple[str, int]
) -> None:
    name, tokens = expected
    assert answer_limit(service, 200).given_fields() == {name: tokens}


class Prompted(ScriptedLLMService):
    """Notes the prompts that it gets, and its limit."""

    async def _play(self, script: Any, context: LLMContext) -> None:
        self.prompt, self.limit = context.messages, self._settings.max_tokens
        await super()._play(script, context)


@pytest.mark.virtual_time
async def test_members_get_the_tiers_budget_and_the_context_stays_whole() -> None:
    member, context = Prompted([Say("Yes.")]), LLMContext([SYSTEM, *[message("user", 90)] * 20])
    budgets = {"economy": TokenBudget(prompt=500, answer=200)}
    for tier, count, limit in (("economy", 5, 200), ("standard", 21, None)):
        member = Prompted([Say("Yes.")])
        line = await asked(
            racing(member, token_budget=budgets, tier=tier), context=LLMContext(context.messages)
        )
        assert (len(member.prompt), member.limit) == (count, limit)
        prompt_tokens = line.reports[0].prompt_tokens
        assert prompt_tokens is not None
        assert (prompt_tokens <= 500) == (tier == "economy")
    assert len(context.messages) == 21


class Counting(ScriptedLLMService):
    """Reports how many tokens it produced."""

    def __init__(self, tokens: int, *script: Step):
        super().__init__(script)
        self._tokens = tokens

    async def _play(self, script: Any, context: LLMContext) -> None:
        await super()._play(script, context)
        usage = LLMTokenUsage(prompt_tokens=9, completion_tokens=self._tokens, total_tokens=9)
        await self.start_llm_usage_metrics(usage)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("tokens", "pieces", "heard"),
    [
        pytest.param(200, ("Yes. We ", "are open", " till"), "Yes.", id="cut in mid-sentence"),
        pytest.param(199, ("Yes. We ", "are open"), "Yes. We are open", id="within the limit"),
        pytest.param(200, ("Yes. We ", "are open."), "Yes. We are open.", id="whole at the limit"),
        pytest.param(200, ("We are open", " till"), "We are open till", id="not one sentence"),
    ],
)
async def test_answer_at_its_limit_ends_with_a_sentence(
    tokens: int, pieces: tuple[str, ...], heard: str
) -> None:
    member = Counting(tokens, *map(Say, pieces))
    line = await asked(racing(member, token_budget=TokenBudget(answer=200)))
    assert line.text.strip() == heard
    assert (line.reports[0].outcome, line.errors) == ("answered", [])
