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
) -> str:
    """A table that scrolls by itself where it is wider than the screen.

    Args:
        heads: What each column is.
        rows: The cells, as text.
        told: What the table shows, for whoever cannot see it.
        words: Columns of words rather than figures.
    """
    lines, kind = list[str](), ' class="words"'
    named = "".join(
        f'<th scope="col"{kind if n in words else ""}>{escape(head)}</th>'
        for n, head in enumerate(heads)
    )
    for row in rows:
        cells = "".join(
            f"<td{kind if n in words else ''}>{escape(cell)}</td>" for n, cell in enumerate(row)
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
