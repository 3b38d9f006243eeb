"""Which provider comes first in a turn, by what it asks for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipecat_hedge import ComplexityRouter
from pipecat_hedge.policy import RouteChoice, RoutedTurn, chosen
from pipecat_hedge.race import ConfigurationError

ROUTER = ComplexityRouter(simple="small", complex="large")


def turn(text: Any, *, routed_to: tuple[str, ...] = (), has_tools: bool = False) -> RoutedTurn:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Why? " * 9}]
    return RoutedTurn(messages, ("small", "large"), has_tools, routed_to)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Are you open on Sunday?", "small"),
        ("Yes, please.", "small"),
        ("No, thank you.", "small"),
        ("no", "small"),
        ("Nope.", "small"),
        ("No, that's all.", "small"),
        ("no that's not necessary", "small"),
        ("actually yes please", "small"),
        ("Nope, just the two of us.", "small"),
        ("No, I don't.", "small"),
        ("No, not that I know of.", "small"),
        ("No, no, that’s not right.", "large"),
        ("no it isn't correct", "large"),
        ("Actually, not that one.", "large"),
        ("i meant tuesday", "large"),
        ("A table for two at seven, please.", "small"),
        ("", "small"),
        ("No, I said Tuesday, not Thursday.", "large"),
        ("Why is the second menu dearer than the first one, and which is better for me?", "large"),
        ("If I book for eight people and two cancel, how much do I pay in total?", "large"),
        ("Do you have parking? And is there a vegan dish? And how late can we stay?", "large"),
        ([{"type": "text", "text": "Can you compare the two and recommend one?"}], "large"),
    ],
)
def test_complex_turns_go_to_the_complex_provider(text: Any, first: str) -> None:
    choice = ROUTER(turn(text, has_tools=True))
    assert choice.first == (first,)
    assert choice.score is not None
    assert (choice.score >= 0.3) == (first == "large")
    assert choice.reason.startswith(f"complexity {choice.score:.2f}")


def test_call_only_moves_up() -> None:
    assert ROUTER(turn("Yes, please.", routed_to=("small", "large"))).first == ("large",)
    assert ROUTER(turn("Yes, please.", routed_to=("small",))).first == ("small",)


QUESTION = "why does it cost 5 if I then go and what "


def test_time_to_score_a_turn_is_bounded() -> None:
    """A turn of 40,000 characters takes no longer than one of 20,000: the best of many, in turn."""
    longer = turn(QUESTION * 1_000)
    long = turn(QUESTION * 500)

    def took(each: RoutedTurn) -> float:
        began = time.perf_counter()
        ROUTER(each)
        return time.perf_counter() - began

    secs = [(took(long), took(longer)) for _ in range(50)]
    assert min(most for _, most in secs) < 1.5 * min(least for least, _ in secs)


def test_function_names_the_first_provider() -> None:
    assert chosen(lambda turn: "large", turn("")) == RouteChoice(("large",), "routed to large")
    assert chosen(lambda turn: None, turn("")).first == ()
    with pytest.raises(ConfigurationError, match=r"route returned 'huge'.*return one of small"):
        chosen(lambda turn: "huge", turn(""))
