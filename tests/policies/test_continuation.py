"""A second answer goes on where the first broke off: nothing twice, nothing missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policies.continuation import Continuation

SAID = "We are open till nine. Shall I"

CASES = {
    "goes on as asked": (SAID, " book a table?", " book a table?"),
    "goes on as asked, without the space": (SAID, "book a table?", "book a table?"),
    "a new sentence after a whole one": ("We are open.", "Shall I book?", " Shall I book?"),
    "a new sentence that brings its space": ("We are open.", " Shall I book?", " Shall I book?"),
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
    "repeats a part and stops": (SAID, "We are open till nine.", ""),
    "repeats the beginning of a sentence and stops": (SAID, "We are open", " We are open"),
    "in the middle of a word": ("I can off", "er you a table.", "er you a table."),
    "nothing was said": ("", "Good evening.", "Good evening."),
    "only a dash was said": ("— ", "Good evening.", "Good evening."),
    "starts with a comma": ("Well", ", we are open.", ", we are open."),
}


@pytest.mark.parametrize(("said", "second", "added"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_a_second_answer_adds(said: str, second: str, added: str, size: int) -> None:
    """Whatever the model does, and however its stream is cut into pieces."""
    follow = Continuation(said)
    pieces = [second[i : i + size] for i in range(0, len(second), size)]
    heard = "".join([follow.feed(piece) for piece in pieces]) + follow.finish()
    assert heard == added


_SENTENCES = st.lists(
    st.sampled_from(["We are open.", "Shall I book?", "It is nine!", "Do come by."]),
    min_size=1,
    max_size=4,
    unique=True,
)


@given(sentences=_SENTENCES, data=st.data())
def test_an_answer_given_again_in_full_is_heard_once(
    sentences: list[str], data: st.DataObject
) -> None:
    """Wherever the first stream broke off, what is heard in all is the answer."""
    answer = " ".join(sentences)
    cut = data.draw(st.integers(1, len(answer)))
    follow = Continuation(answer[:cut])
    added = follow.feed(answer) + follow.finish()
    assert " ".join((answer[:cut] + added).split()) == answer


@given(said=st.text("ab. ", max_size=12), second=st.text("ab. ", max_size=20))
def test_it_never_invents_text(said: str, second: str) -> None:
    """What it lets through is the end of the second answer, but for one joining space."""
    follow = Continuation(said)
    added = follow.feed(second) + follow.finish()
    assert second.endswith(added.lstrip(" ")) or second.rstrip(" .").endswith(added.strip(" ."))
