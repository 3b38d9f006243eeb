"""Continuing an answer that broke off: nothing repeated, nothing missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.continuation import Continuation

SAID = "We are open till nine. Shall I"

CASES = {
    "continues as instructed": (SAID, " book a table?", " book a table?"),
    "a new sentence after a whole one": ("We are open.", "Shall I book?", " Shall I book?"),
    "begins the broken sentence again": (SAID, "Shall I book a table?", " book a table?"),
    "gives the whole answer again": (SAID, SAID + " book a table?", " book a table?"),
    "gives it again with other spacing and case": (
        SAID,
        "we are open  till nine!\nShall I book a table?",
        " book a table?",
    ),
    "repeats a sentence and goes on differently": (
        SAID,
        "We are open till nine. We close late on Friday.",
        " We close late on Friday.",
    ),
    "begins alike and says something else": (
        SAID,
        "We are closed on Sunday.",
        " We are closed on Sunday.",
    ),
    "repeats everything and stops": ("We are open till nine.", "We are open till nine.", ""),
    "repeats the beginning of a sentence and stops": (SAID, "We are open", " We are open"),
    "goes on in a script without spaces": ("我们开到九", "点。", "点。"),
    "begins with the fragment's first word, which also begins the answer": (
        "I can help with that. I",
        "I can help with that. I need your name.",
        " need your name.",
    ),
    "begins like the answer, and goes on from the fragment": (
        "I can help with that. I",
        "I need your name.",
        " need your name.",
    ),
    "repeats a sentence in another script": (
        "हम नौ बजे तक खुले हैं। क्या",
        "हम नौ बजे तक खुले हैं। क्या मैं टेबल बुक करूं?",
        " मैं टेबल बुक करूं?",
    ),
    "repeats a sentence with a letter that folds to two": (
        "Die Straße ist offen. Soll",
        "Die Straße ist offen. Soll ich buchen?",
        " ich buchen?",
    ),
    "agrees to the point of a number": (
        "It costs 3.50 euros.",
        "It costs 3.80 euros.",
        " It costs 3.80 euros.",
    ),
    "begins with a marker of turn completion": (SAID, "● book a table?", " book a table?"),
    "gives the whole answer again, marker included": (
        f"● {SAID}",
        f"● {SAID} book a table?",
        " book a table?",
    ),
    "nothing was said": ("", "Good evening.", "Good evening."),
    "only a dash was said": ("— ", "Good evening.", "Good evening."),
    "what was said ends in a space": ("The ", " kitchen closes.", "kitchen closes."),
    "repeats a clause with its comma": (
        "Till nine. Do come by,",
        "Till nine. Do come by, we have room.",
        " we have room.",
    ),
    "starts with a comma": ("Well", ", we are open.", ", we are open."),
}


@pytest.mark.parametrize(("said", "second", "added"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_continuation_releases_only_new_text(said: str, second: str, added: str, size: int) -> None:
    follow = Continuation(said)
    pieces = [second[i : i + size] for i in range(0, len(second), size)]
    released = "".join([follow.feed(piece) for piece in pieces]) + follow.finish()
    assert released == added


_SENTENCES = st.lists(
    st.sampled_from(["We are open.", "Shall I book?", "It is nine!", "Do come by."]),
    min_size=1,
    max_size=4,
    unique=True,
)


@given(sentences=_SENTENCES, data=st.data())
def test_full_repetition_adds_only_the_missing_end(
    sentences: list[str], data: st.DataObject
) -> None:
    answer = " ".join(sentences)
    cut = data.draw(st.integers(1, len(answer)))
    follow = Continuation(answer[:cut])
    added = follow.feed(answer) + follow.finish()
    assert " ".join((answer[:cut] + added).split()) == answer


@given(said=st.text("ab. ", max_size=12), second=st.text("ab. ", max_size=20))
def test_output_is_a_suffix_of_the_second_answer(said: str, second: str) -> None:
    """Except for one joining space."""
    follow = Continuation(said)
    added = follow.feed(second) + follow.finish()
    assert second.endswith(added.lstrip(" ")) or second.rstrip(" .").endswith(added.strip(" ."))


@given(said=st.text(max_size=30), second=st.text(max_size=40), data=st.data())
def test_chunking_does_not_change_the_output(said: str, second: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(second)))))
    pieces = [second[a:b] for a, b in zip([0, *cuts], [*cuts, len(second)], strict=True)]
    by_pieces, at_once = Continuation(said), Continuation(said)
    added = "".join([by_pieces.feed(piece) for piece in pieces]) + by_pieces.finish()
    assert added == at_once.feed(second) + at_once.finish()
