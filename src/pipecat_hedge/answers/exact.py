"""Repeats an answer to exactly the same turn: greetings, and calls that follow a script."""

from __future__ import annotations

import math
from pathlib import Path

from pipecat_hedge.answers.store import open_store
from pipecat_hedge.policy.arguments import require, require_number
from pipecat_hedge.service.known_answers import Question


class ExactAnswers:
    """Answers of the same models, settings, instructions, tools and messages, for some time.

    In memory, and shared by the sessions that are given the same object; or in a file or a Redis,
    which processes share. A turn that offers tools is not answered: the same words may need another
    call.
    """

    name = "exact"

    def __init__(
        self,
        ttl_secs: float,
        *,
        tenant: str = "",
        most_mb: float = 16.0,
        path: str | Path | None = None,
        redis_url: str | None = None,
        with_tools: bool = False,
    ):
        """Open the store.

        Args:
            ttl_secs: How long an answer may be repeated, in seconds.
            tenant: Whose answers they are: those of another tenant in the same file or Redis are
                not found.
            most_mb: The most that is kept in memory or in the file, in MB.
            path: A file that keeps the answers between runs.
            redis_url: A Redis that machines share.
            with_tools: Whether to answer turns that offer tools, too.

        Raises:
            ConfigurationError: If a number is not positive, both a file and a Redis are named, or
                redis-py is not installed.
        """
        remedy = "3600 is an hour"
        require_number(
            *("ttl_secs", ttl_secs, "positive and finite", remedy), lambda x: 0 < x < math.inf
        )
        require("tenant", tenant, str, "write its name", may_be_none=False)
        self._ttl_secs, self._tenant, self._with_tools = ttl_secs, tenant, with_tools
        self._store = open_store(most_mb=most_mb, path=path, redis_url=redis_url)

    async def find(self, question: Question) -> str | None:
        """Return the answer to the same turn; see ``KnownAnswers``."""
        if question.has_tools and not self._with_tools:
            return None
        answer = await self._store.get(self._key(question))
        return None if answer is None else answer.decode()

    async def learn(self, question: Question, answer: str) -> None:
        """Keep an answer; see ``KnownAnswers``."""
        if self._with_tools or not question.has_tools:
            await self._store.put(self._key(question), answer.encode(), self._ttl_secs)

    async def close(self) -> None:
        """Close the file, or the connections to the Redis."""
        await self._store.close()

    def _key(self, question: Question) -> str:
        return f"exact:{self._tenant}:{question.key}"
