"""Makes a member's copy of a conversation portable: its provider accepts what others wrote in it.

Pure: messages in, messages out. A message that needs no change stays the same object, and no change
depends on later messages, so that a turn's prompt begins like the one before and is found in the
provider's prefix cache.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipecat.frames.frames import Frame, LLMMessagesAppendFrame, LLMThoughtStartFrame
from pipecat.processors.aggregators import async_tool_messages
from pipecat.processors.aggregators.llm_context import (
    LLMContext,
    LLMContextMessage,
    LLMSpecificMessage,
    standard_message_text,
)

from pipecat_hedge.service.token_budget import role_of, trimmed

Messages: TypeAlias = Sequence[LLMContextMessage]

MOST_CHARS = 40
"""The length of a generated id: the most that OpenAI accepts."""
SHORT_CHARS = 9
"""The length that Mistral requires."""
_VALID_ID = {False: re.compile(r"[a-zA-Z0-9_-]{1,40}"), True: re.compile(r"[a-zA-Z0-9]{9}")}
_CHARS = string.digits + string.ascii_letters
_UNCHECKED_SIGNATURE = b"skip_thought_signature_validator"
"""What Google documents for calls that no Gemini made."""


class AddedMessage(dict[str, Any]):
    """A message that this package has put into the conversation, such as retrieved documents.

    It keeps its place and role there. In a member's copy it is a part of the caller's message.
    """


class _Author(str):
    """The kind of a service-specific message, and the provider that wrote it."""

    provider: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the provider of a request accepts.

    Parameters:
        provider: Its name.
        kind: The kind of service-specific messages that it reads.
        has_short_ids: Whether ids of tool calls must be nine letters or digits.
        reads_thoughts: Whether it reads thoughts of an unknown author.
        needs_thoughts: Whether it rejects a tool call before which it has not thought.
    """

    provider: str = ""
    kind: str = "openai"
    has_short_ids: bool = False
    reads_thoughts: bool = True
    needs_thoughts: bool = False


def prompt_of(context: LLMContext) -> LLMContext:
    """Return a conversation as it is now, for all requests of a turn.

    What is written into the conversation meanwhile, such as the caller's next words, another node's
    messages and tools, or a late tool result, belongs to later turns.
    """
    messages = [copy.copy(m) if isinstance(m, dict) else m for m in context.messages]
    return LLMContext(messages, tools=context.tools, tool_choice=context.tool_choice)


def portable(
    messages: Messages,
    dialect: Dialect,
    *,
    most_tokens: int | None = None,
    addition: Messages = (),
) -> list[LLMContextMessage]:
    """Return a conversation as a provider accepts it.

    Args:
        messages: The conversation.
        dialect: What the provider accepts.
        most_tokens: The most tokens, see ``trimmed``; None is unlimited.
        addition: Further messages for this request. One with the role of the message before it
            becomes a part of that.
    """
    found = _with_portable_ids(messages, is_short=dialect.has_short_ids)
    found = [message for message in found if _is_readable(message, dialect)]
    found = trimmed(_with_additions_merged(found), most_tokens)
    if dialect.needs_thoughts:
        found = _with_unthought_calls_as_text(found)
    if dialect.kind == "google":
        found = _with_calls_signed(found)
    for message in addition:
        _append(found, message)
    return _without_loose_thoughts(found)


def note_author(frame: Frame, provider: str) -> None:
    """Mark what a frame adds to the conversation for its own service with its provider.

    Such a message is encrypted or signed, and another account or model may reject it.
    """
    if isinstance(frame, LLMThoughtStartFrame) and frame.llm is not None:
        frame.llm = _author(frame.llm, provider)
    elif isinstance(frame, LLMMessagesAppendFrame):
        for message in frame.messages:
            if isinstance(message, LLMSpecificMessage):
                message.llm = _author(message.llm, provider)


def _author(kind: str, provider: str) -> _Author:
    author = _Author(kind)
    author.provider = provider
    return author


def _is_readable(message: LLMContextMessage, dialect: Dialect) -> bool:
    if not isinstance(message, LLMSpecificMessage):
        return True
    if message.llm != dialect.kind:
        return False
    if isinstance(message.llm, _Author):
        return message.llm.provider == dialect.provider
    return dialect.reads_thoughts or not _is_thought(message)


# ---- ids of tool calls


