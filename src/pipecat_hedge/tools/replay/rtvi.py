"""What a bot's own messages say of a turn: its texts, the times of its stages, its own record.

Bots that speak RTVI, as Pipecat's do, send a message for each step over the data channel, and may
send messages of their own. No measured time depends on them: they say where a turn's time went.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = [
    "STAGES",
    "Message",
    "answer_text",
    "filler_secs",
    "is_busy",
    "is_unfinished",
    "last_change",
    "stages_of",
    "turn_record",
    "understood_text",
    "written_text",
]

Message: TypeAlias = dict[str, Any]

STAGES = {
    "user-stopped-speaking": "turn_end",
    "bot-llm-started": "llm_started",
    "bot-llm-text": "first_text",
    "bot-tts-started": "tts_started",
    "bot-started-speaking": "bot_started",
}
"""The messages that end a stage, and the stages' names, in the order of a turn."""
_SPOKEN = ("tts_started", "bot_started")
"""The stages that a filler has, too."""
_BEGINS = {
    "bot-llm-started": "llm",
    "bot-started-speaking": "speech",
    "llm-function-call-started": "tool",
    "llm-function-call-in-progress": "tool",
}
_ENDS = {
    "bot-llm-stopped": ("llm",),
    "bot-stopped-speaking": ("speech",),
    "llm-function-call-stopped": ("tool",),
    "bot-interrupted": ("llm", "speech", "tool"),
}


def is_busy(messages: Sequence[Message]) -> bool:
    """Whether the bot is speaking, writing an answer or running a tool, by its own messages.

    Args:
        messages: Those of the call so far.
    """
    return bool(_activities(messages))


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Whether the answer is still being written, or a tool runs and nothing is written yet.

    A tool that runs on behind an answer is no part of it: some take minutes.

    Args:
        messages: Those of a turn.
    """
    activities = _activities(messages)
    return "llm" in activities or ("tool" in activities and not written_text(messages))


def last_change(messages: Sequence[Message]) -> float:
    """When the bot last began or ended an activity; 0 if it never did.

    Args:
        messages: Those of the call so far.
    """
    known = (m for m in reversed(messages) if m.get("type") in _BEGINS or m.get("type") in _ENDS)
    return next((m["received_at"] for m in known), 0.0)


def written_text(messages: Sequence[Message]) -> str:
    """What the LLM wrote, fillers excluded; empty if the bot does not send it.

    Args:
        messages: Those of a turn.
    """
    return "".join(_texts(messages, "bot-llm-text")).strip()


def answer_text(messages: Sequence[Message]) -> str:
    """The answer's text, as the LLM wrote it or else as it was spoken; empty if it is not sent.

    Args:
        messages: Those of a turn.
    """
    if written := written_text(messages):
        return written
    # bot-output comes twice: before its text is spoken, and again when it is.
    unspoken = [m for m in messages if not _data(m).get("spoken")]
    return " ".join(_texts(unspoken, "bot-output") or _texts(messages, "bot-output")).strip()


def understood_text(messages: Sequence[Message]) -> str:
    """What the bot understood of the caller; empty if it does not send it.

    Args:
        messages: Those of a turn.
    """
    finals = [m for m in messages if _data(m).get("final", True)]
    return " ".join(_texts(finals, "user-transcription")).strip()


def turn_record(messages: Sequence[Message]) -> dict[str, Any] | None:
    """The bot's own record of a turn: its last server message of the type ``turn``, if any.

    Of several races in a turn, the last with an answer counts.

    Args:
        messages: Those of a turn.
    """
    sent = [_data(m) for m in messages if m.get("type") == "server-message"]
    turns = [data for data in sent if data.get("type") == "turn"]
    answered = [data for data in turns if data.get("voice_to_voice_secs") is not None]
    return next(reversed(answered or turns), None)


def filler_secs(record: dict[str, Any] | None) -> float | None:
    """How much later than the first sound the answer was, by the bot's record.

    Args:
        record: The record, if there is one.

    Returns:
        0 if the record does not say; None if it says that there was a sound but no answer.
    """
    record = record or {}
    first, answer = record.get("first_sound_secs"), record.get("voice_to_voice_secs")
    if not isinstance(first, (int, float)) or not 0 <= first < math.inf:
        return 0.0
    if not isinstance(answer, (int, float)):
        return None
    return float(answer - first) if first <= answer < math.inf else 0.0


def stages_of(
    messages: Sequence[Message],
    since: float,
    until: float | None,
    filler_at: float | None = None,
) -> dict[str, float]:
    """When each stage of a turn ended, by the arrival of its message, in seconds from ``since``.

    Where a stage came twice, as after a tool or a pause that the bot took for the turn's end, the
    last one before the answer was heard counts; of the text, the first after that.

    Args:
        messages: Those of a turn.
        since: When the caller fell silent, on the loop's clock.
        until: When the answer was heard; None if it was not.
        filler_at: When a filler was heard, if one was: what was spoken until then was no answer.
    """
    found: dict[str, float] = {}
    for message in messages:
        stage = STAGES.get(message.get("type", ""))
        at = message["received_at"]
        if stage is None or (until is not None and at > until):
            continue
        if filler_at is not None and at <= filler_at and stage in _SPOKEN:
            continue
        if stage == "llm_started":
            found.pop("first_text", None)
        if stage != "first_text" or stage not in found:
            found[stage] = at - since
    return {stage: found[stage] for stage in STAGES.values() if stage in found}


def _activities(messages: Sequence[Message]) -> set[str]:
    activities: set[str] = set()
    for message in messages:
        kind = message.get("type")
        if kind in _BEGINS:
            activities.add(_BEGINS[kind])
        activities.difference_update(_ENDS.get(kind or "", ()))
    return activities


def _texts(messages: Sequence[Message], kind: str) -> list[str]:
    texts = [_data(m).get("text") for m in messages if m.get("type") == kind]
    return [text for text in texts if isinstance(text, str)]


def _data(message: Message) -> dict[str, Any]:
    data = message.get("data")
    return data if isinstance(data, dict) else {}
