"""A turn that is spoken: its sentences, the requests for each, and what is reported of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.race.reports import SpeechReport
from pipecat_hedge.voice.hosted_voice import HostedVoice, Synthesis


@dataclass(eq=False)
class Turn:
    """The texts of one audio context; see ``SpeechReport``.

    Parameters:
        context_id: The context. It ends when the model pauses, and begins again.
        began_at: When its first sentence came.
        is_interruptible: Whether an interruption ends it.
        number: The turn of the LLM whose answer it is; None if it is none.
        is_complete: Whether no sentence is added any more.
        first_at: When its audio began to play.
        context_at: When the context's did, since it began last.
    """

    context_id: str
    began_at: float
    is_interruptible: bool
    number: int | None = None
    is_complete: bool = False
    voice: str | None = None
    sentences: int = 0
    rescued: int = 0
    left_out: int = 0
    first_at: float | None = None
    context_at: float | None = None
    silent_secs: float = 0.0
    characters: int = 0
    extra_characters: int = 0

    def begin_sentence(self, at: float, dry_at: float) -> float:
        """A sentence begins to play, after what was played until ``dry_at``.

        Returns:
            Its start, in seconds from that of the context's audio.
        """
        if self.first_at is None:
            self.first_at = at
        else:
            self.silent_secs += max(0.0, at - dry_at)
        if self.context_at is None:
            self.context_at = at
        return at - self.context_at

    def end_sentence(self, sentence: Sentence, *, is_whole: bool) -> None:
        """A sentence has ended."""
        self.left_out += not is_whole
        if sentence.winner is not None:
            self.voice = sentence.winner.voice.name
            self.rescued += is_whole and sentence.winner is not sentence.asked[0]

    def report(self, *, was_interrupted: bool) -> SpeechReport:
        """What is reported of it."""
        first_secs = None if self.first_at is None else self.first_at - self.began_at
        return SpeechReport(
            self.voice, self.sentences, self.rescued, self.left_out, first_secs,
            self.silent_secs, self.characters, self.extra_characters, was_interrupted, self.number,
        )  # fmt: skip


@dataclass(eq=False)
class Sentence:
    """A sentence that is being spoken. Its requests, and which of them speaks, change.

    Parameters:
        text: Its text.
        turn: The turn that it is of.
        slot: Its place in what is spoken; see ``latest_text``.
        before: The sentence before it, while that is spoken.
        is_first: Whether it is the turn's first one.
        is_filler: Whether it is a filler.
        asked: The requests for it, and for its rest.
        winner: The request whose audio is played.
        rest: The request for what that one has not said.
        offset_secs: The start of the winner's audio, in seconds from that of the turn's.
        patience_secs: How long the latest request may be silent before another voice is asked.
        changed: Set when something has come of a request.
        is_done: Whether it has been spoken, or left out.
    """

    text: str
    turn: Turn
    slot: Any
    before: Sentence | None
    is_first: bool
    is_filler: bool
    asked: list[Synthesis] = field(default_factory=list[Synthesis])
    winner: Synthesis | None = None
    rest: Synthesis | None = None
    offset_secs: float | None = None
    patience_secs: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_done: bool = False

    @property
    def is_next(self) -> bool:
        """Whether everything before it has been said."""
        return self.before is None or self.before.is_done

    def has_asked(self, voice: HostedVoice) -> bool:
        """Whether a voice was asked for it."""
        return any(each.voice is voice for each in self.asked)

    def was_failed_by(self, asked: Synthesis) -> bool:
        """Whether a request has broken off, or was silent when the rest was asked of it.

        The others were silent when a sound was heard, and may have been well.
        """
        winner = self.winner
        if winner is None or winner.audible_at is None:
            return False
        return asked is winner or asked.asked_at > winner.audible_at

    def end(self) -> None:
        """Let go of the sentence before it, or all of a call's would be kept."""
        self.is_done, self.before = True, None
