"""Answers curated questions: by their words, and if embeddings are given, also by likeness."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipecat_hedge.answers.meaning import Vocabulary
from pipecat_hedge.race.errors import ConfigurationError

Vectors: TypeAlias = Sequence[Sequence[float]]
Embed: TypeAlias = Callable[[Sequence[str]], Vectors | Awaitable[Vectors]]
"""Returns a vector for each text."""

MAX_CHARS = 300
"""No curated question is as long: such a text asks more than one answers."""
_STOPS = re.compile(r"[?!]|[.,;:](?!\d)")


class FaqEntry(BaseModel):
    """A curated answer.

    Attributes:
        questions: How it may be asked; at least once.
        answer: What the bot says.
        valid_until: The last day on which it is true; None is for ever.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: list[str] = Field(min_length=1)
    answer: str = Field(min_length=1)
    valid_until: datetime.date | None = None


@dataclass(frozen=True, slots=True)
class FaqMatch:
    """The entry that is most like a question.

    Parameters:
        entry: The entry.
        question: The one of its questions that is most alike.
        similarity: How alike, from 0 to 1.
    """

    entry: FaqEntry
    question: str
    similarity: float


class Faq:
    """Curated entries."""

    def __init__(
        self,
        entries: str | Path | Iterable[FaqEntry],
        *,
        embed: Embed | None = None,
        synonyms: Iterable[Sequence[str]] = (),
    ):
        """Read the entries.

        Args:
            entries: A TOML file with ``[[entries]]`` and optional ``synonyms``, or the entries.
            embed: Embeds texts: a function of a list that returns a vector for each, called in a
                thread, or a coroutine function. None compares words.
            synonyms: Groups of words that mean the same here.

        Raises:
            ConfigurationError: If the file cannot be read or an entry is wrong; it names the field.
        """
        groups = list(synonyms)
        if isinstance(entries, (str, Path)):
            entries, of_file = _read(Path(entries))
            groups += of_file
        self._entries = list(entries)
        self._embed = embed
        self._vocabulary = Vocabulary(groups)
        self._asked = [(entry, question) for entry in self._entries for question in entry.questions]
        self._spelt = [_spelt(question) for _, question in self._asked]
        self._words = [self._vocabulary.words(question) for _, question in self._asked]
        self._embedding: asyncio.Task[np.ndarray] | None = None

    async def prepare(self) -> None:
        """Embed the curated questions once, also if the waiting task is cancelled."""
        if self._embed is None:
            return
        if self._embedding is None or _has_failed(self._embedding):
            questions = [question for _, question in self._asked]
            self._embedding = asyncio.create_task(self._embedded(questions))
        await asyncio.shield(self._embedding)

    async def match(
        self, text: str, threshold: float, today: datetime.date, *, is_first: bool = False
    ) -> FaqMatch | None:
        """Return the valid entry that asks the same as a text; None if several do, equally alike.

        An entry's own question always finds it; of entries with the same, the first.

        Args:
            text: The caller's question.
            threshold: The least similarity, from 0 to 1; without embeddings all have 1.
            today: Entries that are no longer valid do not count.
            is_first: Whether nothing was said before that it could refer to.
        """
        valid = [
            number
            for number, (entry, _) in enumerate(self._asked)
            if entry.valid_until is None or today <= entry.valid_until
        ]
        spelt = _spelt(text)
        if own := [number for number in valid if self._spelt[number] == spelt]:
            return FaqMatch(*self._asked[max(own, key=lambda n: self._asked[n][1] == text)], 1.0)
        if len(text) > MAX_CHARS or not (is_first or self._vocabulary.stands_alone(text)):
            return None
        words = self._vocabulary.words(text)
        allowed = [number for number in valid if words and self._words[number] == words]
        if not allowed:
            return None
        alike = await self._similarities(text, allowed)
        best = int(np.argmax(alike))
        if alike[best] < threshold:
            return None
        entry, question = self._asked[allowed[best]]
        tied = [self._asked[number] for number in np.compress(alike == alike[best], allowed)]
        if any(other.answer != entry.answer and asks != question for other, asks in tied):
            return None
        return FaqMatch(entry, question, float(alike[best]))

    async def _similarities(self, text: str, numbers: Sequence[int]) -> np.ndarray:
        if self._embed is None:
            return np.ones(len(numbers))
        await self.prepare()
        assert self._embedding is not None
        (vector,) = await self._embedded([text])
        return self._embedding.result()[list(numbers)] @ vector

    async def _embedded(self, texts: Sequence[str]) -> np.ndarray:
        assert self._embed is not None
        is_async = inspect.iscoroutinefunction(self._embed)
        found = self._embed(texts) if is_async else await asyncio.to_thread(self._embed, texts)
        vectors = np.asarray(await found if inspect.isawaitable(found) else found, np.float64)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise ConfigurationError(
                f"embed must return a vector for each text, got an array of shape {vectors.shape}"
            )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _has_failed(task: asyncio.Task[np.ndarray]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _spelt(text: str) -> str:
    """Return a text without what transcripts spell differently."""
    return " ".join(_STOPS.sub(" ", text.casefold().replace("’", "'")).split())


def _read(path: Path) -> tuple[list[FaqEntry], list[list[str]]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"faq {str(path)!r} cannot be read: {error}") from None
    if unknown := content.keys() - {"entries", "synonyms"}:
        raise ConfigurationError(
            f"faq {str(path)!r} has {unknown.pop()!r}: it takes [[entries]] and synonyms"
        )
    try:
        entries = TypeAdapter(list[FaqEntry]).validate_python(content.get("entries", []))
        synonyms = TypeAdapter(list[list[str]]).validate_python(content.get("synonyms", []))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"faq {str(path)!r}: {where}: {first['msg']}") from None
    if not entries:
        raise ConfigurationError(f"faq {str(path)!r} has no [[entries]]")
    return entries, synonyms
