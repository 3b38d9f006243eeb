"""Decides what is said of two recognisers' transcripts, and when the second one is asked. Pure.

The primary recogniser hears everything. The rescue gets the audio of an utterance of which
something is missing at its deadline: no transcript has come since the end of speech, or an interim
one has come since the last one. There are four cases for a transcript of the primary:

1. Its utterance is not rescued: it is said.
2. Its utterance is rescued, and the caller has not spoken since: it is dropped, unless the rescue
   had nothing to add.
3. The caller has spoken since, or may have while muted, and it begins like a rescued utterance: the
   rest is said.
4. It begins otherwise: it is said.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from pipecat_hedge.race.continuation import is_wide
from pipecat_hedge.voice.rescue_requests import MOST_SECS
from pipecat_hedge.voice.utterance import Utterance

ALIKE = 0.75
"""From this ratio on (``difflib``), two transcripts are of the same words. A new utterance that is
taken for the one before is rescued in its turn; one that is not would be said twice."""
OF_ONE = 0.5
"""As ``ALIKE``, for two transcripts of one utterance. Below it, the first one's is of the utterance
before, and came late: unrelated sentences reach some 0.4."""
STUCK_SECS = 3.0
"""Speech without a message, from which on a recogniser is stuck. With a learned second instead, the
one utterance in which it gets stuck is waited for 0.25 instead of 0.72 s, if it lasts 1 to 3 s
(``pytest -s tests/voice/test_stuck_recogniser.py -k gets_stuck``); and each noise of a second, of
which there is nothing to say, costs a connection."""
STUCK_TIMES = 1.5
"""This many times the longest speech without a message that one has ended is needed, too: some
recognisers say little."""
OWED = 4
"""Rescued utterances whose transcripts the primary may still send."""


@dataclass(slots=True)
class Owed:
    """A rescued utterance, whose transcripts the primary may still send.

    Parameters:
        text: What the rescue has added to what the primary had said.
        ended_at: The end of speech.
        has_come: Whether the primary has sent one.
    """

    text: str
    ended_at: float
    has_come: bool = False


@dataclass(slots=True)
class Asked:
    """A request to the rescue.

    Parameters:
        said: What the primary had said of the utterance, and each transcript since; of each, only
            what no answer has had yet.
        ended_at: The end of speech.
        asked_at: When it was sent.
        owed: What the rescue has said of it; None as long as it has said nothing.
    """

    said: list[str]
    ended_at: float
    asked_at: float
    owed: Owed | None = None

    def rest_of(self, text: str, *, is_now: bool) -> str | None:
        """What an answer adds to what the primary has said; None if it has none of that."""
        rest = None
        for place, said in enumerate(self.said):
            after = rest_after(said, text, alike=OF_ONE if is_now and not place else ALIKE)
            if after is None and f" {_bare(text)} " in f" {_bare(said)} ":
                after, self.said[place] = "", _bare(said).partition(_bare(text))[2]
            elif after is not None:
                self.said[place] = "" if after else rest_after(text, said, alike=0.0) or ""
            if after is not None:
                rest = text = after
            if rest == "":
                break
        return rest


class TranscriptRescue:
    """The utterance now, and those before it whose transcripts may still come.

    Attributes:
        utterance: The utterance now; None before the first.
        said: What the primary's transcripts have said of it.
        is_asked: Whether the rescue was asked for it.
        heard_at: When the primary's latest message came.
        began_at: When the caller last began to speak.
        dropped: How many of the primary's transcripts were dropped.
        ahead: What a transcript of the utterance before has said of this one.
    """

    def __init__(self) -> None:
        self.utterance: Utterance | None = None
        self.said = self.ahead = self._doubtful = ""
        self._known = self._again = self._ahead = ""
        self.is_asked = self._is_early = self._may_have_spoken = False
        self.heard_at = self.began_at = float("-inf")
        self.dropped = 0
        self._deadline_secs = self._longest_secs = 0.0
        self._asked: deque[Asked] = deque(maxlen=OWED)
        self._owed: deque[Owed] = deque(maxlen=OWED)

    # ---- the caller

    def start(self, now: float, before_secs: float, *, goes_on: bool = False) -> Utterance | None:
        """The VAD has noticed that the caller speaks.

        Args:
            now: The time.
            before_secs: How long the caller may have been speaking, in seconds.
            goes_on: Whether the rescue would get the utterance before together with this one.

        Returns:
            The utterance before.
        """
        before, self.utterance = self.utterance, Utterance()
        self._owed = deque((owed for owed in self._owed if not owed.has_come), OWED)
        self.ahead = self._ahead if self.heard_at >= now - before_secs else ""
        self.said = f"{self.said if goes_on else ''} {self.ahead}".strip()
        self.is_asked, self._ahead = False, ""
        if not goes_on:
            self._doubtful = ""
        self._known = self._again = ""
        self._may_have_spoken = False
        self.began_at, self.dropped = now, 0
        return before

    def unmute(self) -> None:
        """The caller was muted: the VAD may have missed that they spoke."""
        self._may_have_spoken = self.is_rescued

    def stop(self, now: float, stop_secs: float, deadline_secs: float) -> None:
        """The VAD has noticed the end of speech.

        Args:
            now: The time.
            stop_secs: How long the caller has been silent, in seconds.
            deadline_secs: When it is judged what is missing, in seconds from the end of speech.
        """
        if self.utterance is not None:
            self.utterance.stop(now, stop_secs)
            self._deadline_secs = deadline_secs

    @property
    def is_silent(self) -> bool:
        """Whether the primary has sent nothing since the caller began to speak."""
        return self.heard_at < self.began_at

    # ---- a stuck primary

    def is_stuck(self, now: float) -> bool:
        """Whether the primary has sent nothing for long, although the caller speaks."""
        return self._silence_secs(now) > max(STUCK_SECS, STUCK_TIMES * self._longest_secs)

    def repeat(self) -> None:
        """A fresh primary hears the utterance from its beginning: nothing of it is said twice."""
        self._known, self._again = self.said, ""

    def _silence_secs(self, now: float) -> float:
        if self.utterance is None or self.utterance.ended_at is not None:
            return 0.0
        return now - max(self.heard_at, self.began_at)

    def _heard(self, now: float) -> None:
        self._longest_secs = max(self._longest_secs, self._silence_secs(now))
        self.heard_at = now

    def _without_known(self, text: str) -> str:
        heard = f"{self._again} {text}"
        if not self._known or len(_bare(heard)) < len(_bare(self._known)):
            return "" if self._known else text
        rest = rest_after(self._known, heard, alike=0.0)
        return text if rest is None else rest

    # ---- the deadline

    @property
    def is_missing(self) -> bool:
        """Whether something of the utterance is missing now."""
        utterance = self.utterance
        if utterance is None or utterance.stopped_at is None:
            return False
        return utterance.last_at is None or utterance.pending_words > 0

    @property
    def due_at(self) -> float | None:
        """When it is judged what is missing; None if there is nothing to judge."""
        utterance = self.utterance
        if utterance is None or utterance.ended_at is None or self.is_asked:
            return None
        due_at = utterance.ended_at + self._deadline_secs
        if utterance.pending_words and self.heard_at > due_at:
            return self.heard_at + self._deadline_secs
        return due_at

    def ask(self, now: float) -> None:
        """The rescue is asked for the utterance."""
        if self.utterance is not None and self.utterance.ended_at is not None:
            self.is_asked = True
            self._asked.append(Asked([self.said], self.utterance.ended_at, now))

    # ---- transcripts

    def take_interim(self, text: str, now: float) -> str:
        """Take an interim transcript of the primary; returns what is passed on of it."""
        self._heard(now)
        if self._answer:
            return ""
        text = self._without_owed(self._without_known(text))[0]
        if text and self.utterance is not None:
            self.utterance.take_interim(text)
        return text

    def take_final(self, text: str, now: float) -> tuple[str, float | None]:
        """Take a transcript of the primary.

        Returns:
            What is said of it; and if it is the first of a rescued utterance, the end of speech.
        """
        self._heard(now)
        heard = text
        if self._known and self.utterance is not None and not self.is_rescued:
            text, self._again = self._without_known(text), f"{self._again} {text}"
            if not text:
                self.utterance.take_final(heard, now)
                return "", None
            self._known = ""
        owed = self._asked[-1].owed if self.is_rescued and not self._may_have_spoken else None
        if self._answer:
            self._ahead = rest_after(self._answer, text, alike=ALIKE) or ""
            rest, before = self._without_owed(text)
            if before is not None and not rest:  # it came late, and this one's is still to come
                owed = before
            text = ""
        elif owed is None:
            text, owed = self._without_owed(text)
        if not text:
            self.dropped += 1
            if not self.is_rescued:
                is_early = self.utterance is not None and self.utterance.stopped_at is None
                self._doubtful, self._is_early = heard, is_early
        elif self.utterance is not None:
            self.utterance.take_final(text, now)
            self.said = f"{self.said} {text}".strip()
            for asked in self._asked:
                asked.said.append(text)
        is_first = owed is not None and not owed.has_come
        if owed is not None:
            owed.has_come = True
        return text, owed.ended_at if owed is not None and is_first else None

    def take_rescue(self, text: str, now: float) -> str:
        """Take a transcript of the rescue; returns what is said of it."""
        utterance = self.utterance
        if not self._asked or utterance is None:
            return ""
        while len(self._asked) > 1 and now - self._asked[0].asked_at > MOST_SECS:
            self._asked.popleft()
        asked, rest = self._answered(text)
        is_now = utterance.ended_at == asked.ended_at
        if asked.owed is None:
            while self._asked[0] is not asked:  # answers come in the order of requests
                self._asked.popleft()
            if is_now and not self.is_missing:
                self._asked.popleft()
                return ""
            asked.owed = Owed("", asked.ended_at)
            self._owed.append(asked.owed)
            if is_now and self._doubtful:  # if it was of this utterance, no other one will come
                asked.owed.has_come = rest_after(text, self._doubtful, alike=ALIKE) is not None
        asked.owed.text = f"{asked.owed.text} {rest}".strip()
        if is_now:
            utterance.take_final(text, now)
        return rest

    def _answered(self, text: str) -> tuple[Asked, str]:
        """The request that an answer is for, and what is said of it."""
        waiting = [asked for asked in self._asked if asked.owed is None]
        ended_at = self.utterance.ended_at if self.utterance is not None else None
        for asked in (*waiting, *self._asked):
            rest = asked.rest_of(text, is_now=asked.ended_at == ended_at)
            if rest is not None:
                return asked, rest
        return waiting[0] if waiting else self._asked[-1], text

    def give_back(self, now: float, *, goes_on: bool = False) -> str:
        """What was dropped as another utterance's, if nothing else has come of this one.

        Args:
            now: The time.
            goes_on: See ``start``. Then what came while the caller spoke stays in doubt.
        """
        if goes_on and self._is_early:
            return ""
        text, self._doubtful = self._doubtful, ""
        if not text or self.utterance is None or self.utterance.stopped_at is None:
            return ""
        if self.utterance.last_at is not None or self.utterance.pending_words:
            return ""  # what was dropped was not of this one
        self.utterance.take_final(text, now)
        return text

    def take_lost(self) -> list[float]:
        """The ends of speech of the rescued utterances whose transcripts have not come."""
        lost = [owed.ended_at for owed in self._owed if not owed.has_come]
        self._owed.clear()
        return lost

    @property
    def is_rescued(self) -> bool:
        """Whether the rescue has answered for the utterance."""
        if not self._asked or self._asked[-1].owed is None or self.utterance is None:
            return False
        return self.utterance.ended_at == self._asked[-1].ended_at

    @property
    def _answer(self) -> str:
        """What the rescue has said of the utterance, as long as the caller says no more."""
        owed = self._asked[-1].owed if self.is_rescued else None
        return "" if owed is None or self._may_have_spoken else owed.text

    def _without_owed(self, text: str) -> tuple[str, Owed | None]:
        has_stopped = self.utterance is not None and self.utterance.stopped_at is not None
        for owed in self._owed:
            if owed.has_come and has_stopped:  # this one's transcript is due by now
                continue
            rest = rest_after(owed.text, text, alike=ALIKE)
            if rest is not None:
                return rest, owed
        return text, None


def rest_after(said: str, text: str, *, alike: float) -> str | None:
    """What a transcript adds to words that were said.

    Args:
        said: The words, as another recogniser heard them.
        text: The transcript, which may begin with them.
        alike: The least ratio (``difflib``) of the words and the beginning of the transcript.

    Returns:
        The rest; None if it begins otherwise.
    """
    ends = [match.end() for match in _words(text)]
    matcher = SequenceMatcher(None, "", _bare(said), autojunk=False)
    best, end = 0.0, 0
    for each in ends:
        matcher.set_seq1(_bare(text[:each]))
        ratio = matcher.ratio()
        if ratio > best:
            best, end = ratio, each
    return text[end:].strip() if best >= alike and best > 0 else None


def _words(text: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"\S" if any(is_wide(char) for char in text) else r"\S+", text)


def _bare(text: str) -> str:
    return re.sub(r"[^\w\s]", "", text.casefold())
