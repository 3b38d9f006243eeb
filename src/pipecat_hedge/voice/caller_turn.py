"""What is heard of the caller until the LLM is asked, and whether that is what it is asked about.

The problem: a latency is counted from the caller's last sound to the answer. But a cough is a sound
too, and so are a door and an "mhm" that the bot talks over. Nobody answers those; when the bot
speaks up of its own accord long after, that was no latency of twenty seconds.

So a sound counts only if something ties it to what the LLM is asked. Any of these does:

- words: since the caller began, a user's message was written into the conversation; or something
  was transcribed, in a pipeline whose aggregator does not tell of messages. However late: speech to
  text may take its time, and a turn may be held until the caller has finished a thought;
- the LLM is asked as the caller's turn ends, which is how it is without speech to text, and where
  an unintelligible turn is answered with "Sorry?". Pipecat asks in the same instant. A
  speech-to-speech model is not asked, it begins to answer, and takes longer;
- the LLM is asked about a turn that is expected to end here.

Without any the LLM has been asked for another reason, and nobody has spoken.
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

__all__ = ["CallerTurn"]

REQUEST_SECS, RESPONSE_SECS = 1.0, 3.0
"""So soon after the end of a turn the LLM is asked for it; or begins to answer, if nobody asks."""
TRANSCRIBED_SECS = 5.0
"""A turn that begins so long after a sound, of which no word was understood, is not that sound's.
As long as Pipecat waits for a transcript."""


class CallerTurn:
    """Follows the caller, from one asking of the LLM to the next."""

    def __init__(self) -> None:
        """Nothing has been heard."""
        self._has_turns = False
        self._has_messages = False
        self._transcribed_at: float | None = None
        self._message_at: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._began_at: float | None = None
        self._silence_at: float | None = None
        self._noticed_at: float | None = None  # when the silence was
        self._ended_at: float | None = None

    def take(self, frame: Frame, now: float) -> None:
        """Note what a frame tells of the caller.

        Args:
            frame: Any frame.
            now: When it was pushed, in seconds.
        """
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._begin(now)
            self._silence_at = None
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._begin(now)
            self._silence_at, self._noticed_at = now - frame.stop_secs, now
        elif isinstance(frame, UserStartedSpeakingFrame):
            quiet_secs = 0.0 if self._silence_at is None else now - self._silence_at
            if quiet_secs > TRANSCRIBED_SECS and not self._is_after_beginning(self._transcribed_at):
                self._forget()
            self._begin(now)
            self._ended_at, self._has_turns = None, True
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._begin(now)
            self._ended_at, self._has_turns = now, True
        elif isinstance(frame, TranscriptionFrame):
            if frame.text.strip():
                self._transcribed_at = now
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
        """Say what the LLM is asked about; that is then done with.

        Args:
            now: When the LLM began, in seconds.
            context_at: When the context was handed to it; None if it was not.
            provisional: Whether the context is of a turn that is expected to end here.

        Returns:
            The caller's last sound and the end of the turn, in seconds, as far as they are known;
            None if it is asked for another reason.
        """
        text_at = self._message_at if self._has_messages else self._transcribed_at
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
