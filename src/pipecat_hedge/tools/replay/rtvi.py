"""Reads a bot's own messages about a turn: texts, stage times, its own record.

Bots with RTVI, such as Pipecat's, send a message for each step over the data channel, and may add
messages of their own. No measured latency depends on them; they show where a turn's time went.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

STAGES = {
    "user-stopped-speaking": "turn_end",
    "bot-llm-started": "llm_started",
    "bot-llm-text": "first_text",
    "bot-tts-started": "tts_started",
    "bot-started-speaking": "bot_started",
}
"""The message that ends each stage, and the stage's name, in the order of a turn."""
_SPOKEN = ("tts_started", "bot_started")
"""The stages that a filler also has."""
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
    """Whether the bot speaks, generates an answer or runs a tool, by its messages of the call."""
    return bool(_activities(messages))


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Whether the answer is being generated, or a tool runs and no text was generated.

    A tool that keeps running after an answer does not count: some take minutes.
    """
    activities = _activities(messages)
    return "llm" in activities or ("tool" in activities and not written_text(messages))


def last_change(messages: Sequence[Message]) -> float:
    """Return when the bot last began or ended an activity; 0 if never."""
    known = (m for m in reversed(messages) if m.get("type") in _BEGINS or m.get("type") in _ENDS)
    return next((m["received_at"] for m in known), 0.0)


def written_text(messages: Sequence[Message]) -> str:
    """Return the generated text, without fillers; empty if the bot does not send it."""
    return "".join(_texts(messages, "bot-llm-text")).strip()


def answer_text(messages: Sequence[Message]) -> str:
    """Return the answer as generated, or else as spoken; empty if the bot does not send it."""
    if written := written_text(messages):
        return written
    # bot-output is sent twice: before its text is spoken, and when it is.
    unspoken = [m for m in messages if not _data(m).get("spoken")]
    return " ".join(_texts(unspoken, "bot-output") or _texts(messages, "bot-output")).strip()


def understood_text(messages: Sequence[Message]) -> str:
    """Return the bot's transcript of the caller; empty if it does not send one."""
    finals = [m for m in messages if _data(m).get("final", True)]
    return " ".join(_texts(finals, "user-transcription")).strip()


def turn_record(messages: Sequence[Message]) -> dict[str, Any] | None:
    """Return the bot's own record of a turn: its last server message of type ``turn``, if any.

    Of several races in a turn, the last one with an answer counts.
    """
    sent = [_data(m) for m in messages if m.get("type") == "server-message"]
    turns = [data for data in sent if data.get("type") == "turn"]
    answered = [data for data in turns if data.get("voice_to_voice_secs") is not None]
    return next(reversed(answered or turns), None)


def filler_secs(record: dict[str, Any] | None) -> float | None:
    """Return the time from the first sound to the answer, by the bot's record.

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
    messages: Sequence[Message], since: float, until: float | None, filler_at: float | None = None
) -> dict[str, float]:
    """Return when each stage of a turn ended, by its message's arrival, in seconds from ``since``.

    If a stage occurred twice, as after a tool or a pause, the last one before the answer counts; of
    the text, the first one after that.

    Args:
        messages: The messages of a turn.
        since: The end of the caller's speech, on the loop's clock.
        until: The first sound of the answer; None without one.
        filler_at: The first sound of a filler, if there was one; speech until then is no answer.
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
