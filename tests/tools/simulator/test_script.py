from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.replay import load_manifest
from pipecat_hedge.tools.simulator import tokenize
from pipecat_hedge.tools.simulator.script import FALLBACK, GREETING, Prompt, Turn, reply_to

MANIFEST = Path(__file__).parents[3] / "fixtures/audio/manifest.toml"
RECORDED = {each.transcript for each in load_manifest(MANIFEST)}
ASKS, BEGUN, STOP = ("user", "do you deliver"), ("assistant", "Yes, we do."), ("user", ".")
REST = " We deliver within three miles, and it takes about forty minutes."
BOOKS = ("user", "a table for two at eight")
TOOLS = ("book_table", "cancel_booking")


def prompt(*turns: tuple[str, str], tools: tuple[str, ...] = (), max_tokens: int | None = None):
    return Prompt(tuple(Turn(*turn) for turn in turns), tools, max_tokens=max_tokens)


@pytest.mark.parametrize("text", [*sorted(RECORDED), "what time do you clothes tonight"])
def test_every_recording_has_an_answer(text: str):
    """Even if a word is misheard; in words that a voice can speak."""
    spoken = "".join(reply_to(prompt(("user", text))).tokens)
    assert spoken != FALLBACK
    sentences = re.split(r"(?<=[.!?]) ", spoken)
    assert 2 <= len(sentences) <= 3
    assert len(sentences[0].split()) <= 6
    assert re.fullmatch(r"[A-Za-z ,.!?']+", spoken), "nothing but words"


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([("user", "what is the capital of france")], FALLBACK),
        ([("instructions", "You are a waiter.")], GREETING),
        ([("instructions", "You are a waiter."), ("instructions", "Greet the caller.")], GREETING),
        ([("user", "Please introduce yourself to the user.")], GREETING),
        ([("user", "hello")], GREETING),
        (
            [("user", "could you make that four people please")],
            "Of course. I have changed your table to four people. See you then.",
        ),
        ([("user", "where are you"), ("assistant", "Here."), ASKS], "Yes, we do." + REST),
        ([ASKS, STOP], "Yes, we do." + REST),  # Pipecat adds the full stop for some providers
        ([ASKS, BEGUN], REST),
        ([ASKS, BEGUN, STOP], REST),
    ],
)
def test_the_conversation_decides_the_answer(turns: list[tuple[str, str]], expected: str):
    """A greeting, the answer to the last message, or the rest of an answer that was begun."""
    assert "".join(reply_to(prompt(*turns)).tokens) == expected


@pytest.mark.parametrize(
    ("turns", "party_size", "time"),
    [
        ([("user", "book a table for two at seven")], 2, "19:00"),
        ([("user", "a table for 5 at 8 thirty please")], 5, "20:30"),
        ([("user", "reserve a table for twelve at 12")], 12, "12:00"),
        ([("user", "book a table at 18:45 for three")], 3, "18:45"),
        ([("user", "can i book a table")], 2, "19:00"),
        ([BOOKS, ("assistant", "Yes."), ("user", "make that four people please")], 4, "20:00"),
    ],
)
def test_a_booking_calls_its_tool(turns: list[tuple[str, str]], party_size: int, time: str):
    """With the user's latest numbers, in several fragments."""
    tool = reply_to(prompt(*turns, tools=TOOLS)).tool
    assert tool is not None
    assert tool.name == "book_table"
    assert json.loads("".join(tool.fragments)) == {"party_size": party_size, "time": time}
    assert len(tool.fragments) > 2


def test_cancelling_calls_its_tool():
    tool = reply_to(prompt(("user", "no wait cancel that"), tools=TOOLS)).tool
    assert tool is not None
    assert tool.name == "cancel_booking"


@given(st.text())
def test_tokens_join_to_the_text(text: str):
    assert "".join(tokenize(text)) == text
