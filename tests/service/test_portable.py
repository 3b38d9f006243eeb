"""A member's copy of a conversation, as its provider accepts it."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from hypothesis import given
from hypothesis import strategies as st
from pipecat.adapters.llm.services.bedrock_adapter import AWSBedrockLLMAdapter
from pipecat.frames.frames import LLMMessagesAppendFrame, LLMThoughtStartFrame
from pipecat.processors.aggregators import async_tool_messages
from pipecat.processors.aggregators.llm_context import LLMSpecificMessage
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.mistral.llm import MistralLLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import (
    OpenAIResponsesHttpLLMService,
    OpenAIResponsesReasoningConfig,
)

from pipecat_hedge import Provider
from pipecat_hedge.service.portable import (
    AddedMessage,
    Dialect,
    note_author,
    portable,
    portable_id,
)
from pipecat_hedge.service.provider_client import dialect_of
from pipecat_hedge.testing import ScriptedLLMService
from tests.service.builders import scripted

SYSTEM: Any = {"role": "system", "content": "You take orders."}
QUESTION: Any = {"role": "user", "content": "Are you open?"}
ANSWER: Any = {"role": "assistant", "content": "Till nine."}
VALID = {False: re.compile(r"[a-zA-Z0-9_-]{1,40}"), True: re.compile(r"[a-zA-Z0-9]{9}")}
CLAUDE = Dialect("claude", "anthropic")
THINKING_CLAUDE = Dialect("claude", "anthropic", needs_thoughts=True)


def call(call_id: Any, name: str = "hours") -> Any:
    function = {"name": name, "arguments": '{"day": 1}'}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "tool_calls": calls}


def result(call_id: Any, content: str = '{"opens": 9}') -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def thought(kind: str = "anthropic", **more: Any) -> LLMSpecificMessage:
    content = {"type": "thought", "text": "Hm.", "signature": "s", **more}
    return LLMSpecificMessage(kind, content)


REASONING = LLMSpecificMessage("openai_responses", {"type": "reasoning", "id": "rs_1"})


def ids_of(messages: Any) -> list[tuple[str, str]]:
    """The ids of each call and of its result."""
    calls = [c["id"] for m in messages for c in m.get("tool_calls", ())]
    return list(
        zip(calls, [m["tool_call_id"] for m in messages if m["role"] == "tool"], strict=True)
    )


def copied(*messages: Any, dialect: Dialect | None = None, **options: Any) -> list[Any]:
    return portable([*messages], dialect or Dialect(), **options)


# ---- ids of tool calls

IDS = st.one_of(
    st.text(max_size=60),
    st.from_regex(VALID[False], fullmatch=True),
    st.from_regex(VALID[True], fullmatch=True),
    st.sampled_from([None, "", "call_0", "functions.hours:0", "a\n", "\ud800", "é" * 9]),
)


@given(IDS.filter(lambda each: each is not None), st.booleans())
def test_an_id_becomes_valid_and_a_valid_one_stays(original: str, is_short: bool) -> None:
    found = portable_id(original, is_short=is_short)
    assert VALID[is_short].fullmatch(found)
    assert (found == original) == bool(VALID[is_short].fullmatch(original))


def test_an_id_is_the_same_in_each_process() -> None:
    assert portable_id("functions.hours:0") == "Aa4gDJ7buRcGE2Ldf4GIoNu2N6410CM6eHuQRmLB"
    assert portable_id("functions.hours:0", is_short=True) == "Aa4gDJ7bu"


@given(st.lists(IDS, max_size=12), st.booleans(), st.booleans())
def test_calls_of_a_conversation_have_ids_of_their_own(
    originals: list[str | None], is_short: bool, is_parallel: bool
) -> None:
    calls, results = map(call, originals), map(result, originals)
    pairs = (
        [*calls, *results]
        if is_parallel
        else [m for pair in zip(calls, results, strict=True) for m in pair]
    )
    before = copy.deepcopy(pairs)
    dialect = Dialect(has_short_ids=is_short)
    found = copied(*pairs, dialect=dialect)
    ids = ids_of(found)
    assert pairs == before, "the conversation is not changed"
    assert all(VALID[is_short].fullmatch(each) for each, _ in ids)
    assert all(of_call == of_result for of_call, of_result in ids)
    assert len(dict(ids)) == len(originals)
    for n, (original, (new, _)) in enumerate(zip(originals, ids, strict=True)):
        if original and VALID[is_short].fullmatch(original) and original not in originals[:n]:
            assert new == original
    for n in range(len(pairs)):
        assert copied(*pairs[:n], dialect=dialect) == found[:n]


@given(IDS.filter(bool), st.booleans())
def test_a_valid_id_that_another_would_become_stays_its_own(original: str, is_short: bool) -> None:
    valid = portable_id(original, is_short=is_short)
    originals = dict.fromkeys((original, valid))
    messages = [m for each in originals for m in (call(each), result(each))]
    ids = ids_of(copied(*messages, dialect=Dialect(has_short_ids=is_short)))
    assert ids[-1] == (valid, valid)
    assert len(dict(ids)) == len(originals)


def test_results_that_come_late_name_the_new_id() -> None:
    messages = [
        call("a.b"),
        async_tool_messages.build_started_message("a.b"),
        QUESTION,
        async_tool_messages.build_final_result_message("a.b", '{"opens": "a.b"}'),
    ]
    found = copied(*messages)
    new = portable_id("a.b")
    for number in (1, 3):
        payload = async_tool_messages.parse_message(found[number])
        assert payload is not None
        assert payload.tool_call_id == new
    assert json.loads(found[3]["content"])["result"] == '{"opens": "a.b"}'
    assert found[1]["tool_call_id"] == new


def test_signature_of_gemini_follows_its_call() -> None:
    content = {"type": "thought_signature", "signature": b"s", "bookmark": {"function_call": "a.b"}}
    signature = LLMSpecificMessage("google", content)
    found = copied(QUESTION, signature, call("a.b"), result("a.b"), dialect=Dialect("g", "google"))
    assert found[1].message["bookmark"] == {"function_call": portable_id("a.b")}
    assert len(found) == 4, "no other signature is needed"
    assert content["bookmark"] == {"function_call": "a.b"}


# ---- roles

DOCUMENTS = AddedMessage(role="developer", content="Passages.")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("messages", "contents"),
    [
        ([SYSTEM, DOCUMENTS, QUESTION], ["You take orders.", "Passages.\n\nAre you open?"]),
        (
            [QUESTION, ANSWER, DOCUMENTS, QUESTION],
            ["Are you open?", "Till nine.", "Passages.\n\nAre you open?"],
        ),
        ([QUESTION, DOCUMENTS], ["Are you open?\n\nPassages."]),
        (
            [QUESTION, DOCUMENTS, ANSWER, QUESTION],
            ["Are you open?\n\nPassages.", "Till nine.", "Are you open?"],
        ),
        ([ANSWER, DOCUMENTS], ["Till nine.", "Passages."]),
        ([QUESTION, DOCUMENTS, QUESTION], ["Are you open?\n\nPassages.\n\nAre you open?"]),
        ([DOCUMENTS, DOCUMENTS, QUESTION], ["Passages.\n\nPassages.\n\nAre you open?"]),
        (
            [DOCUMENTS, {"role": "user", "content": [IMAGE]}],
            [[{"type": "text", "text": "Passages."}, IMAGE]],
        ),
    ],
)
def test_added_messages_are_a_part_of_the_callers(messages: list[Any], contents: list[Any]) -> None:
    kept = copy.deepcopy(messages)  # as Pipecat copies conversations
    found = copied(*kept)
    assert [message["content"] for message in found] == contents
    assert {message["role"] for message in found} <= {"system", "user", "assistant"}
    assert kept == messages
    assert all(
        any(m is k for k in kept)
        for m in found
        if m["content"] in ("Till nine.", "You take orders.")
    )


def test_message_in_a_services_own_format_stays_as_it_is() -> None:
    own = LLMSpecificMessage("openai", {"role": "user", "content": "Are you open?"})
    passages = {"role": "user", "content": "Passages."}
    assert copied(own, DOCUMENTS, own) == [own, passages, own]


def test_documents_of_the_last_turn_stay_within_a_budget() -> None:
    long = {"role": "user", "content": "x" * 400}
    found = copied(SYSTEM, long, ANSWER, long, ANSWER, DOCUMENTS, QUESTION, most_tokens=60)
    assert [message["content"] for message in found] == [
        SYSTEM["content"],
        "Passages.\n\nAre you open?",
    ]


def test_calls_without_ids_keep_theirs_when_the_beginning_is_cut() -> None:
    turns = [m for n in range(9) for m in (QUESTION, call(None), result(None, str(n)), ANSWER)]
    whole, cut = copied(*turns), copied(*turns, most_tokens=150)
    assert 0 < len(cut) < len(whole)
    assert cut == whole[-len(cut) :]


ADDITION = [{"role": "assistant", "content": "We are"}, {"role": "user", "content": "Go on."}]


@pytest.mark.parametrize(
    ("messages", "added"),
    [
        ([QUESTION], ["We are", "Go on."]),
        ([QUESTION, ANSWER], ["Till nine.\n\nWe are", "Go on."]),
        ([QUESTION, call("1"), result("1")], ["We are", "Go on."]),
        (
            [QUESTION, {"role": "assistant", "content": [IMAGE]}],
            [[IMAGE, {"type": "text", "text": "We are"}], "Go on."],
        ),
    ],
)
def test_addition_of_the_same_role_is_a_part_of_the_last_message(
    messages: list[Any], added: list[Any]
) -> None:
    kept = copy.deepcopy(messages)
    found = copied(*kept, addition=ADDITION)
    assert [message["content"] for message in found[-2:]] == added
    assert kept == messages
    assert copied(*messages, addition=()) == messages


# ---- thoughts


def in_words(name: str, returned: str) -> Any:
    text = f'The tool {name} was called with {{"day": 1}}, and returned: {returned}'
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param(
            [QUESTION, call("1"), result("1"), ANSWER],
            [QUESTION, in_words("hours", '{"opens": 9}'), ANSWER],
            id="of another model",
        ),
        pytest.param(
            [QUESTION, {**call("1"), "content": "Let me see."}, result("1"), ANSWER],
            [
                QUESTION,
                {"role": "assistant", "content": "Let me see."},
                in_words("hours", '{"opens": 9}'),
                ANSWER,
            ],
            id="with words before it",
        ),
        pytest.param(
            [QUESTION, thought(), call("1"), result("1")],
            [QUESTION, thought(), call("1"), result("1")],
            id="its own",
        ),
        pytest.param(
            [QUESTION, thought(), call("1"), result("1"), call("2", "book"), result("2", "done")],
            [QUESTION, thought(), call("1"), result("1"), in_words("book", "done")],
            id="its own, and then of another model",
        ),
        pytest.param(
            [QUESTION, ANSWER, thought(), call("1"), result("1", "9")],
            [QUESTION, ANSWER, in_words("hours", "9")],
            id="its thought is not at the beginning",
        ),
    ],
)
def test_claude_that_thinks_reads_calls_without_a_thought_as_words(
    messages: list[Any], expected: list[Any]
) -> None:
    assert copied(*messages, dialect=THINKING_CLAUDE) == expected
    assert copied(*messages, dialect=CLAUDE) == messages


def test_thought_without_an_answer_is_left_out() -> None:
    messages = [QUESTION, thought(), QUESTION, thought(), ANSWER, QUESTION, thought()]
    found = copied(*messages, dialect=CLAUDE)
    assert found == [QUESTION, QUESTION, thought(), ANSWER, QUESTION]


@pytest.mark.parametrize("reads_thoughts", [True, False])
def test_a_member_reads_its_own_thoughts_and_no_others(reads_thoughts: bool) -> None:
    frame = LLMThoughtStartFrame(append_to_context=True, llm="anthropic")
    note_author(frame, "claude")
    assert frame.llm is not None
    own = copy.deepcopy(LLMSpecificMessage(frame.llm, thought().message))
    messages = [QUESTION, own, ANSWER]
    for name, found in (("claude", messages), ("other", [QUESTION, ANSWER])):
        dialect = Dialect(name, "anthropic", reads_thoughts=reads_thoughts)
        assert copied(*messages, dialect=dialect) == found
        assert copied(QUESTION, thought(), ANSWER, dialect=dialect) == (
            [QUESTION, thought(), ANSWER] if reads_thoughts else [QUESTION, ANSWER]
        )
    assert copied(*messages) == [QUESTION, ANSWER], "another kind of service"


def test_items_that_a_service_appends_are_its_own() -> None:
    item = copy.deepcopy(REASONING)
    note_author(LLMMessagesAppendFrame([QUESTION, item]), "azure")
    for name, found in (("azure", [item, ANSWER]), ("openai", [ANSWER])):
        assert copied(item, ANSWER, dialect=Dialect(name, "openai_responses")) == found


def test_first_of_the_calls_in_a_row_that_no_gemini_made_is_signed() -> None:
    messages = [
        QUESTION,
        call("1"),
        result("1"),
        call("2"),
        result("2"),
        ANSWER,
        call("3"),
        result("3"),
    ]
    found = copied(*messages, dialect=Dialect("g", "google"))
    signed = [
        m.message["bookmark"]["function_call"] for m in found if isinstance(m, LLMSpecificMessage)
    ]
    assert signed == ["1", "3"]
    assert [m for m in found if not isinstance(m, LLMSpecificMessage)] == messages


# ---- what a provider accepts


def openai(model: str = "gpt", url: str = "http://127.0.0.1/v1") -> OpenAILLMService:
    settings = OpenAILLMService.Settings(model=model)
    return OpenAILLMService(api_key="x", base_url=url, settings=settings)


@pytest.mark.parametrize(
    ("service", "is_mistral"),
    [
        (MistralLLMService(api_key="x"), True),
        (openai(url="https://api.mistral.ai/v1"), True),
        (openai("mistralai/Mistral-Small-3.2-24B"), True),
        (openai("open-mixtral-8x7b"), True),
        (openai("devstral-medium"), True),
        (openai(), False),
        (scripted(), False),
    ],
)
def test_mistral_is_recognised(service: Any, is_mistral: bool) -> None:
    assert dialect_of(service, "m").has_short_ids == is_mistral
    for option in (True, False):
        assert dialect_of(service, "m", has_short_ids=option).has_short_ids == option


def test_short_ids_are_an_option_of_a_provider() -> None:
    assert Provider("a", scripted()).short_tool_ids is None
    assert Provider("a", scripted(), short_tool_ids=True).short_tool_ids is True


def claude(**settings: Any) -> AnthropicLLMService:
    client = AsyncAnthropic(api_key="x", base_url="http://127.0.0.1")
    found = AnthropicLLMService.Settings(**settings)
    return AnthropicLLMService(api_key="x", client=client, settings=found)


def responses(**settings: Any) -> OpenAIResponsesHttpLLMService:
    found = OpenAIResponsesHttpLLMService.Settings(**settings)
    return OpenAIResponsesHttpLLMService(api_key="x", settings=found)


class Bedrock(ScriptedLLMService):
    """Has the adapter and the settings of Pipecat's service, whose client is not installed here."""

    adapter_class = AWSBedrockLLMAdapter

    def __init__(self, **fields: Any):
        super().__init__([])
        self._settings.additional_model_request_fields = fields  # pyright: ignore[reportAttributeAccessIssue]


ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("service", "reads", "needs"),
    [
        (claude(), False, False),
        (claude(thinking={"type": "disabled"}), False, False),
        (claude(thinking={"type": "adaptive"}), True, False),
        (claude(effort="low"), True, False),
        (claude(thinking=AnthropicLLMService.ThinkingConfig(**ENABLED)), True, True),
        (claude(thinking=ENABLED), True, True),
        (claude(extra={"thinking": ENABLED}), True, True),
        (Bedrock(), True, False),
        (Bedrock(thinking=ENABLED), True, True),
        (responses(), False, False),
        (responses(reasoning=OpenAIResponsesReasoningConfig(effort="low")), True, False),
        (responses(extra={"reasoning": {"effort": "low"}}), True, False),
        (openai(), True, False),
    ],
)
def test_thoughts_are_as_the_settings_say(service: Any, reads: bool, needs: bool) -> None:
    found = dialect_of(service, "a")
    assert (found.reads_thoughts, found.needs_thoughts) == (reads, needs)
