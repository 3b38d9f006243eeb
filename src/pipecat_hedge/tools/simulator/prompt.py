"""What a request asks, whichever wire it came over."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class PromptError(ValueError):
    """A request body that no provider would accept; the message names the field."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the conversation.

    Parameters:
        role: ``user``, ``assistant``, ``instructions`` (system and developer) or ``tool``.
        text: Its text; for ``tool`` the result.
    """

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request for an answer.

    Parameters:
        turns: The conversation, oldest first.
        tools: Names of the tools that may be called.
        stream: Whether the answer is to be streamed.
        max_tokens: The most tokens to answer with.
        include_usage: Whether a stream is to end with its usage (a choice on the OpenAI wire only).
        input_tokens: Estimated length of the whole, four characters a token.
    """

    turns: tuple[Turn, ...]
    tools: tuple[str, ...]
    stream: bool
    max_tokens: int | None
    include_usage: bool
    input_tokens: int


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of blocks of which only text counts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(
        block["text"]
        for block in content
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    )


def required_list(body: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """A list of objects from a request body.

    Raises:
        PromptError: If it is missing or something else.
    """
    value = body.get(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise PromptError(f"{field}: expected a list of objects")
    return value


def optional_count(body: dict[str, Any], field: str) -> int | None:
    """A whole number of at least 1 from a request body, None if it is not there.

    Raises:
        PromptError: If it is something else.
    """
    value = body.get(field)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise PromptError(f"{field}: expected a whole number of at least 1")
    return value


def estimate_tokens(texts: Iterable[str]) -> int:
    """About how many tokens some texts have, at least 1."""
    return max(1, sum(map(len, texts)) // 4)
