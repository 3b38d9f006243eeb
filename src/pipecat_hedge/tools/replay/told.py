"""What a bot's own messages tell of a turn. Pure.

Bots that speak RTVI, as Pipecat's do, send a message for each step over the data channel, and may
send messages of their own. Nothing here is needed to measure a turn: it says where its time went.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = [
    "STAGES",
    "answer_text",
    "is_busy",
    "is_unfinished",
    "last_change",
    "record_of",
    "stages_of",
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
"""The stages of whatever is spoken, be it a filler."""
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
    """Whether the bot is speaking, writing an answer, or running a tool, as far as it says.

    Args:
        messages: Those of the call so far.
    """
    return bool(_doing(messages))


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Whether the answer is still being written, or a tool runs and nothing has been written yet.

    A tool that runs on behind an answer is no part of it: there are those that take minutes.

    Args:
        messages: Those of a turn.
    """
    doing = _doing(messages)
    return "llm" in doing or ("tool" in doing and not written_text(messages))


def last_change(messages: Sequence[Message]) -> float:
    """When the bot last said that it had begun or ended something; 0 if it never did.

    Args:
        messages: Those of the call so far.
    """
    known = (m for m in reversed(messages) if m.get("type") in _BEGINS or m.get("type") in _ENDS)
    return next((m["received_at"] for m in known), 0.0)


def written_text(messages: Sequence[Message]) -> str:
    """What the LLM wrote, to which no filler belongs; empty if the bot does not send it.

    Args:
        messages: Those of a turn.
    """
    return "".join(_texts(messages, "bot-llm-text")).strip()


def answer_text(messages: Sequence[Message]) -> str:
    """The words of an answer that was heard; empty if the bot does not send them.

    What the LLM wrote, or else what was spoken.

    Args:
        messages: Those of a turn.
    """
    if written := written_text(messages):
        return written
    # bot-output comes twice, as text that is to be spoken and as text that is.
    unspoken = [m for m in messages if not _data(m).get("spoken")]
    for kind, told in (
        ("bot-output", unspoken),
        ("bot-output", messages),
        ("bot-transcription", messages),
    ):
        if texts := _texts(told, kind):
            return " ".join(texts).strip()
    return ""


def understood_text(messages: Sequence[Message]) -> str:
    """What the bot understood of the caller; empty if it does not say.

    Args:
        messages: Those of a turn.
    """
    finals = [m for m in messages if _data(m).get("final", True)]
    return " ".join(_texts(finals, "user-transcription")).strip()


def record_of(messages: Sequence[Message]) -> dict[str, Any] | None:
    """What the bot itself recorded of a turn: its last own message of the type ``turn``, if any.

    Args:
        messages: Those of a turn.
    """
    told = [_data(m) for m in messages if m.get("type") == "server-message"]
    turns = [data for data in told if data.get("type") == "turn"]
    heard = [data for data in turns if data.get("voice_to_voice_secs") is not None]
    return next(reversed(heard or turns), None)


def stages_of(
    messages: Sequence[Message],
    since: float,
    until: float | None,
    filler_at: float | None = None,
) -> dict[str, float]:
    """When each stage of a turn ended, as its message came, in seconds from ``since``.

    Where a stage came twice, as after a tool or a pause in which the bot took the turn to be over,
    the last one before the answer was heard counts; of the text, the first after that.

    Args:
        messages: Those of a turn.
        since: When the caller fell silent, on the loop's clock.
        until: When the answer was heard, likewise; None if it was not.
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


def _doing(messages: Sequence[Message]) -> set[str]:
    doing: set[str] = set()
    for message in messages:
        kind = message.get("type")
        if kind in _BEGINS:
            doing.add(_BEGINS[kind])
        elif kind in _ENDS:
            doing.difference_update(_ENDS[kind])
    return doing


def _texts(messages: Sequence[Message], kind: str) -> list[str]:
    texts = [_data(m).get("text") for m in messages if m.get("type") == kind]
    return [text for text in texts if isinstance(text, str)]


def _data(message: Message) -> dict[str, Any]:
    data = message.get("data")
    return data if isinstance(data, dict) else {}
