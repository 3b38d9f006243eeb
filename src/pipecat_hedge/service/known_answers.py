"""Answers that are known before any provider is asked, and what they answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.services.llm_service import LLMService

__all__ = ["KnownAnswers", "Question"]


@dataclass(frozen=True, slots=True)
class Question:
    """A turn as a question.

    Parameters:
        text: The caller's words, if they are the last message; else empty, as after a tool ran.
        has_tools: Whether the model may call tools.
        key: Equal only for the same models, settings, instructions, tools and messages.
        is_first: Whether nothing was said before.
    """

    text: str
    has_tools: bool
    key: str
    is_first: bool

    @classmethod
    def of(cls, context: LLMContext, members: Iterable[LLMService[Any]]) -> Question:
        """Return a context as a question to these services."""
        messages = context.messages
        last = messages[-1] if messages else {}
        content = last.get("content") if isinstance(last, Mapping) else None
        is_callers = isinstance(last, Mapping) and last.get("role") == "user"
        asked = [m.message if isinstance(m, LLMSpecificMessage) else m for m in messages]
        settings = sorted(json.dumps(_settings(each), default=str) for each in members)
        whole = json.dumps(
            [asked, context.tools, context.tool_choice, settings], default=_plain, sort_keys=True
        )
        text = content if is_callers and isinstance(content, str) else ""
        before = [m.get("role") if isinstance(m, Mapping) else None for m in asked[:-1]]
        is_first = all(role in ("system", "developer") for role in before)
        key = hashlib.sha256(whole.encode()).hexdigest()
        return cls(text, bool(context.tools), key, is_first)


@runtime_checkable
class KnownAnswers(Protocol):
    """Knows answers."""

    name: str
    """Its name in reports."""

    async def find(self, question: Question) -> str | None:
        """Return the answer; None if it is not known."""
        ...

    async def learn(self, question: Question, answer: str) -> None:
        """Take note of what a provider has answered, without tools and in whole."""
        ...


def _settings(service: LLMService[Any]) -> list[Any]:
    return [type(service).__name__, sorted(service.settings.given_fields().items())]


def _plain(value: Any) -> Any:
    return getattr(value, "__dict__", None) or str(value)
