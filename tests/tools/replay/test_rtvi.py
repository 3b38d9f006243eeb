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
    last_change,
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


def test_last_change_ignores_other_messages() -> None:
    began, ended = sent("bot-llm-started", 1.0), sent("bot-llm-stopped", 2.5)
    assert last_change([began, ended, sent("user-transcription", 4.0)]) == 2.5
    assert last_change([sent("user-transcription", 4.0)]) == 0.0


@pytest.mark.parametrize(
    ("messages", "written", "answer"),
    [
        (
            [
                sent("bot-llm-text", text="Yes, "),
                sent("bot-llm-text", text="till nine."),
                sent("bot-output", text="Yes, till nine."),
            ],
            *("Yes, till nine.", "Yes, till nine."),
        ),
        ([sent("bot-output", text="Yes,"), sent("bot-output", text="so.")], "", "Yes, so."),
        ([sent("bot-output", text="Yes,", spoken=each) for each in (False, True)], "", "Yes,"),
        ([sent("bot-llm-text"), {"type": "bot-llm-text", "data": 3}], "", ""),
    ],
)
def test_answer_is_as_written_or_else_as_spoken(
    messages: list[dict[str, Any]], written: str, answer: str
) -> None:
    assert (written_text(messages), answer_text(messages)) == (written, answer)


def test_understood_text_is_the_final_transcript() -> None:
    heard = (("are you", False), ("are you open", True), ("on sunday", True))
    messages = [sent("user-transcription", text=text, final=final) for text, final in heard]
    assert understood_text(messages) == "are you open on sunday"


ENDED_TWICE_WITH_A_TOOL = [
    sent("user-stopped-speaking", 9.0),
    sent("user-stopped-speaking", 10.5),
    sent("bot-llm-started", 10.6),
    sent("bot-llm-text", 10.7, text="x"),
    sent("bot-llm-started", 11.0),
    sent("bot-llm-text", 11.3, text="Booked"),
    sent("bot-llm-text", 11.4, text="."),
    sent("bot-started-speaking", 11.5),
    sent("user-stopped-speaking", 13.0),
]
FILLER = [
    sent("bot-llm-started", 10.4),
    sent("bot-tts-started", 11.2),
    sent("bot-started-speaking", 11.25),
]
AFTER_FILLER = [
    sent("bot-llm-text", 13.0, text="Till nine."),
    sent("bot-tts-started", 13.1),
    sent("bot-started-speaking", 13.2),
]


@pytest.mark.parametrize(
    ("messages", "until", "filler_at", "stages"),
    [
        (
            ENDED_TWICE_WITH_A_TOOL,
            *(11.7, None),
            {"turn_end": 0.5, "llm_started": 1.0, "first_text": 1.3, "bot_started": 1.5},
        ),
        (FILLER, None, 11.4, {"llm_started": 0.4}),
        (FILLER, None, None, {"llm_started": 0.4, "tts_started": 1.2, "bot_started": 1.25}),
        (
            FILLER + AFTER_FILLER,
            *(13.4, 11.4),
            {"llm_started": 0.4, "first_text": 3.0, "tts_started": 3.1, "bot_started": 3.2},
        ),
        ([], 11.0, None, {}),
    ],
)
def test_stages_count_the_last_time_before_the_answer(
    messages: list[dict[str, Any]],
    until: float | None,
    filler_at: float | None,
    stages: dict[str, float],
) -> None:
    """Whatever was said before, a filler included."""
    found = stages_of(messages, 10.0, until, filler_at)
    assert (list(found), found) == (list(stages), pytest.approx(stages))


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
