"""Tables of the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["cards", "table"]


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    told: str,
    *,
    words: Sequence[int] = (),
    broad: Sequence[int] = (),
) -> str:
    """A table; on a telephone each row is a card of what its columns are and say.

    Where it is wider than a screen between the two it scrolls by itself, its first column stays.

    Args:
        heads: What each column is.
        rows: The cells, as text.
        told: What the table shows, for whoever cannot see it.
        words: Columns of words rather than figures.
        broad: Columns of several figures: on a card they have more room than others.
    """
    lines = list[str]()
    kinds = [
        ' class="words"' if n in words else ' class="broad"' if n in broad else ""
        for n in range(len(heads))
    ]
    named = "".join(
        f'<th scope="col"{kind}>{escape(head)}</th>'
        for kind, head in zip(kinds, heads, strict=True)
    )
    for row in rows:
        cells = "".join(
            f'<td data-head="{escape(head)}"{kind}>{escape(cell)}</td>'
            for kind, head, cell in zip(kinds, heads, row, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(told)}"><table>'
        f"<thead><tr>{named}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def cards(figures: Sequence[tuple[str, str]]) -> str:
    """A few large figures.

    Args:
        figures: Each figure, and what it is of.
    """
    shown = "".join(
        f"<div><b>{escape(figure)}</b><span>{escape(name)}</span></div>" for figure, name in figures
    )
    return f'<div class="figures">{shown}</div>'
