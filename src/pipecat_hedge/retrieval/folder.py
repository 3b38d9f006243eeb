"""Finds passages of the text files in a folder, by BM25."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from pipecat_hedge.policy.arguments import require_number
from pipecat_hedge.race.errors import ConfigurationError, missing_extra
from pipecat_hedge.retrieval.retriever import Document

SUFFIXES = (".md", ".txt")
NAMED = 5
"""The most skipped files that the warning names."""


class FolderRetriever:
    """Finds the paragraphs of a folder's text files; a ``Retriever`` without a server or download.

    It matches words, so it serves names, prices and opening hours better than paraphrases.
    """

    def __init__(self, folder: str | Path, *, documents: int = 4, language: str = "english"):
        """Read the folder.

        Args:
            folder: With files ``*.md`` and ``*.txt`` in UTF-8, subfolders included. They are read
                once. What cannot be read, or is a link to another folder's file, is skipped with
                one warning.
            documents: The most passages of an answer.
            language: The language of the words that carry no meaning, as in ``bm25s``.

        Raises:
            ConfigurationError: If there is no text, or ``bm25s`` is not installed.
        """
        what, remedy = "a whole number, at least 1", "4 is the default"
        require_number("documents", documents, what, remedy, lambda x: x >= 1, kind=int)
        try:
            import bm25s
        except ModuleNotFoundError:
            raise missing_extra("FolderRetriever", "bm25s", "retrieval") from None
        self._documents = [
            Document(passage.strip(), path.name)
            for path, text in _texts(Path(folder))
            for passage in re.split(r"\n\s*\n", text)
            if passage.strip()
        ]
        if not self._documents:
            raise ConfigurationError(
                f"folder {str(folder)!r} has no text: put files *.md or *.txt into it"
            )
        self._tokenize, self._language = bm25s.tokenize, language
        self._index = bm25s.BM25()
        try:
            tokens = self._tokens([each.text for each in self._documents])
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"language: {error}: write 'english'") from None
        self._index.index(tokens, show_progress=False)
        self._most = min(documents, len(self._documents))

    async def retrieve(self, query: str) -> Sequence[Document]:
        """Return the passages that share words with the question, the best first."""
        return await asyncio.to_thread(self._find, query)

    def _find(self, query: str) -> Sequence[Document]:
        found, scores = self._index.retrieve(
            self._tokens([query]), k=self._most, show_progress=False
        )
        return [
            self._documents[index]
            for index, score in zip(found[0].tolist(), scores[0].tolist(), strict=True)
            if score > 0
        ]

    def _tokens(self, texts: list[str]) -> Any:
        return self._tokenize(texts, stopwords=self._language, show_progress=False)


def _texts(folder: Path) -> list[tuple[Path, str]]:
    """The folder's text files; a warning names the others."""
    found: list[tuple[Path, str]] = []
    skipped: list[str] = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES):
        try:
            if not path.is_file():
                skipped.append(f"{path.name!r} is no file")
            elif not path.resolve().is_relative_to(folder.resolve()):
                skipped.append(f"{path.name!r} is outside")
            else:
                found.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            skipped.append(f"{path.name!r} is not UTF-8")
        except OSError as e:
            skipped.append(f"{path.name!r}: {e.strerror}")
    if skipped:
        more = ", …" if len(skipped) > NAMED else ""
        names = ", ".join(skipped[:NAMED]) + more
        logger.warning(f"FolderRetriever skips {len(skipped)} in {str(folder)!r}: {names}")
    return found
