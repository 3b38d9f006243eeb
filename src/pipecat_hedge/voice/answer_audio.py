"""Assigns TTS audio to the LLM's answer or to the bot's own lines.

A bot also speaks lines of its own (``TTSSpeakFrame``): a greeting, "let me check", a filler. They
may play between the LLM call and its answer, and most enter the context, so neither the time nor
``append_to_context`` identifies them. The TTS context id does, because a TTS emits frames in the
order in which it speaks: audio that starts outside the LLM response is a line. Inside it, a line
is audio that stays out of the context, or whose announced text equals a queued line. A streaming
TTS announces no text: there, a line is audio that starts before the LLM's first text.

Not covered: a line whose text equals a sentence of the answer next to it. A speech-to-speech model
has no lines; all of its audio is the answer.
"""

from __future__ import annotations

from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.tts_service import TTSService


class AnswerAudio:
    """Tracks what is spoken by TTS context id."""

    def __init__(self) -> None:
        self._turn_of_response: dict[int, int] = {}
        self._responding: dict[FrameProcessor, int] = {}
        self._turns: dict[str | None, int | None] = {}  # by context id; None is a line
        self._lines: list[str] = []
        self._has_text = False

    def turn_of(self, context_id: str | None) -> int | None:
        """Return the turn that a context's audio answers; None if it is not an answer."""
        return self._turns.get(context_id)

    def is_line(self, context_id: str | None) -> bool:
        """Whether a context's text is known to be a line of the bot."""
        return context_id is not None and self._turns.get(context_id, 0) is None

    def response_started(self, start: LLMFullResponseStartFrame, turn: int) -> None:
        """Register the start of an LLM response."""
        self._turn_of_response[start.id] = turn

    def interrupted(self) -> None:
        """Drop what was queued to be spoken."""
        self._turn_of_response.clear()
        self._responding.clear()
        self._lines.clear()

    def frame_queued(self, frame: Frame) -> None:
        """Process a frame that reaches a TTS."""
        if isinstance(frame, TTSSpeakFrame):
            if frame.append_to_context and frame.text.strip():
                self._lines.append(frame.text)
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._has_text = False
        elif isinstance(frame, LLMTextFrame) and frame.text.strip() and not frame.skip_tts:
            self._has_text = True

    def frame_pushed(self, frame: Frame, source: FrameProcessor) -> None:
        """Process a frame that a TTS pushes."""
        if isinstance(frame, LLMFullResponseStartFrame):
            if (turn := self._turn_of_response.pop(frame.id, None)) is not None:
                self._responding[source] = turn
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._responding.pop(source, None)
        elif isinstance(frame, AggregatedTextFrame):
            is_new = frame.context_id is not None and frame.context_id not in self._turns
            if is_new and frame.text in self._lines:
                self._lines.remove(frame.text)
                self._turns[frame.context_id] = None

    def audio_started(self, frame: TTSStartedFrame, source: FrameProcessor, turn: int) -> None:
        """Assign the audio that starts to a turn or a line.

        Args:
            frame: The start of the audio.
            source: The processor that speaks.
            turn: The current turn's number.
        """
        if frame.context_id is not None and frame.context_id in self._turns:
            return
        answers: int | None = turn
        if isinstance(source, TTSService):
            answers = self._responding.get(source)
            if self._lines and (answers is None or not self._has_text):
                if frame.append_to_context:
                    self._lines.pop(0)
                answers = None
        self._turns[frame.context_id] = answers if frame.append_to_context else None
