"""What a bot's messages say of a turn."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipecat_hedge.tools.replay.rtvi import (
    answer_text,
    filler_secs,
    is_busy,
    is_unfinished,
    stages_of,
    turn_record,
    understood_text,
    written_text,
)


def sent(kind: str, at: float = 0.0, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "received_at": at}


TOOL = "llm-function-call-in-progress"


@pytest.mark.parametrize(
    ("kinds", "busy", "unfinished"),
    [
        ([], False, False),
        (["bot-llm-started", "bot-llm-text"], True, True),
        (["bot-llm-started", "bot-llm-text", "bot-llm-stopped"], False, False),
        (["bot-llm-started", "bot-started-speaking", "bot-llm-stopped"], True, False),
        (["bot-started-speaking", "bot-stopped-speaking"], False, False),
        (["bot-llm-started", TOOL, "bot-llm-stopped"], True, True),
        (["bot-llm-started", "bot-llm-text", TOOL, "bot-llm-stopped"], True, False),
        (["llm-function-call-started", "llm-function-call-stopped"], False, False),
        (["bot-llm-started", "bot-interrupted"], False, False),
        (["bot-llm-started", "bot-interrupted", "bot-llm-started"], True, True),
    ],
)
def test_bot_is_busy_until_its_messages_say_otherwise(
    kinds: list[str], busy: bool, unfinished: bool
) -> None:
    """A tool that runs on behind an answer does not leave it unfinished."""
    messages = [sent(kind, text="So,") for kind in kinds]
    assert (is_busy(messages), is_unfinished(messages)) == (busy, unfinished)


def test_texts_are_as_written_or_else_as_spoken() -> None:
    heard = (("are you", False), ("are you open", True), ("on sunday", True))
    messages = [sent("user-transcription", text=text, final=final) for text, final in heard]
    messages += [sent("bot-llm-text", text=text) for text in ("Yes, ", "till nine.")]
    messages += [sent("bot-output", text="Yes, till nine.")]
    assert understood_text(messages) == "are you open on sunday"
    assert written_text(messages) == answer_text(messages) == "Yes, till nine."
    spoken = [sent("bot-output", text=text) for text in ("Yes,", "so.")]
    assert (written_text(spoken), answer_text(spoken)) == ("", "Yes, so.")
    twice = [sent("bot-output", text="Yes,", spoken=spoken) for spoken in (False, True)]
    assert answer_text(twice) == "Yes,"
    assert answer_text([sent("bot-llm-text"), {"type": "bot-llm-text", "data": 3}]) == ""


def test_stages_count_the_last_time_before_the_answer() -> None:
    """The turn ended twice, and a tool was called."""
    times = [
        ("user-stopped-speaking", 9.0),
        ("user-stopped-speaking", 10.5),
        ("bot-llm-started", 10.6),
        ("bot-llm-text", 10.7),
        ("bot-llm-started", 11.0),
        ("bot-llm-text", 11.3),
        ("bot-llm-text", 11.4),
        ("bot-started-speaking", 11.5),
        ("user-stopped-speaking", 13.0),
    ]
    stages = {"turn_end": 0.5, "llm_started": 1.0, "first_text": 1.3, "bot_started": 1.5}
    messages = [sent(kind, at) for kind, at in times]
    assert stages_of(messages, 10.0, 11.7) == pytest.approx(stages)
    assert stages_of([], 10.0, 11.0) == {}


def test_stages_leave_out_a_filler() -> None:
    kinds = ("bot-tts-started", "bot-started-speaking")
    filler = [sent("bot-llm-started", 10.4), *(sent(kind, 11.2) for kind in kinds)]
    answer = [sent("bot-llm-text", 13.0), *(sent(kind, 13.2) for kind in kinds)]
    assert list(stages_of(filler, 10.0, None, 11.4)) == ["llm_started"]
    assert list(stages_of(filler, 10.0, None)) == ["llm_started", "tts_started", "bot_started"]
    found = stages_of(filler + answer, 10.0, 13.4, 11.4)
    assert list(found.values()) == pytest.approx([0.4, 3.0, 3.2, 3.2])


def test_record_is_the_last_with_an_answer() -> None:
    tool = sent("server-message", type="turn", turn=1, voice_to_voice_secs=None)
    answer = sent("server-message", type="turn", turn=2, voice_to_voice_secs=0.7)
    other = sent("server-message", type="parts")
    assert turn_record([other]) is None
    assert turn_record([tool, answer, tool, other]) == answer["data"]
    assert turn_record([tool]) == tool["data"]


@pytest.mark.parametrize(
    ("first", "answer", "secs"),
    [
        (0.5, 2.0, 1.5),
        (0.5, None, None),
        (None, 2.0, 0.0),
        (-1.0, 2.0, 0.0),
        (2.0, 0.5, 0.0),
        (0.5, math.nan, 0.0),
    ],
)
def test_filler_lasts_from_first_sound_to_answer(
    first: float | None, answer: float | None, secs: float | None
) -> None:
    """A record that cannot be right says nothing; one with a sound alone, that nothing came."""
    assert filler_secs({"first_sound_secs": first, "voice_to_voice_secs": answer}) == secs
    assert filler_secs(None) == 0.0
