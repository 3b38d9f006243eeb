"""Passages of text files, by the words that they share with a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.retrieval import Document, FolderRetriever


async def test_best_passage_comes_first_and_unrelated_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "hours.md").write_text("We open at noon.\n\nOn Sunday we close at nine.")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "parking.txt").write_text("Parking costs two euros an hour.")
    (tmp_path / "ignored.json").write_text('{"parking": 9}')
    retriever = FolderRetriever(tmp_path)
    assert await retriever.retrieve("What does parking cost?") == [
        Document("Parking costs two euros an hour.", "parking.txt")
    ]
    assert (await retriever.retrieve("when do you close on sunday"))[0].source == "hours.md"
    assert await retriever.retrieve("xylophone") == []


def test_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no text: put files \*\.md"):
        FolderRetriever(tmp_path)
