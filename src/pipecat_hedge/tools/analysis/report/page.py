"""The report as one page that needs nothing else: no script, no other file, no network. Pure.

Law: everything that a log holds is escaped; names of providers are whatever a user calls them.
"""

from __future__ import annotations

from datetime import tzinfo
from html import escape

from pipecat_hedge.tools.analysis.report.callers_part import callers_part, comparison_part
from pipecat_hedge.tools.analysis.report.figures import Figures
from pipecat_hedge.tools.analysis.report.headlines import Headline, headlines_of
from pipecat_hedge.tools.analysis.report.hedging_part import bill_part, changes_part, hedging_part
from pipecat_hedge.tools.analysis.report.providers_part import providers_part, slowest_part
from pipecat_hedge.tools.analysis.report.style import STYLE
from pipecat_hedge.tools.analysis.report.wording import between, count, things

__all__ = ["page_of"]


def page_of(figures: Figures, zone: tzinfo | None = None) -> str:
    """The page.

    Args:
        figures: The figures.
        zone: The time zone of hours; None is this machine's own.
    """
    heads = "".join(map(_headline, headlines_of(figures, zone)))
    compared = "" if figures.comparison is None else comparison_part(figures.comparison)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<title>Voice turns: a report</title>"
        f"<style>{STYLE}</style></head><body><header><h1>What your callers heard, and why</h1>"
        f'<p class="about">{escape(_about(figures, zone))}</p></header>'
        f'<main><ul class="heads">{heads}</ul>{compared}{callers_part(figures, zone)}'
        f"{providers_part(figures, zone)}{hedging_part(figures)}{slowest_part(figures, zone)}"
        f"{bill_part(figures)}{changes_part(figures)}</main>{_footer(figures)}</body></html>\n"
    )


def _headline(headline: Headline) -> str:
    topic, text = escape(headline.topic), escape(headline.text)
    return f'<li class="{headline.mood}"><b>{topic}</b> <span>{text}</span></li>'


def _about(figures: Figures, zone: tzinfo | None) -> str:
    when = ""
    if figures.begin_at is not None and figures.end_at is not None:
        when = f", {between(figures.begin_at, figures.end_at, zone)} ({figures.zone})"
    skipped = f" {things(figures.skipped, 'line')} could not be used." if figures.skipped else ""
    return f"{things(figures.heard.turns, 'turn')} of {', '.join(figures.files)}{when}.{skipped}"


def _footer(figures: Figures) -> str:
    notes = [
        "Percentiles are nearest ranks of the turns that had an answer; turns without one are "
        "counted beside them. Where callers gave up before it, they are counted in as waits that "
        "would have been longer (Kaplan and Meier), and “>” marks what is longer than that.",
        "A dash is what the log does not tell, never nought.",
        "Replays know nothing of rate limits, and draw a second request’s time apart from the "
        "first’s.",
    ]
    if figures.skipped:
        notes.append(f"Lines that were skipped: {'; '.join(figures.named_skips)}.")
    if figures.lacking:
        lacking = ", ".join(f"{n} ({count(c)})" for n, c in sorted(figures.lacking.items()))
        notes.append(f"Lines that lack a field, as those of older versions do: {lacking}.")
    items = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<footer>{items}<p>Made by <code>pipecat-hedge report</code>.</p></footer>"
