"""Releases the committed answer, and keeps back what must be dropped if it breaks off.

Text that was released cannot be taken back. A text-to-speech that speaks sentences gains nothing
from half of one, so the half is kept back. It does need the start of the next sentence to see that
one has ended: a completed sentence is released with what follows it, usually one token, which can
still be retracted (``retract.py``). A text-to-speech that streams tokens speaks at once, so nothing
is kept back. If the answer is not continued, the policy's ``fallback_text`` follows as a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecat_hedge.race.continuation import Continuation, is_wide
from pipecat_hedge.service.sentences import SentenceFinder, is_whole_sentence

_ELLIPSIS = "..."
"""Marks a spoken fragment as broken off, so that the next sentence is spoken apart."""


@dataclass(frozen=True, slots=True)
class Break:
    """Where an answer that breaks off ends.

    Parameters:
        is_whole: Whether that is the end of a sentence.
        say: The kept text, if it is a whole sentence that only lacked the start of the next one.
        retract: The released part of an unfinished sentence that is not spoken yet.
    """

    is_whole: bool
    say: str = ""
    retract: str = ""

    def applied_to(self, said: str) -> str:
        """What has been said then."""
        return said.removesuffix(self.retract) + self.say


class OutputBuffer:
    """Releases one turn's answer.

    Attributes:
        has_sentence: Whether a whole sentence was released.
        said: Everything released so far, without what was retracted.
        is_whole: Whether the answer did not break off, or did so after a whole sentence.
    """

    def __init__(
        self, *, by_sentence: bool, with_lookahead: bool = False, language: str | None = None
    ):
        """Start a turn.

        Args:
            by_sentence: Whether to keep unfinished sentences back.
            with_lookahead: Whether a text-to-speech follows that must see the next sentence begin.
            language: The language of the text; None is English.
        """
        self._by_sentence = by_sentence
        self._with_lookahead = with_lookahead
        self._language = language
        self._finder = SentenceFinder(language)
        self._kept = ""
        self._continuation: Continuation | None = None
        self.said = ""
        self.is_whole = True
        self.has_sentence = False

    async def feed(self, text: str) -> str:
        """Add a piece of the answer and return what to release now; may be empty."""
        if self._continuation is not None:
            text = self._continuation.feed(text)
        return self._release(await self._releasable(text))

    def finish(self) -> str:
        """End an answer that ended normally, and return what was kept back."""
        rest = self._continuation.finish() if self._continuation is not None else ""
        out, self._kept = self._kept + rest, ""
        return self._release(out)

    async def break_off(self) -> Break:
        """End an answer that has broken off.

        Returns:
            What is still to be said, or to be retracted.
        """
        end = await self.break_here()
        self.is_whole, self._kept = end.is_whole, ""
        self.said = end.applied_to(self.said)
        return end

    async def break_here(self) -> Break:
        """What would still be said, or retracted, if the answer broke off now."""
        kept = self._kept
        if self._by_sentence:
            unfinished = self._finder.open
        else:
            finder = SentenceFinder(self._language)
            await finder.feed(self.said)
            unfinished = finder.open
        if self._continuation is not None and not unfinished.strip():
            return Break(self.is_whole)  # it added nothing
        if is_whole_sentence(unfinished, self._language):
            return Break(is_whole=True, say=kept)
        released = unfinished[: max(len(unfinished) - len(kept), 0)]
        can_retract = self._with_lookahead and released.strip()
        return Break(is_whole=False, retract=released if can_retract else "")

    def start_continuation(self) -> None:
        """From now on another attempt continues what was said."""
        self._finder = SentenceFinder(self._language)
        self._continuation = Continuation(self.said)

    def close_with(self, sentence: str) -> str:
        """Append a sentence of our own to an answer that has broken off.

        Returns:
            What to release: the sentence, separated from what precedes it.
        """
        was_spoken_at_once = not (self._by_sentence or self._with_lookahead)
        end = _ELLIPSIS if was_spoken_at_once and not self.is_whole else ""
        last, sentence = (self.said + end)[-1], sentence.strip()
        needs_gap = not (last.isspace() or (is_wide(last) and is_wide(sentence[0])))
        return self._release(f"{end} {sentence}" if needs_gap else end + sentence)

    async def _releasable(self, text: str) -> str:
        if not self._by_sentence:
            return text
        is_whole = await self._finder.feed(text)
        self._kept += text
        if not is_whole:
            return ""
        self.has_sentence = True
        length = (
            len(self._kept) if self._with_lookahead else len(self._kept) - len(self._finder.open)
        )
        out, self._kept = self._kept[:length], self._kept[length:]
        return out

    def _release(self, text: str) -> str:
        self.said += text
        return text
