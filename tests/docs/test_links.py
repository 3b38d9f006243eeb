"""Every link of the documentation leads somewhere, and what refers to a page finds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.release import with_absolute_links

from tests.docs.pages import DOCS, OTHERS, PAGES, README, ROOT, Page

SOURCES = ("src", "examples", "scripts", "tests", "deploy", "Makefile", "pyproject.toml")


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=str)
def test_every_link_leads_somewhere(page: Page) -> None:
    dead: list[str] = []
    for link in page.links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = Page((page.path.parent / name).resolve()) if name else page
        exists = target.path.exists() and (not anchor or anchor in target.anchors)
        if not exists:
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", DOCS, ids=str)
def test_pages_link_to_pages_only(page: Page) -> None:
    """The site holds docs/ alone: a link out of it would be dead there."""
    assert not [link for link in page.links if link.startswith(("../..", "/"))]
    for link in page.links:
        if not link.startswith("https://") and (name := link.partition("#")[0]):
            assert (page.path.parent / name).resolve().is_relative_to(ROOT / "docs")


def test_a_releases_readme_has_no_relative_link(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(with_absolute_links(README.text, "https://forge.example/a/b", "v1"))
    made = Page(readme)
    assert len(made.links) == len(README.links)
    assert all(link.startswith("https://") for link in made.links)
    assert "https://forge.example/a/b/raw/v1/docs/images/race.svg" in made.links
    assert "https://forge.example/a/b/blob/v1/docs/top.md" in made.links
    assert next(README.blocks("python")).code in made.text


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed >= {str(page.path.relative_to(ROOT / "docs")) for page in DOCS}


def test_what_refers_to_a_page_finds_it() -> None:
    missing: list[str] = []
    for source in SOURCES:
        path = ROOT / source
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.suffix in (".py", ".yml", ".toml", ".sh", "") and file.is_file():
                named = re.findall(r"docs/[\w/-]+\.(?:md|png|svg)", file.read_text())
                missing += [f"{file}: {name}" for name in named if not (ROOT / name).exists()]
    assert not missing
