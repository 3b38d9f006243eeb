"""The documentation as data: its pages, blocks of code, spans of code, links and headings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
_PLACES = {"first block": 0, "second block": 1}
_AFTER = re.compile(rf"# after the (block above|{'|'.join(_PLACES)})(?: of ([\w-]+\.md))?\b")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @cached_property
    def tree(self) -> ast.Module:
        """The block, parsed."""
        return ast.parse(self.code, str(self))

    @property
    def with_those_before(self) -> list[Block]:
        """It, after the blocks that its first line says it needs."""
        named = _AFTER.match(self.code)
        if named is None:
            return [self]
        which, name = named.groups()
        page = doc(name) if name else Page(ROOT / self.page)
        blocks = list(page.blocks("python"))
        place = _PLACES[which] if which in _PLACES else blocks.index(self) - 1
        return [*blocks[place].with_those_before, self]


@dataclass(frozen=True)
class Page:
    """A page."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """It without its blocks of code."""
        return _FENCE.sub("", self.text)

    def blocks(self, *languages: str) -> Iterator[Block]:
        """Its blocks of code in some languages."""
        for match in _FENCE.finditer(self.text):
            indent, language, code = match.groups()
            if language in languages:
                line = self.text.count("\n", 0, match.start()) + 1
                yield Block(str(self), line, language, re.sub(rf"^{indent}", "", code, flags=re.M))

    @cached_property
    def spans(self) -> list[str]:
        """The code in its sentences; a span may go over a line's end."""
        paragraphs = re.split(r"\n\n|\n(?=[-|#] ?)", self.prose)
        return [s for p in paragraphs for s in _SPAN.findall(" ".join(p.split("\n")))]

    @cached_property
    def links(self) -> list[str]:
        """What it links to, pictures included."""
        return _LINK.findall(_SPAN.sub("", self.prose))

    @cached_property
    def anchors(self) -> set[str]:
        """What can be linked to in it."""
        return {slug(heading) for heading in re.findall(r"^#+ (.+)$", self.prose, re.M)}

    def section(self, heading: str) -> str:
        """The text below a heading of the second level."""
        return re.split(rf"^## {re.escape(heading)}$", self.text, flags=re.M)[1].split("\n## ")[0]


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown and the forges make it."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


README = Page(ROOT / "README.md")
DOCS = [Page(path) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [README, *DOCS]
OTHERS = [Page(ROOT / name) for name in ("CONTRIBUTING.md", "CHANGELOG.md", "fixtures/README.md")]
OTHERS.append(Page(ROOT / "examples/voice_bot/README.md"))


def doc(name: str) -> Page:
    """A page of docs/."""
    return Page(ROOT / "docs" / name)
