"""Decides which caller speech an LLM response answers.

Latency counts from the caller's last sound. But a cough, a door or an "mhm" is also a sound; a
response long after one of those has no latency of twenty seconds. A sound counts if one holds:

- Text: since the sound began, a user message entered the context, or, without an aggregator that
  reports messages, a transcript arrived. There is no time limit: speech to text may be slow.
- The LLM was called as the caller's turn ended, as without speech to text. Pipecat calls it at
  once; a speech-to-speech model is not called and takes longer to start its response.
- The context is that of a turn that is expected to end (speculation).

Otherwise the response does not answer the caller.
"""

from __future__ import annotations

from pipecat.frames.frames import (
    Frame,
    LLMContextUserTurnFrame,
    TranscriptionFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)

REQUEST_SECS = 1.0
"""Longest time from the end of a turn to the LLM call."""
RESPONSE_SECS = 3.0
"""Longest time to the response where no context is pushed (speech-to-speech)."""
TRANSCRIBED_SECS = 5.0
"""A turn that starts later than this after an untranscribed sound is unrelated to the sound.
Pipecat waits as long for a transcript."""


class CallerTurn:
    """Tracks the caller between two LLM responses.

    Attributes:
        transcribed_at: When the latest transcript came; None if none has.
    """

    def __init__(self) -> None:
        self._has_turns = False
        self._has_messages = False
        self.transcribed_at: float | None = None
        self._message_at: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._began_at: float | None = None
        self._silence_at: float | None = None
        self._noticed_at: float | None = None  # when the VAD reported the silence
        self._ended_at: float | None = None

    def take(self, frame: Frame, now: float) -> None:
        """Process a frame.

        Args:
            frame: The frame.
            now: The time at which it was pushed, in seconds.
        """
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._begin(now)
            self._silence_at = None
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._begin(now)
            self._silence_at, self._noticed_at = now - frame.stop_secs, now
        elif isinstance(frame, UserStartedSpeakingFrame):
            quiet_secs = 0.0 if self._silence_at is None else now - self._silence_at
            if quiet_secs > TRANSCRIBED_SECS and not self._is_after_beginning(self.transcribed_at):
                self._forget()
            self._begin(now)
            self._ended_at, self._has_turns = None, True
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._begin(now)
            self._ended_at, self._has_turns = now, True
        elif isinstance(frame, TranscriptionFrame):
            if frame.text.strip():
                self.transcribed_at = now
        elif isinstance(frame, LLMContextUserTurnFrame):
            self._message_at, self._has_messages = now, True

    def _begin(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now

    def _is_after_beginning(self, at: float | None) -> bool:
        return at is not None and self._began_at is not None and at >= self._began_at

    def llm_started(
        self, now: float, context_at: float | None, *, provisional: bool
    ) -> tuple[float | None, float | None] | None:
        """Return the caller speech that the LLM response answers, and reset.

        Args:
            now: The start of the response, in seconds.
            context_at: When the context was pushed; None if none was.
            provisional: Whether the context is of a turn that is expected to end.

        Returns:
            The caller's last sound and the end of the turn, in seconds, where known; None if the
            response does not answer the caller.
        """
        text_at = self._message_at if self._has_messages else self.transcribed_at
        if not provisional and not self._is_after_beginning(text_at):
            end = self._ended_at if self._has_turns else self._noticed_at
            requested_at, limit = now, RESPONSE_SECS
            if context_at is not None:
                requested_at, limit = context_at, REQUEST_SECS
            if end is None or requested_at - end > limit:
                return None
        silence, ended = self._silence_at, self._ended_at
        self._forget()
        return silence, ended
