"""What a question asks, as far as its words tell. Pure, English (``english.toml``), experimental.

Embeddings put opposites side by side: "open by default?" and "closed by default?" are 0.98 alike
(measured by the vLLM semantic router). So two questions count as the same only if the same words
are left, in the same order, when both were rewritten.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

_TOKENS = re.compile(r"[€$£%]|\d+(?:[.,:]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)?")
_PLURAL = re.compile(r"(?<=[^su])s$")
"""Not of "bus" or "glass"."""


class Vocabulary:
    """Reads questions."""

    def __init__(self, synonyms: Iterable[Sequence[str]] = ()):
        """Add synonyms.

        Args:
            synonyms: Groups of words that mean the same.
        """
        self._ignored, self._refers, self._rewrites, groups = _english()
        self._same: dict[str, str] = {}
        for group in (*groups, *synonyms):
            singular = [_singular(word.casefold()) for word in group]
            means = self._same.get(singular[0], singular[0])
            self._same.update(dict.fromkeys(singular, means))

    def stands_alone(self, text: str) -> bool:
        """Return whether a question can be understood without what was said before."""
        return self._refers.search(self._rewritten(text)) is None

    def words(self, text: str) -> tuple[str, ...]:
        """Return what counts of a question, in its order: words without -s, synonyms as one."""
        tokens: list[str] = _TOKENS.findall(self._rewritten(text))
        plain = [token.replace("'", "") for token in tokens]
        counting = [_singular(word) for word in plain if word not in self._ignored]
        return tuple(self._same.get(word, word) for word in counting)

    def _rewritten(self, text: str) -> str:
        text = text.casefold().replace("’", "'")
        for was, becomes in self._rewrites:
            text = was.sub(becomes, text)
        return " ".join(text.split())


def _singular(word: str) -> str:
    return _PLURAL.sub("", word)


@cache
def _english() -> tuple[
    frozenset[str], re.Pattern[str], list[tuple[re.Pattern[str], str]], list[list[str]]
]:
    path = files("pipecat_hedge.answers").joinpath("english.toml")
    english = tomllib.loads(path.read_text(encoding="utf-8"))
    return (
        frozenset(english["ignored"].split()),
        re.compile("|".join(english["refers"])),
        [(re.compile(was), becomes) for was, becomes in english["rewrites"]],
        [group.split() for group in english["synonyms"]],
    )
