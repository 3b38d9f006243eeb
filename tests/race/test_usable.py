"""What counts as an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.usable import InlineThought, is_usable_text, is_wait_marker


@pytest.mark.parametrize("text", ["Yes", " Yes", "● Yes", "。", "5", "…", "\u00bf", "👍", "○ well"])
def test_what_can_be_spoken_is_usable(text: str) -> None:
    """Wherever it stands in the piece."""
    assert is_usable_text(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\r\t", "\u00a0", "\u200b", "\ufeff", "\u2028", "●", "◐", "○", " ● ", "●\u00a0"],
)
def test_white_space_and_markers_are_not_usable(text: str) -> None:
    """Nor are characters without width, which look like text to a program."""
    assert not is_usable_text(text)


@given(st.text())
def test_what_is_wanted_is_never_lost(text: str) -> None:
    """Text with a letter or a digit in it is usable whatever surrounds it."""
    assert is_usable_text(text + "a")
    assert is_usable_text("7" + text)


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        ("◐", True),
        ("○", True),
        (" ◐\n", True),
        ("●", False),
        ("◐◐", False),
        ("", False),
        ("◐ So", False),
    ],
)
def test_a_verdict_to_wait_is_a_marker_alone(answer: str, waits: bool) -> None:
    """It is a whole answer that says that the caller has not finished."""
    assert is_wait_marker(answer) is waits


def fed(pieces: list[str]) -> tuple[str, str]:
    """All thought and all answer text of a stream."""
    finder = InlineThought()
    parts = [finder.feed(piece) for piece in pieces]
    return "".join(thought for thought, _ in parts), "".join(a for _, a in parts) + finder.finish()


@st.composite
def streams(draw: st.DrawFn, text: str) -> list[str]:
    """A text, cut anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(streams("<think>They want <the> hours.</th</think>\n\nTill <think> nine."))
def test_reasoning_in_front_is_told_from_the_answer(pieces: list[str]) -> None:
    """However the stream is cut; a tag later in the answer is text."""
    assert fed(pieces) == ("They want <the> hours.</th", "Till <think> nine.")


@given(streams(" <thinking> of you"))
def test_what_only_looks_like_the_tag_is_answer(pieces: list[str]) -> None:
    """Nothing of it is lost."""
    assert fed(pieces) == ("", " <thinking> of you")


@given(st.lists(st.text(alphabet="<think/> a", max_size=6)))
def test_no_character_is_lost(pieces: list[str]) -> None:
    """Without a closing tag, everything is either thought or answer."""
    text = "".join(pieces)
    thought, answer = fed(pieces)
    if not text.lstrip().startswith("<think>"):
        assert (thought, answer) == ("", text)
    elif "</think>" not in text:
        assert answer == ""


def test_it_says_when_there_is_nothing_left_to_tell_apart() -> None:
    """So that the rest of the answer need not be fed."""
    finder = InlineThought()
    finder.feed("<think>Hm.</think>")
    assert not finder.is_over  # blank lines may follow
    finder.feed("\n\nTill")
    assert finder.is_over


def test_reasoning_that_never_ends_has_no_answer() -> None:
    """The end of the stream does not turn it into one."""
    assert fed(["<think>", "on and on"]) == ("on and on", "")
