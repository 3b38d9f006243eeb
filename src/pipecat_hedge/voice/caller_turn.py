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

ASKED_SECS, ANSWERED_SECS = 1.0, 3.0
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
        self._transcribed: float | None = None
        self._written: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._began: float | None = None
        self._silence: float | None = None
        self._noticed: float | None = None  # when the silence was
        self._ended: float | None = None

    def take(self, frame: Frame, now: float) -> None:
        """Note what a frame tells of the caller.

        Args:
            frame: Any frame.
            now: When it was pushed, in seconds.
        """
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._begin(now)
            self._silence = None
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._begin(now)
            self._silence, self._noticed = now - frame.stop_secs, now
        elif isinstance(frame, UserStartedSpeakingFrame):
            quiet_secs = 0.0 if self._silence is None else now - self._silence
            if quiet_secs > TRANSCRIBED_SECS and not self._is_since_began(self._transcribed):
                self._forget()
            self._begin(now)
            self._ended, self._has_turns = None, True
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._begin(now)
            self._ended, self._has_turns = now, True
        elif isinstance(frame, TranscriptionFrame):
            if frame.text.strip():
                self._transcribed = now
        elif isinstance(frame, LLMContextUserTurnFrame):
            self._written, self._has_messages = now, True

    def _begin(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def _is_since_began(self, at: float | None) -> bool:
        return at is not None and self._began is not None and at >= self._began

    def asked(
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
        words = self._written if self._has_messages else self._transcribed
        if not provisional and not self._is_since_began(words):
            end = self._ended if self._has_turns else self._noticed
            asked_at, limit = now, ANSWERED_SECS
            if context_at is not None:
                asked_at, limit = context_at, ASKED_SECS
            if end is None or asked_at - end > limit:
                return None
        silence, ended = self._silence, self._ended
        self._forget()
        return silence, ended
