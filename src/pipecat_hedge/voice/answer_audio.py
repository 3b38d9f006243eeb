"""Which of the bot's sounds are the LLM's answer, and to which turn.

The problem: a bot also says lines of its own, such as a greeting, "let me check" before a tool, or
a filler. They may begin to sound after the LLM has been asked and before it answers, and most go
into the conversation as an answer does, so neither the time nor ``append_to_context`` tells them
apart.

Ours goes by the text-to-speech's context ids, which every sound has. A text-to-speech lets frames
out in the order of what it speaks: what opens outside the LLM's start and end is a line. Inside,
so is what is said to stay out of the conversation, and what is announced with the words of a line
that was taken up. One that streams tokens announces nothing before it sounds: there, a line is what
opens before the LLM has said a word.

Left out: a line in the very words of a sentence of the answer beside it.

A speech-to-speech model takes up no lines, and tells of the start of its answer only behind its
sound: whatever it says is the answer.
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

__all__ = ["AnswerAudio"]


class AnswerAudio:
    """Follows what is spoken by its context ids."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._turn_of_response: dict[int, int] = {}
        self._responding: dict[FrameProcessor, int] = {}
        self._turns: dict[str | None, int | None] = {}  # by context id; None is a line
        self._lines: list[str] = []
        self._has_text = False

    def turn_of(self, context_id: str | None) -> int | None:
        """The turn that a sound answers; None if it does not.

        Args:
            context_id: Whose sound it is.
        """
        return self._turns.get(context_id)

    def is_line(self, context_id: str | None) -> bool:
        """Whether words are known to be a line of the bot's own.

        Args:
            context_id: Whose words they are.
        """
        return context_id is not None and self._turns.get(context_id, 0) is None

    def response_started(self, start: LLMFullResponseStartFrame, turn: int) -> None:
        """The LLM begins to answer.

        Args:
            start: The beginning of its answer.
            turn: The turn's number.
        """
        self._turn_of_response[start.id] = turn

    def interrupted(self) -> None:
        """What was about to be spoken will not be."""
        self._turn_of_response.clear()
        self._responding.clear()
        self._lines.clear()

    def frame_queued(self, frame: Frame) -> None:
        """Note what a text-to-speech is about to speak.

        Args:
            frame: Any frame that reaches it.
        """
        if isinstance(frame, TTSSpeakFrame):
            if frame.append_to_context and frame.text.strip():
                self._lines.append(frame.text)
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._has_text = False
        elif isinstance(frame, LLMTextFrame) and frame.text.strip() and not frame.skip_tts:
            self._has_text = True

    def frame_pushed(self, frame: Frame, source: FrameProcessor) -> None:
        """Note what a text-to-speech lets out.

        Args:
            frame: Any frame that it pushes.
            source: The text-to-speech.
        """
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
        """Somebody begins to speak.

        Args:
            frame: The beginning.
            source: Who speaks.
            turn: The turn that is going on.
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
