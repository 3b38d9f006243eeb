"""One utterance of the caller and its transcripts. Pure: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Utterance:
    """From the VAD's start of speech to the next one.

    Parameters:
        ended_at: The end of speech; None while the caller speaks.
        stopped_at: When the VAD noticed it.
        first_at: The first transcript since then.
        last_at: The last transcript since the end of speech.
        finals: The number of transcripts since the VAD noticed it.
        pending_words: The words of an interim transcript that no transcript has followed yet.
    """

    ended_at: float | None = None
    stopped_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    finals: int = 0
    pending_words: int = 0

    def stop(self, now: float, stop_secs: float) -> None:
        """The VAD has noticed the end of speech.

        Args:
            now: The time.
            stop_secs: How long the caller has been silent, in seconds.
        """
        self.stopped_at, self.ended_at = now, now - stop_secs
        if self.last_at is not None and self.last_at < self.ended_at:
            self.last_at = None

    def take_interim(self, text: str) -> None:
        """More of the utterance is to come."""
        self.pending_words = len(text.split())

    def take_final(self, text: str, now: float) -> bool:
        """Take a transcript.

        Returns:
            Whether it is the first one since the VAD noticed the end of speech, and no interim
            transcript had more words.
        """
        is_whole, self.pending_words = len(text.split()) >= self.pending_words, 0
        self.last_at = now
        if self.stopped_at is None:
            return False
        self.finals += 1
        if self.first_at is None:
            self.first_at = now
        return is_whole and self.finals == 1

    @property
    def transcript_secs(self) -> float | None:
        """From the end of speech to the last transcript, in seconds; None without one."""
        if self.last_at is None or self.ended_at is None:
            return None
        return self.last_at - self.ended_at

    @property
    def since_first_secs(self) -> float | None:
        """From the first to the last transcript since the VAD noticed the end of speech."""
        if self.last_at is None or self.first_at is None:
            return None
        return 0.0 if self.finals == 1 else max(self.last_at - self.first_at, 1e-6)
