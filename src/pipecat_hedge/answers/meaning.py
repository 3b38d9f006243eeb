"""What a question asks, as far as its words tell. Pure.

Embeddings put opposites side by side: "open by default?" and "closed by default?" are 0.98 alike
(measured by the vLLM semantic router). So two questions count as the same only if their words say
the same, however alike they are. The words are English (``english.toml``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any

from pipecat_hedge.race.errors import missing_extra

__all__ = ["Meaning", "Vocabulary"]

_TOKENS = re.compile(r"[€$£%]|\d+(?:[.,:]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)?")
_ACTOR = re.compile(
    r"\b(?:can|could|may|might|will|would|shall|should|must|do|does|am|are|past|if|when) "
    r"(i|you|(?:the|my|your|an?) \w+|(?!this|does)\w{3,}s) (?:must |want to )?(\w+)"
)
_OWNER = re.compile(r"\b(my|your) (\w+)")
_PERSON = {"i": "i", "my": "i", "you": "you", "your": "you"}
"""Others are third persons: "my wife", "guests"."""
_ARTICLES = frozenset({"a", "an", "the", "my", "your", "any", "some"})
"""Left out of a frame."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a question asks.

    Parameters:
        words: Its content words, the last one first: stems, or the first of their synonyms; with
            ``must`` for any obligation, and ``past``. One behind a preposition of direction has it
            before it.
        frame: All of its words but articles, with gaps for these.
        kinds: What it asks for: ``time``, ``place``, ``price`` and so on; empty for yes or no.
        negated: The content words that negations stand before.
        figures: Its numbers and currency signs, and ``many``, each with the content word that
            follows.
        persons: Who does or owns something, where it says so: ``i``, ``you`` or ``other``, by the
            word.
    """

    words: tuple[str, ...]
    frame: tuple[str, ...]
    kinds: frozenset[str]
    negated: frozenset[str]
    figures: tuple[tuple[str, str], ...]
    persons: Mapping[str, str]

    def asks_like(self, other: Meaning) -> bool:
        """Whether both ask the same, as far as their words tell; not if there are none."""
        return (
            bool(self.words)
            and (set(self.words), self.kinds) == (set(other.words), other.kinds)
            # Points for miles are not miles for points; but on Sunday, when is when on Sunday.
            and (self.frame != other.frame or self.words == other.words)
            and (self.negated, self.figures) == (other.negated, other.figures)
            and all(other.persons.get(word, who) == who for word, who in self.persons.items())
        )


class Vocabulary:
    """Reads questions."""

    def __init__(self, synonyms: Iterable[Sequence[str]] = (), questions: Sequence[str] = ()):
        """Add synonyms.

        Args:
            synonyms: Groups of words that mean the same.
            questions: All curated questions: in a hotel's, the restaurant is not "you".

        Raises:
            ConfigurationError: If ``snowballstemmer`` is not installed.
        """
        english = _english()
        self._stem = _stemmer().stemWord
        self._same: dict[str, str] = {}
        for group in (*map(str.split, english["groups"]["synonyms"]), *synonyms):
            stems = [self._stem(word.casefold()) for word in group]
            self._same.update(dict.fromkeys(stems, self._same.get(stems[0], stems[0])))
        self._ignored = frozenset(english["ignored"].split())
        self._directed = frozenset(english["directed"].split())
        self._negations = frozenset(english["negations"].split())
        self._numbers = {word: str(n) for n, word in enumerate(english["numbers"].split())}
        venue, named = self._venues(questions, english["venues"])
        self._rewrites = [
            (_compiled(was.replace("VENUE", venue).replace("NAMED", named)), becomes)
            for was, becomes in english["rewrites"]
        ]
        self._kinds = {
            kind: re.compile(rf"\b(?:{pattern})\b") for kind, pattern in english["kinds"].items()
        }
        self._refers = re.compile(english["refers"])
        self._impersonal = re.compile(english["impersonal"])
        self._asking = {kind: self._words(of) for kind, of in english["interrogatives"].items()}

    def stands_alone(self, text: str) -> bool:
        """Return whether a question can be understood without what was said before."""
        text = text.casefold()
        head, comma, _ = text.rpartition(",")
        if comma and self.meaning(head).words:  # "Parking, how much is that?"
            text = head
        return self._refers.search(self._impersonal.sub("", text)) is None

    def meaning(self, text: str) -> Meaning:
        """Return what a text asks."""
        text = self._rewritten(text)
        kinds = self._asked_in(text)
        words, frame, following = list[str](), list[str](), ""
        negated, figures = set[str](), list[tuple[str, str]]()
        asking = self._asking["all"].union(*(self._asking.get(kind, ()) for kind in kinds))
        tokens: list[str] = _TOKENS.findall(text)
        for token in reversed(tokens):
            plain = self._numbers.get(token, token.replace("'", ""))
            if plain not in _ARTICLES:
                frame.append(plain)
            if plain[0].isdigit() or plain in "€$£%" or plain == "many":
                figures.append((plain, following))
            elif plain in self._negations:
                negated.add(following)
            elif plain in self._directed:
                if words and words[-1] == following:
                    words[-1] = f"{plain} {following}"
                elif not following:
                    words.append(plain)
            elif plain not in self._ignored and self._stem(plain) not in self._ignored:
                following = self._word(plain)
                if following not in asking:
                    words.append(following)
                    frame[-1] = ""
        if not words:  # "Where am I?" is not "Where are you?"
            words = re.findall(r"\b(?:i|you)(?=r?\b)", text)
        said: list[tuple[str, str]] = [*_ACTOR.findall(text), *_OWNER.findall(text)]
        persons = dict[str, str]()
        for who, verb in said:
            word, person = self._word(verb), _PERSON.get(who, "other")
            if person != "other" or word not in asking:
                persons[word] = person
        return Meaning(
            tuple(words),
            tuple(frame),
            kinds,
            frozenset(negated),
            tuple(sorted(figures, key=itemgetter(1))),
            persons,
        )

    def _venues(self, questions: Sequence[str], groups: Sequence[str]) -> tuple[str, str]:
        """Return patterns of the venue that is called: any if none is named; if one is, as its own.

        "How do I cancel my hotel booking?" names a hotel, but it may be a travel agency's.
        """
        text, never = " ".join(questions).casefold(), "(?!)"
        words = set(_TOKENS.findall(text))
        for group in groups:
            named = [venue for venue in group.split() if venue in words]
            if len({self._word(venue) for venue in named}) > 1:
                return never, never
            if named:
                called = f"(?:{'|'.join(named)})"
                is_own = re.search(rf"\b(?:the|your|our|this) {called}\b", text)
                # "In the shop" is not online.
                return called, called if is_own and not {"shop", "store"} & set(named) else never
        return f"(?:{'|'.join(' '.join(groups).split())})", never

    def _rewritten(self, text: str) -> str:
        text = text.casefold().replace("’", "'")
        for was, becomes in self._rewrites:
            text = was.sub(becomes, text)
        return " ".join(text.split())

    def _asked_in(self, text: str) -> frozenset[str]:
        found = set[str]()
        for kind, pattern in self._kinds.items():
            rest = pattern.sub(" ", text)
            if rest != text:
                found.add(kind)
                text = rest
        if not found and re.search(r"\b(?:what|which)\b", text):
            found.add("choice")
        return frozenset(found)

    def _word(self, token: str) -> str:
        stem: str = self._stem(token)
        return self._same.get(stem, stem)

    def _words(self, text: str) -> frozenset[str]:
        return frozenset(map(self._word, text.split()))


@cache
def _english() -> dict[str, Any]:
    return tomllib.loads(
        files("pipecat_hedge.answers").joinpath("english.toml").read_text(encoding="utf-8")
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # there are more than re itself keeps


@cache
def _stemmer() -> Any:
    try:
        import snowballstemmer
    except ModuleNotFoundError:
        raise missing_extra("FaqAnswers", "snowballstemmer", "answers") from None
    return snowballstemmer.stemmer("english")
