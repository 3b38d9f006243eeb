"""What counts as an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.usable import InlineThought, is_usable_text, is_wait_marker


@pytest.mark.parametrize("text", ["Yes", " Yes", "● Yes", "。", "5", "…", "\u00bf", "👍", "○ well"])
def test_speakable_text_is_usable(text: str) -> None:
    assert is_usable_text(text)


BLANK = ["", " ", "\n\r\t", "\u00a0", "\u200b", "\ufeff", "\u2028"]


@pytest.mark.parametrize("text", [*BLANK, "●", "◐", "○", " ● ", "●\u00a0"])
def test_white_space_and_markers_are_not_usable(text: str) -> None:
    assert not is_usable_text(text)


@pytest.mark.parametrize("answer", ["◐", "○", " ◐\n", "●", "◐◐", "", "◐ So"])
def test_wait_marker_is_a_marker_alone(answer: str) -> None:
    assert is_wait_marker(answer) is (answer in ("◐", "○", " ◐\n"))


def fed(pieces: list[str]) -> tuple[str, str]:
    """All thought and all answer text of a stream."""
    finder = InlineThought()
    parts = [finder.feed(piece) for piece in pieces]
    return "".join(thought for thought, _ in parts), "".join(a for _, a in parts) + finder.finish()


@st.composite
def streams(draw: st.DrawFn, text: str) -> list[str]:
    """A text in random pieces."""
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(streams("<think>They want <the> hours.</th</think>\n\nTill <think> nine."))
def test_leading_reasoning_is_separated_from_the_answer(pieces: list[str]) -> None:
    assert fed(pieces) == ("They want <the> hours.</th", "Till <think> nine.")


@given(streams(" <thinking> of you"))
def test_incomplete_tag_is_answer_text(pieces: list[str]) -> None:
    assert fed(pieces) == ("", " <thinking> of you")


@given(st.lists(st.text(alphabet="<think/> a", max_size=6)))
def test_no_character_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    thought, answer = fed(pieces)
    if not text.lstrip().startswith("<think>"):
        assert (thought, answer) == ("", text)
    elif "</think>" not in text:
        assert answer == ""


def test_unclosed_reasoning_has_no_answer() -> None:
    assert fed(["<think>", "on and on"]) == ("on and on", "")
