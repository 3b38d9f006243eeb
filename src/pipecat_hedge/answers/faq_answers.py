"""Curated answers as a source of known answers, first in shadow mode."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipecat_hedge.answers.faq import Embed, Faq, FaqEntry
from pipecat_hedge.policy.arguments import require_number
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.known_answers import Question
from pipecat_hedge.service.line_log import LineLog

THRESHOLD = 0.92
"""Opposites can be 0.98 alike, so it only excludes questions about something else."""


class FaqAnswers:
    """Curated answers to English questions that stand alone. Experimental.

    What is said first always stands alone. In shadow mode it answers nothing. What it would have
    said is written beside what was said, to ``shadow_log``, for ``pipecat-hedge compare``.
    """

    name = "faq"

    def __init__(
        self,
        entries: str | Path | Iterable[FaqEntry],
        *,
        threshold: float | None = None,
        shadow: bool = False,
        shadow_log: str | Path = "shadow.jsonl",
        embed: Embed | None = None,
        synonyms: Iterable[Sequence[str]] = (),
        with_tools: bool = False,
        today: Callable[[], datetime.date] = datetime.date.today,
    ):
        """Read the entries.

        Args:
            entries: A TOML file with ``[[entries]]``: ``questions``, ``answer`` and optionally
                ``valid_until``; or the entries.
            threshold: The least likeness of the embeddings of a question and an entry, from 0 to 1;
                0.92 by default. Only with ``embed``.
            shadow: Whether only to write down what it would have said.
            shadow_log: The file for that; it contains what callers and models said.
            embed: Embeds texts, as for ``Faq``: the questions when a session starts, and what
                callers say. None compares words.
            synonyms: Groups of words that mean the same here.
            with_tools: Whether to answer turns that offer tools, too.
            today: Returns the date.

        Raises:
            ConfigurationError: If an argument or an entry is invalid; the message names it.
        """
        if threshold is None:
            threshold = THRESHOLD
        elif embed is None:
            raise ConfigurationError(
                "threshold compares embeddings: give embed, too, or leave it out"
            )
        remedy = f"{THRESHOLD} is the default, 1 is the same question"
        require_number("threshold", threshold, "from 0 to 1", remedy, lambda x: 0 <= x <= 1)
        self._faq = Faq(entries, embed=embed, synonyms=synonyms)
        self._threshold, self._with_tools, self._today = threshold, with_tools, today
        self._shadow_log = LineLog("shadow_log", shadow_log if shadow else None)

    async def prepare(self) -> None:
        """Embed the curated questions; see ``KnownAnswers``."""
        await self._faq.prepare()

    async def find(self, question: Question) -> str | None:
        """Return the answer of the entry that asks the same; see ``KnownAnswers``."""
        if self._shadow_log:
            return None
        found = await self._match(question)
        return None if found is None else found[0]

    async def learn(self, question: Question, answer: str) -> None:
        """In shadow mode, write down what it would have said; see ``KnownAnswers``."""
        if not self._shadow_log or (found := await self._match(question)) is None:
            return
        would_say, similarity = found
        record = {
            "at": time.time(),
            "question": question.text,
            "source": self.name,
            "similarity": round(similarity, 4),
            "answers": {"said": answer, self.name: would_say},
        }
        self._shadow_log.append(json.dumps(record, ensure_ascii=False))

    async def _match(self, question: Question) -> tuple[str, float] | None:
        if not question.text or (question.has_tools and not self._with_tools):
            return None
        found = await self._faq.match(
            question.text, self._threshold, self._today(), is_first=question.is_first
        )
        return None if found is None else (found.entry.answer, found.similarity)
