"""What a question asks, as far as its words tell. Pure.

Embeddings put opposites side by side: "open by default?" and "closed by default?" are 0.98 alike
(measured by the vLLM semantic router). So two questions count as the same only if their words say
the same, however alike they are. The words are English (``english.toml``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pipecat_hedge.race.errors import missing_extra

__all__ = ["Meaning", "Vocabulary"]

_TOKENS = re.compile(r"[€$£%]|\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?")
_OBLIGED = re.compile(
    r"\b(?:must|should|required|obliged|mandatory|(?:do|would) (?:i|we) (?:have|need) to)\b", re.I
)
_DIRECTED = re.compile(r"\bthan\b|\bfrom\b.*\bto\b|\binstead of\b", re.I)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a question asks.

    Parameters:
        words: Its content words: stems, or the first of their synonyms. ``must`` stands for any
            obligation.
        kind: What it asks for: ``time``, ``place``, ``price`` and so on; empty for yes or no.
        is_negated: Whether it is negated.
        figures: Its numbers and currency signs, in their order.
        directed: All its words in their order, where that matters: "from … to", "than"; else empty.
    """

    words: frozenset[str]
    kind: str
    is_negated: bool
    figures: tuple[str, ...]
    directed: tuple[str, ...]


class Vocabulary:
    """Reads questions."""

    def __init__(self, synonyms: Iterable[Sequence[str]] = ()):
        """Add synonyms.

        Args:
            synonyms: Groups of words that mean the same.

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
        self._negations = frozenset(english["negations"].split())
        self._generic = self._words(english["generic"])
        self._opposites = {self._words(pair) for pair in english["groups"]["opposites"]}
        self._kinds = {
            kind: re.compile(rf"\b(?:{pattern})\b", re.I)
            for kind, pattern in english["kinds"].items()
        }
        asking = english["interrogatives"]
        self._asking = {
            kind: self._words(f"{asking['all']} {asking.get(kind, '')}")
            for kind in ("", *self._kinds)
        }

    def meaning(self, text: str) -> Meaning:
        """Return what a text asks."""
        tokens = [token.replace("’", "'") for token in _TOKENS.findall(text.casefold())]
        kind = next((kind for kind, pattern in self._kinds.items() if pattern.search(text)), "")
        figures = tuple(token for token in tokens if token[0].isdigit() or token in "€$£%")
        plain = [token.replace("'", "") for token in tokens if token not in figures]
        said = [t for t in plain if t not in self._ignored and t not in self._negations]
        in_order = [self._word(token) for token in said]
        words = frozenset(in_order) - self._asking[kind] - self._generic
        return Meaning(
            words | {"must"} if _OBLIGED.search(text) else words,
            kind,
            any(token in self._negations for token in plain),
            figures,
            tuple(in_order) if _DIRECTED.search(text) else (),
        )

    def are_opposed(self, one: Meaning, other: Meaning) -> bool:
        """Return whether a word of one is the opposite of a word of the other."""
        return any(
            frozenset((a, b)) in self._opposites
            for a in one.words - other.words
            for b in other.words - one.words
        )

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
def _stemmer() -> Any:
    try:
        import snowballstemmer
    except ModuleNotFoundError:
        raise missing_extra("FaqAnswers", "snowballstemmer", "answers") from None
    return snowballstemmer.stemmer("english")
