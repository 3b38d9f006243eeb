"""Reads a page that a command wrote."""

from __future__ import annotations

from html.parser import HTMLParser


class Markup(HTMLParser):
    """A page's tags and text, and what it refers to.

    Its elements must be closed in order. Text from outside stays text only if it adds no tag.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.refers, self.text = list[str](), list[str](), ""
        self._open = list[str]()
        self.feed(page)
        assert self._open == []
        assert not {"script", "link", "img", "iframe", "object"} & {*self.tags}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.refers += [f"{k}={v}" for k, v in attrs if k in ("src", "href") or k.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
