"""How the committed answer is let out, and what is kept back in case it breaks off.

Law: what has been released can not be taken back, so an unfinished sentence is released only where
keeping it would cost the caller time.

A text-to-speech that speaks sentence by sentence gains nothing from half of one, so the half is
kept back: if the stream breaks there, the caller never hears a fragment, and the attempt that
continues starts at a whole sentence. One thing such a service does need is the beginning of the
next sentence, since only that tells it that the one before has ended; without it every sentence
would be spoken one sentence late. So a completed sentence is released together with what has come
after it, usually one token. If the stream breaks there, that token is taken back before it is
spoken (``retract.py``). Where no text-to-speech follows, nothing has to be released early and
nothing is.

A text-to-speech that streams tokens speaks the fragment at once; there nothing is kept back, and
nothing can be taken back.

Where nobody goes on with the answer, what the caller is told of it (`fallback_text`) follows as a
sentence of its own. A fragment that has been spoken is marked as broken off, else both would be
spoken in one breath.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecat_hedge.race.continuation import Continuation, is_wide
from pipecat_hedge.service.sentences import SentenceFinder, is_whole_sentence

__all__ = ["Break", "OutputBuffer"]


_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Break:
    """Where an answer that has broken off ends.

    Parameters:
        say: What was kept back, if it is a whole sentence that only lacked a sign of the next one.
        retract: What was released of a sentence that will not be finished, and is not yet spoken.
    """

    say: str = ""
    retract: str = ""


class OutputBuffer:
    """Lets one turn's answer out.

    Attributes:
        said: Everything released so far, without what was taken back.
        is_whole: Whether nothing is known to be missing: an answer that has broken off did so at
            the end of a sentence.
    """

    def __init__(
        self, *, by_sentence: bool, with_lookahead: bool = False, language: str | None = None
    ):
        """Begin a turn.

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

    async def feed(self, text: str) -> str:
        """Take a piece of the answer.

        Returns:
            What to release now; may be empty.
        """
        if self._continuation is not None:
            text = self._continuation.feed(text)
        return self._release(await self._releasable(text))

    def finish(self) -> str:
        """End the answer as its provider meant it to end.

        Returns:
            What was kept back.
        """
        rest = self._continuation.finish() if self._continuation is not None else ""
        out, self._kept = self._kept + rest, ""
        return self._release(out)

    async def break_off(self) -> Break:
        """End an answer that has broken off.

        Returns:
            What is still to be said, or what is to be taken back.
        """
        kept, self._kept = self._kept, ""
        if self._by_sentence:
            unfinished = self._finder.open
        else:
            finder = SentenceFinder(self._language)
            await finder.feed(self.said)
            unfinished = finder.open
        if self._continuation is not None and not unfinished.strip():
            return Break()  # it added nothing: whether the answer is whole is as before
        self.is_whole = is_whole_sentence(unfinished, self._language)
        if self.is_whole:
            return Break(say=self._release(kept))
        released = unfinished[: max(len(unfinished) - len(kept), 0)]
        if not self._with_lookahead or not released.strip():
            return Break()
        self.said = self.said.removesuffix(released)
        return Break(retract=released)

    def start_continuation(self) -> None:
        """From here on another attempt continues what has been said."""
        self._finder = SentenceFinder(self._language)
        self._continuation = Continuation(self.said)

    def close_with(self, sentence: str) -> str:
        """Have a sentence of our own follow what was said of an answer that has broken off.

        Returns:
            What to release: the sentence, set apart from what is in front of it.
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
        length = (
            len(self._kept) if self._with_lookahead else len(self._kept) - len(self._finder.open)
        )
        out, self._kept = self._kept[:length], self._kept[length:]
        return out

    def _release(self, text: str) -> str:
        self.said += text
        return text
