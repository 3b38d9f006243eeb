"""Answers turns from known answers, before a provider is asked."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from loguru import logger
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.services.llm_service import LLMService
from pipecat.utils.types import NotGiven

from pipecat_hedge.policy.arguments import require
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.service.provider_client import base_url

KNOWN_WITHIN_SECS = 0.1
"""How long a source of known answers may take; then a provider is asked."""


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
            [asked, _offered(context.tools), context.tool_choice, settings],
            default=_plain,
            sort_keys=True,
        )
        text = content if is_callers and isinstance(content, str) else ""
        before = [m.get("role") if isinstance(m, Mapping) else None for m in asked[:-1]]
        is_first = all(role in ("system", "developer") for role in before)
        key = hashlib.sha256(whole.encode()).hexdigest()
        return cls(text, bool(context.tools), key, is_first)


@runtime_checkable
class KnownAnswers(Protocol):
    """A source of known answers. Its ``prepare()``, if any, is awaited before the first turn."""

    name: str
    """Its name in reports."""

    async def find(self, question: Question) -> str | None:
        """Return the answer; None if it is not known."""
        ...

    async def learn(self, question: Question, answer: str) -> None:
        """Learn a provider's whole answer, if it called no tools."""
        ...


class AnswerSources:
    """The sources of known answers of a session, in the order in which they are asked."""

    def __init__(self, sources: Sequence[KnownAnswers]):
        """Check the sources.

        Raises:
            ConfigurationError: If one lacks a method; the message says what to write.
        """
        remedy = "write [ExactAnswers(ttl_secs=3600)]"
        require("answers", sources, (list, tuple), remedy, may_be_none=False)
        for source in sources:
            if not isinstance(source, KnownAnswers):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"answers must be objects with name, find and learn, got {source!r}: {remedy}"
                )
        self._sources = tuple(sources)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._sources)

    async def prepare(self) -> None:
        """Prepare the sources that can be; a failure is logged as a warning."""
        for source in self._sources:
            try:
                if (ready := getattr(source, "prepare", None)) is not None:
                    await ready()
            except Exception as error:
                logger.warning(f"{source.name} answers are not prepared: {type(error).__name__}")

    async def find(self, question: Question) -> tuple[str, str] | None:
        """Return the first source with an answer, and the answer; None without one."""
        for source in self._sources:
            try:
                async with asyncio.timeout(KNOWN_WITHIN_SECS):
                    text = await source.find(question)
            except Exception as error:  # then a provider answers
                logger.warning(f"{source.name} answers failed: {type(error).__name__}")
                continue
            if text is not None:
                return source.name, text
        return None

    async def learn(self, question: Question, answer: str) -> None:
        """Give every source a provider's answer."""
        for source in self._sources:
            try:
                await source.learn(question, answer)
            except Exception as error:
                logger.warning(f"{source.name} keeps nothing: {type(error).__name__}")


class HeldAnswer:
    """A known answer to a speculative turn, until the turn is confirmed or withdrawn.

    Owns the time of the turn's end: None if the caller spoke on.
    """

    def __init__(self) -> None:
        """Begin to wait."""
        self._loop = asyncio.get_running_loop()
        self._confirmed_at: asyncio.Future[float | None] = self._loop.create_future()

    def end_speculation(self, *, is_confirmed: bool) -> None:
        """See ``Turn.end_speculation``."""
        if not self._confirmed_at.done():
            self._confirmed_at.set_result(self._loop.time() if is_confirmed else None)

    async def report(self, report: TurnReport, began: float) -> TurnReport:
        """Return the turn's report, once it is confirmed or withdrawn.

        Args:
            report: The report of a turn that has ended.
            began: When the turn began, in the loop's time.
        """
        at = await self._confirmed_at
        if at is None:
            return dataclasses.replace(report, outcome="withdrawn", known_answer=None)
        return dataclasses.replace(report, confirmed_secs=at - began)


def _settings(service: LLMService[Any]) -> list[Any]:
    fields = sorted(service.settings.given_fields().items())
    return [type(service).__name__, base_url(service), fields]


def _offered(tools: ToolsSchema | NotGiven) -> Any:
    """The tools in the prompt, without their handlers, which differ between sessions."""
    if not isinstance(tools, ToolsSchema):
        return None
    custom = {kind.value: each for kind, each in (tools.custom_tools or {}).items()}
    return [[tool.to_default_dict() for tool in tools.standard_tools], custom]


def _plain(value: Any) -> Any:
    return getattr(value, "__dict__", None) or str(value)
