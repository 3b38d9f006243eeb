from __future__ import annotations

import json
import re

import pytest

from pipecat_hedge.tools.simulator.script import FALLBACK, GREETING, Prompt, Turn, reply_to
from pipecat_hedge.tools.simulator.timeline import tokenize


def prompt(*turns: tuple[str, str], tools: tuple[str, ...] = (), max_tokens: int | None = None):
    return Prompt(tuple(Turn(*turn) for turn in turns), tools, max_tokens=max_tokens)


def answer(*turns: tuple[str, str]) -> str:
    return "".join(reply_to(prompt(*turns)).tokens)


FITTING = {
    "hello are you open on sunday": "noon",
    "what time do you close tonight": "eleven",
    "i would like to book a table for two at seven": "table for two at seven",
    "do you have anything vegetarian": "risotto",
    "can i order two pizzas for pick up": "pizzas",
    "how much is the fish and chips": "fourteen",
    "where are you": "Quay Street",
    "where is the restaurant": "Quay Street",
    "is there parking nearby": "car park",
    "could you make that four people please": "four people",
    "no wait cancel that": "cancelled",
    "do you deliver": "three miles",
    "what is the special today": "mackerel",
    "i am allergic to nuts is the curry safe": "cashew",
    "can we sit outside": "terrace",
    "thank you goodbye": "Goodbye",
}


@pytest.mark.parametrize(("text", "expected"), FITTING.items())
def test_every_recording_has_a_fitting_answer(text: str, expected: str):
    """It answers the question, in words that a voice can speak."""
    spoken = answer(("user", text))
    assert expected in spoken
    sentences = re.split(r"(?<=[.!?]) ", spoken)
    assert 2 <= len(sentences) <= 3
    assert len(sentences[0].split()) <= 6
    assert re.fullmatch(r"[A-Za-z ,.!?']+", spoken), "nothing but words"


@pytest.mark.parametrize("said", ["what time do you clothes tonight", "do you have any vegetarian"])
def test_misheard_words(said: str):
    """A word that speech recognition got wrong still finds its answer."""
    assert answer(("user", said)) != FALLBACK


def test_anything_else_gets_the_fallback():
    assert answer(("user", "what is the capital of france")) == FALLBACK


@pytest.mark.parametrize(
    "turns",
    [
        (("instructions", "You are a waiter."),),
        (("instructions", "You are a waiter."), ("instructions", "Greet the caller.")),
        (("user", "Please introduce yourself to the user."),),
        (("user", "hello"),),
    ],
)
def test_greeting(turns: tuple[tuple[str, str], ...]):
    """Without a message of the user, or asked to greet, the model greets."""
    assert answer(*turns) == GREETING


def test_the_last_message_is_answered():
    """Except the full stop that Pipecat adds for some providers."""
    turns = (("user", "do you deliver"), ("assistant", "Yes."), ("user", "where are you"))
    assert "Quay Street" in answer(*turns)
    assert "Quay Street" in answer(*turns, ("user", "."))


def test_a_begun_answer_is_continued():
    """If the conversation ends with the beginning of the answer, only the rest is said."""
    whole = answer(("user", "do you deliver"))
    rest = answer(("user", "do you deliver"), ("assistant", "Yes, we do."))
    assert rest == whole.removeprefix("Yes, we do.")
    assert rest == answer(("user", "do you deliver"), ("assistant", "Yes, we do."), ("user", "."))


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("book a table for two at seven", {"party_size": 2, "time": "19:00"}),
        ("a table for 5 at 8 thirty please", {"party_size": 5, "time": "20:30"}),
        ("reserve a table for twelve at 12", {"party_size": 12, "time": "12:00"}),
        ("book a table at 18:45 for three", {"party_size": 3, "time": "18:45"}),
        ("can i book a table", {"party_size": 2, "time": "19:00"}),
    ],
)
def test_booking_calls_the_tool(said: str, arguments: dict[str, object]):
    """If there is a tool to book tables, the model calls it with the user's numbers."""
    reply = reply_to(prompt(("user", said), tools=("book_table",)))
    assert reply.tool is not None
    assert reply.tool.name == "book_table"
    assert json.loads("".join(reply.tool.fragments)) == arguments
    assert len(reply.tool.fragments) > 2


def test_a_changed_booking_keeps_its_time():
    """Four people instead of two, at the time said before."""
    turns = (("user", "a table for two at eight"), ("assistant", "Certainly."))
    reply = reply_to(
        prompt(*turns, ("user", "make that four people please"), tools=("book_table",))
    )
    assert reply.tool is not None
    assert json.loads("".join(reply.tool.fragments)) == {"party_size": 4, "time": "20:00"}


def test_cancelling_calls_the_tool():
    """If there is a tool to cancel bookings, the model calls it."""
    reply = reply_to(
        prompt(("user", "no wait cancel that"), tools=("book_table", "cancel_booking"))
    )
    assert reply.tool is not None
    assert reply.tool.name == "cancel_booking"


def test_after_the_tool_the_model_confirms():
    """A tool's result is followed by speech, not by another call."""
    turns = (("user", "book a table for two at seven"), ("assistant", ""), ("tool", "booked"))
    reply = reply_to(prompt(*turns, tools=("book_table",)))
    assert reply.tool is None
    assert "table for two at seven" in "".join(reply.tokens)


def test_max_tokens_truncates():
    """An answer ends after the tokens that were asked for, and says so."""
    reply = reply_to(prompt(("user", "do you deliver"), max_tokens=3))
    assert reply.tokens == ("Yes,", " we", " do.")
    assert reply.is_truncated


@pytest.mark.parametrize("text", ["Yes, we do.", " a  b\nc ", "", "one"])
def test_tokens_join_to_the_text(text: str):
    """A token is a word with the blank before it; joined they are the text."""
    assert "".join(tokenize(text)) == text
