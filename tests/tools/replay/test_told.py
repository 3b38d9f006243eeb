"""What a bot's messages tell of a turn."""

from __future__ import annotations

from typing import Any

import pytest

from pipecat_hedge.tools.replay.told import (
    answer_text,
    is_busy,
    is_unfinished,
    last_change,
    record_of,
    stages_of,
    understood_text,
    written_text,
)


def told(kind: str, at: float = 0.0, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "received_at": at}


@pytest.mark.parametrize(
    ("kinds", "busy"),
    [
        ([], False),
        (["bot-llm-started"], True),
        (["bot-llm-started", "bot-started-speaking", "bot-llm-stopped"], True),
        (
            ["bot-llm-started", "bot-started-speaking", "bot-llm-stopped", "bot-stopped-speaking"],
            False,
        ),
        (["bot-llm-started", "llm-function-call-in-progress", "bot-llm-stopped"], True),
        (["llm-function-call-started", "llm-function-call-stopped"], False),
        (["bot-llm-started", "bot-interrupted"], False),
        (["bot-llm-started", "bot-interrupted", "bot-llm-started"], True),
    ],
)
def test_a_bot_is_busy_until_it_says_that_it_is_not(kinds: list[str], busy: bool) -> None:
    """It speaks, writes or runs a tool; an interruption ends all of that."""
    assert is_busy([told(kind) for kind in kinds]) is busy


@pytest.mark.parametrize(
    ("kinds", "unfinished"),
    [
        ([], False),
        (["bot-llm-started"], True),
        (["bot-llm-started", "bot-llm-text"], True),
        (["bot-llm-started", "bot-llm-text", "bot-llm-stopped"], False),
        (["bot-llm-started", "bot-llm-stopped", "bot-started-speaking"], False),
        (["bot-started-speaking"], False),
        (["bot-llm-started", "llm-function-call-in-progress", "bot-llm-stopped"], True),
        (
            ["bot-llm-started", "bot-llm-text", "llm-function-call-started", "bot-llm-stopped"],
            False,
        ),
        (["bot-llm-started", "bot-interrupted"], False),
    ],
)
def test_an_answer_is_unfinished_while_it_is_written(kinds: list[str], unfinished: bool) -> None:
    """Or a tool runs for it, not one that runs on behind it. Without messages it never is."""
    assert is_unfinished([told(kind, text="So,") for kind in kinds]) is unfinished


def test_when_a_bot_last_began_or_ended_something() -> None:
    """Other messages do not count, nor does a bot that tells nothing."""
    began, ended = told("bot-llm-started", 1.0), told("bot-llm-stopped", 2.5)
    assert last_change([began, ended, told("user-transcription", 4.0)]) == 2.5
    assert last_change([told("user-transcription", 4.0)]) == 0.0


def test_words() -> None:
    """As the model wrote them; where it does not tell, as they were spoken."""
    messages = [
        told("user-transcription", text="are you", final=False),
        told("user-transcription", text="are you open", final=True),
        told("user-transcription", text="on sunday", final=True),
        told("bot-llm-text", text="Yes, "),
        told("bot-llm-text", text="till nine."),
        told("bot-output", text="Yes, till nine."),
    ]
    assert understood_text(messages) == "are you open on sunday"
    assert answer_text(messages) == "Yes, till nine."
    assert answer_text([told("bot-output", text="Yes,"), told("bot-output", text="so.")]) == (
        "Yes, so."
    )
    twice = [
        told("bot-output", text="Yes,", spoken=False),
        told("bot-output", text="Yes,", spoken=True),
    ]
    assert answer_text(twice) == "Yes,"
    assert answer_text([told("bot-llm-text"), {"type": "bot-llm-text", "data": 3}]) == ""


def test_what_was_written_is_no_filler() -> None:
    """A filler is spoken, but the LLM has not written it."""
    filler = told("bot-output", text="One moment.")
    assert written_text([filler]) == ""
    answered = [filler, told("bot-llm-text", text="Till "), told("bot-llm-text", text="nine.")]
    assert written_text(answered) == answer_text(answered) == "Till nine."


def test_stages_are_counted_from_the_callers_last_sound() -> None:
    """The turn ended twice, and a tool was called: the last time before the answer counts."""
    messages = [
        told("user-stopped-speaking", 9.0),
        told("user-stopped-speaking", 10.5),
        told("bot-llm-started", 10.6),
        told("bot-llm-text", 10.7, text="x"),
        told("bot-llm-started", 11.0),
        told("bot-llm-text", 11.3, text="Booked"),
        told("bot-llm-text", 11.4, text="."),
        told("bot-started-speaking", 11.5),
        told("user-stopped-speaking", 13.0),
    ]
    assert stages_of(messages, 10.0, 11.7) == {
        "turn_end": pytest.approx(0.5),
        "llm_started": pytest.approx(1.0),
        "first_text": pytest.approx(1.3),
        "bot_started": pytest.approx(1.5),
    }
    assert next(iter(stages_of(messages, 10.0, None))) == "turn_end"
    assert stages_of([], 10.0, 11.0) == {}


def test_the_stages_of_a_filler_are_not_the_answers() -> None:
    """It was spoken before the answer was, or without one."""
    filler = [
        told("bot-llm-started", 10.4),
        told("bot-tts-started", 11.2),
        told("bot-started-speaking", 11.25),
    ]
    assert list(stages_of(filler, 10.0, None, 11.4)) == ["llm_started"]
    assert list(stages_of(filler, 10.0, None)) == ["llm_started", "tts_started", "bot_started"]
    answer = [
        told("bot-llm-text", 13.0, text="Till nine."),
        told("bot-tts-started", 13.1),
        told("bot-started-speaking", 13.2),
    ]
    assert stages_of(filler + answer, 10.0, 13.4, 11.4) == {
        "llm_started": pytest.approx(0.4),
        "first_text": pytest.approx(3.0),
        "tts_started": pytest.approx(3.1),
        "bot_started": pytest.approx(3.2),
    }
    runs_into = [*filler, answer[0], answer[1]]
    assert "bot_started" not in stages_of(runs_into, 10.0, 13.4, 11.4)


def test_the_bots_own_record() -> None:
    """Of several races in a turn, the one that was heard."""
    called = told("server-message", type="turn", turn=1, voice_to_voice_secs=None)
    heard = told("server-message", type="turn", turn=2, voice_to_voice_secs=0.7)
    other = told("server-message", type="parts")
    assert record_of([other]) is None
    assert record_of([called, heard, called, other]) == heard["data"]
    assert record_of([called]) == called["data"]
