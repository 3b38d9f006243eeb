"""Repeats an answer to exactly the same turn: greetings, and calls that follow a script."""

from __future__ import annotations

import time
from collections import OrderedDict

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.known_answers import Question

__all__ = ["ExactAnswers"]


class ExactAnswers:
    """Answers of the same models, settings, instructions, tools and messages, for some time.

    In memory, and shared by the sessions that are given the same object. A turn that offers tools
    is not answered: the same words may need another call.
    """

    name = "exact"

    def __init__(
        self,
        ttl_secs: float,
        *,
        most_mb: float = 16.0,
        with_tools: bool = False,
    ):
        """Start without answers.

        Args:
            ttl_secs: How long an answer may be repeated, in seconds.
            most_mb: The most memory, in MB; the answers used least lately go first.
            with_tools: Whether to answer turns that offer tools, too.

        Raises:
            ConfigurationError: If a number is not positive.
        """
        for name, value in (("ttl_secs", ttl_secs), ("most_mb", most_mb)):
            if not value > 0:
                raise ConfigurationError(f"{name} must be positive, got {value!r}")
        self._ttl_secs, self._most_bytes = ttl_secs, most_mb * 1e6
        self._with_tools = with_tools
        self._answers: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._bytes = 0

    async def find(self, question: Question) -> str | None:
        """Return the answer to the same turn; see ``KnownAnswers``."""
        if question.has_tools and not self._with_tools:
            return None
        found = self._answers.get(question.key)
        if found is None:
            return None
        until, answer = found
        if time.monotonic() >= until:
            self._forget(question.key)
            return None
        self._answers.move_to_end(question.key)
        return answer

    async def learn(self, question: Question, answer: str) -> None:
        """Keep an answer; see ``KnownAnswers``."""
        if question.has_tools and not self._with_tools:
            return
        self._forget(question.key)
        self._answers[question.key] = time.monotonic() + self._ttl_secs, answer
        self._bytes += _size(question.key, answer)
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: str) -> None:
        if (found := self._answers.pop(key, None)) is not None:
            self._bytes -= _size(key, found[1])


def _size(key: str, answer: str) -> int:
    return len(key) + len(answer.encode()) + 200
