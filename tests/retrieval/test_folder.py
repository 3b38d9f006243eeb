"""Passages of text files, by the words that they share with a question."""

from __future__ import annotations

import os
from pathlib import Path

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


async def test_what_is_no_text_of_the_folder_is_skipped_with_one_warning(
    tmp_path: Path, logged: list[str]
) -> None:
    folder, outside = tmp_path / "docs", tmp_path / "secret.txt"
    (folder / "folder.md").mkdir(parents=True)
    outside.write_text("The secret door.")
    (folder / "outside.txt").symlink_to(outside)
    (folder / "parent").symlink_to(tmp_path)
    (folder / "dangling.md").symlink_to("nowhere.md")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "latin.md").write_bytes("Die Tür ist offen.".encode("latin-1"))
    os.mkfifo(folder / "pipe.txt")
    (folder / "folder.md" / "door.md").write_text("The door is open.")
    (folder / "linked.txt").symlink_to("folder.md/door.md")
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    for path in (folder, linked):
        logged.clear()
        found = await FolderRetriever(path).retrieve("Is the secret door open?")
        assert {each.source for each in found} == {"door.md", "linked.txt"}
        (warning,) = logged
        assert warning.startswith("WARNING: FolderRetriever skips 6 in ")
        assert "'latin.md' is not UTF-8" in warning
        assert warning.count("' is no file") >= 3