def portable_id(original: str, *, is_short: bool = False) -> str:
    """Return a valid id of a tool call for any: a valid one unchanged, or else a digest of it.

    Args:
        original: The id.
        is_short: Whether it must be nine letters or digits.
    """
    if _VALID_ID[is_short].fullmatch(original):
        return original
    number = int.from_bytes(hashlib.sha256(original.encode(errors="surrogatepass")).digest())
    chars = list[str]()
    for _ in range(SHORT_CHARS if is_short else MOST_CHARS):
        number, index = divmod(number, len(_CHARS))
        chars.append(_CHARS[index])
    return "".join(chars)


def _with_portable_ids(messages: Messages, *, is_short: bool) -> list[LLMContextMessage]:
    """Return the messages with valid ids of tool calls, of which no two are the same.

    Some servers send no id, or number the calls of each answer from zero. So each call of an id
    that was there before gets one of its own, and results are matched in the order of the calls.
    """
    ids = _portable_ids(messages, is_short=is_short)
    called, answered = Counter[str](), Counter[str]()

    def id_of(original: str, number: int) -> str:
        known = ids.get(original)
        if known is None:  # a result whose call is not in the conversation
            return portable_id(original, is_short=is_short)
        return known[min(max(number, 0), len(known) - 1)]

    found = list[LLMContextMessage]()
    for message in messages:
        replaced: Any = message
        if isinstance(message, LLMSpecificMessage):
            if original := _signed_call(message):
                call_id = id_of(original, called[original])
                if call_id != original:
                    bookmark = {**message.message["bookmark"], "function_call": call_id}
                    content = {**message.message, "bookmark": bookmark}
                    replaced = LLMSpecificMessage(message.llm, content)
            found.append(replaced)
            continue
        if calls := _calls(message):
            renamed = list[Any]()
            for call in calls:
                original = _text(call.get("id"))
                renamed.append(_with(call, "id", id_of(original, called[original])))
                called[original] += 1
            if any(new is not old for new, old in zip(renamed, calls, strict=True)):
                replaced = {**message, "tool_calls": renamed}
        elif role_of(message) == "tool":
            original = _text(message.get("tool_call_id"))
            call_id = id_of(original, answered[original])
            answered[original] += 1
            replaced = _with(_with_id_in_text(message, call_id), "tool_call_id", call_id)
        elif original := _late_result_of(message):
            replaced = _with_id_in_text(message, id_of(original, called[original] - 1))
        found.append(replaced)
    return found


def _portable_ids(messages: Messages, *, is_short: bool) -> dict[str, list[str]]:
    """The new ids of all calls, by their original one and in order."""
    originals = [_text(call.get("id")) for message in messages for call in _calls(message)]
    taken = {each for each in originals if _VALID_ID[is_short].fullmatch(each)}
    ids: dict[str, list[str]] = {}
    for original in originals:
        known = ids.setdefault(original, [])
        if not known and original in taken:
            known.append(original)
            continue
        name = f"{original}\n{len(known)}" if known else original
        while (new := portable_id(name, is_short=is_short)) in taken:
            name += "\n"  # never a valid id, so that its digest is another one
        taken.add(new)
        known.append(new)
    return ids


def _late_result_of(message: Any) -> str:
    """The id in the text of Pipecat's message with a late result; empty if it is none."""
    text = message.get("content")
    if not isinstance(text, str) or '"async_tool"' not in text:
        return ""
    payload = async_tool_messages.parse_message(message)
    return "" if payload is None else payload.tool_call_id


def _with_id_in_text(message: Any, call_id: str) -> Any:
    original = _late_result_of(message)
    if not original or original == call_id:
        return message
    old, new = (
        json.dumps({"tool_call_id": each}, ensure_ascii=False)[1:-1] for each in (original, call_id)
    )
    return {**message, "content": message["content"].replace(old, new, 1)}


def _signed_call(message: LLMSpecificMessage) -> str:
    """The id of the call that a thought signature of Gemini is for; empty if there is none."""
    content = message.message
    if not isinstance(content, Mapping) or content.get("type") != "thought_signature":
        return ""
    bookmark: Any = content.get("bookmark")
    return _text(bookmark.get("function_call")) if isinstance(bookmark, Mapping) else ""


# ---- roles


def _with_additions_merged(messages: Messages) -> list[LLMContextMessage]:
    """Make each message of ours a part of the caller's.

    A strict chat template knows no other role, and no two messages of one role in a row.
    """
    found, was_added = list[LLMContextMessage](), False
    for message in messages:
        is_added = isinstance(message, AddedMessage)
        if is_added:
            _append(found, {"role": "user", "content": message["content"]})
        elif was_added:
            _append(found, message)
        else:
            found.append(message)
        was_added = is_added
    return found


def _append(messages: list[LLMContextMessage], message: LLMContextMessage) -> None:
    """Append a message, or make it a part of the last one if that has the same role."""
    index = next((n for n in reversed(range(len(messages))) if role_of(messages[n])), -1)
    last: Any = messages[index] if messages else {}
    is_own_format = _is_specific(last) or _is_specific(message)
    if role_of(last) != role_of(message) or is_own_format or _calls(last):
        messages.append(message)
    else:
        merged: Any = {**last, **message, "content": _joined([last, message])}  # pyright: ignore[reportGeneralTypeIssues]
        messages[index] = merged


def _joined(messages: Messages) -> Any:
    """The content of several messages as that of one."""
    contents: list[Any] = [message.get("content") or "" for message in messages]  # pyright: ignore[reportAttributeAccessIssue]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if content)
    parts = list[Any]()
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


# ---- thoughts


def _with_unthought_calls_as_text(messages: Messages) -> list[LLMContextMessage]:
    """Write each tool call without a thought before it, and its result, as text.

    Claude, set to think, rejects the call of another model. The words are on the caller's side, so
    that Claude does not learn to say such things itself.
    """
    found, calls = list[LLMContextMessage](), dict[str, Any]()
    before, begins_with_thought = "", False
    for message in messages:
        role = "assistant" if _is_thought(message) else role_of(message)
        if role != before:
            before, begins_with_thought = role, _is_thought(message)
        if not begins_with_thought and (its_calls := _calls(message)):
            calls |= {call["id"]: call["function"] for call in its_calls}
            if text := standard_message_text(message):
                found.append({"role": "assistant", "content": text})
            continue
        call_id = "" if _is_specific(message) else message.get("tool_call_id")  # pyright: ignore[reportAttributeAccessIssue]
        if role != "tool" or call_id not in calls:
            found.append(message)
            continue
        name, arguments = calls[call_id].get("name"), calls[call_id].get("arguments")
        result = standard_message_text(message)
        text = f"The tool {name} was called with {arguments}, and returned: {result}"
        found.append({"role": "user", "content": text})
    return found


def _with_calls_signed(messages: Messages) -> list[LLMContextMessage]:
    """Sign the first of consecutive calls that no Gemini made, as Google documents.

    Pipecat's adapter signs them, too, but only after it has moved each unsigned call to the last
    signed one before, as if both had been made at once: into another turn.
    """
    signed = {_signed_call(m) for m in messages if isinstance(m, LLMSpecificMessage)}
    found, is_in_a_row = list[LLMContextMessage](), False
    for message in messages:
        if not isinstance(message, LLMSpecificMessage):
            calls = _calls(message)
            if len(calls) == 1 and not is_in_a_row and calls[0]["id"] not in signed:
                content = {"type": "thought_signature", "signature": _UNCHECKED_SIGNATURE}
                content |= {"bookmark": {"function_call": calls[0]["id"]}}
                found.append(LLMSpecificMessage("google", content))
            is_in_a_row = bool(calls) or role_of(message) == "tool"
        found.append(message)
    return found


def _without_loose_thoughts(messages: Messages) -> list[LLMContextMessage]:
    """Leave out thoughts without an answer, as after an interruption: vendors reject them."""
    found, next_role = list[LLMContextMessage](), ""
    for message in reversed(messages):
        if _is_thought(message) and next_role != "assistant":
            continue
        found.append(message)
        next_role = role_of(message) or next_role
    return found[::-1]


def _is_thought(message: LLMContextMessage) -> bool:
    content: Any = message.message if isinstance(message, LLMSpecificMessage) else None
    return isinstance(content, Mapping) and content.get("type") in ("thought", "reasoning")


def _is_specific(message: LLMContextMessage) -> bool:
    return isinstance(message, LLMSpecificMessage)


def _calls(message: LLMContextMessage) -> Sequence[Any]:
    return () if isinstance(message, LLMSpecificMessage) else message.get("tool_calls") or ()  # pyright: ignore[reportReturnType]


def _with(message: Any, field: str, value: str) -> Any:
    return message if message.get(field) == value else {**message, field: value}


def _text(value: object) -> str:
    return "" if value is None else str(value)
