"""The page's part on providers: what each did, when one was slow, and the slowest turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from html import escape

from pipecat_hedge.tools.analysis.report.callers_part import curve_line
from pipecat_hedge.tools.analysis.report.charts import chart, legend, log_axis, nines_axis
from pipecat_hedge.tools.analysis.report.figures import Figures
from pipecat_hedge.tools.analysis.report.headlines import estimate, spell_cost, spell_told
from pipecat_hedge.tools.analysis.report.providers import Connections, ProviderFigures
from pipecat_hedge.tools.analysis.report.tables import table
from pipecat_hedge.tools.analysis.report.timelines import key_to, timeline
from pipecat_hedge.tools.analysis.report.trouble import Spell
from pipecat_hedge.tools.analysis.report.wording import (
    UNKNOWN,
    between,
    count,
    secs,
    share,
    things,
    usd,
)

__all__ = ["providers_part", "slowest_part"]

MOST_CURVES = 4
MOST_SPELLS = 20


def providers_part(figures: Figures, zone: tzinfo | None) -> str:
    """What each provider did, and when one of them was slow or failed.

    Args:
        figures: The figures.
        zone: The time zone of hours.
    """
    heads = ["provider", "requests", "asked first", "hedges", "rescues", "won", "failed", "cost"]
    rows = [
        [
            each.provider,
            count(each.requests),
            count(each.by_reason.get("primary", 0)),
            count(each.by_reason.get("hedge", 0)),
            count(each.by_reason.get("failure", 0) + each.by_reason.get("stall", 0)),
            count(each.outcomes.get("won", 0)),
            _failed(each),
            usd(each.spending.usd, at_least=each.spending.without_price > 0),
        ]
        for each in figures.providers
    ]
    timed = [
        [
            each.provider,
            *(estimate(p) for p in (each.p50, each.p95, each.p99)),
            secs(each.answered.p95_secs),
            _connections(each.connections),
        ]
        for each in figures.providers
    ]
    times = ["first token of", "p50", "p95", "p99", "seen p95", "new connections"]
    models = "; ".join(
        f"{each.provider}: {', '.join(each.models)}" for each in figures.providers if each.models
    )
    return (
        '<h2 id="providers">Which providers</h2>'
        f"{table(heads, rows, 'what each provider did')}"
        f"{table(times, timed, 'how long each provider took to the first token', broad=(5,))}"
        '<p class="about">Times to the first token, from a request’s launch. p50, p95 and p99 '
        "count in the requests that were cancelled because another one was faster: those took "
        "longer than they were waited for (Kaplan and Meier); “seen p95” leaves them out, as "
        f"most dashboards do. {escape(f'Models: {models}.') if models else ''}</p>"
        f"{_failures(figures.providers)}{_distributions(figures.providers)}"
        f"{_spells(figures, zone)}"
    )


def slowest_part(figures: Figures, zone: tzinfo | None) -> str:
    """The slowest turns, each with its cause.

    Args:
        figures: The figures.
        zone: The time zone of hours.
    """
    turns = "".join(timeline(turn, zone) for turn in figures.slowest)
    return (
        f'<h2 id="slowest">The {len(figures.slowest)} slowest turns</h2>'
        f"{key_to(figures.slowest) + turns if turns else '<p>No turn had an answer.</p>'}"
    )


def _failed(each: ProviderFigures) -> str:
    told = count(each.failed)
    return f"{told} ({share(each.failed / each.requests)})" if each.requests else told


def _connections(connections: Connections) -> str:
    if not connections.told:
        return UNKNOWN
    opened = f"{count(connections.cold)} of {count(connections.told)}"
    median = connections.opening.p50_secs
    return opened if median is None else f"{opened}, {secs(median)} each"


def _failures(providers: Sequence[ProviderFigures]) -> str:
    told = [f"{p.provider}: {_listed(p.failures)}" for p in providers if p.failures]
    told += [
        f"{count(p.not_sent)} attempts to ask {p.provider} found no room"
        for p in providers
        if p.not_sent
    ]
    return f"<p>Failures: {escape('; '.join(told))}.</p>" if told else ""


def _listed(failures: Mapping[str, int]) -> str:
    by_number = sorted(failures.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{count(number)} {why.replace('_', ' ')}" for why, number in by_number)


def _distributions(providers: Sequence[ProviderFigures]) -> str:
    shown = [each for each in providers if each.curve][:MOST_CURVES]
    if not shown:
        return ""
    x, across = log_axis([p.secs for each in shown for p in each.curve], "seconds (logarithmic)")
    nines, up = nines_axis(max(each.requests for each in shown), "share of requests answered")
    lines = [curve_line(p.provider, p.curve, x, nines, kind) for kind, p in enumerate(shown)]
    told = "the share of each provider's requests that had answered, over time"
    return (
        "<figure><figcaption>Time to the first token, by provider</figcaption>"
        f"{legend([(f'k{line.kind}', line.name) for line in lines])}"
        f"{chart(lines, across, up, told)}</figure>"
    )


def _spells(figures: Figures, zone: tzinfo | None) -> str:
    if not figures.spells:
        return "<h3>Slow spells</h3><p>None that is more than chance.</p>"
    worst = sorted(figures.spells, key=lambda s: -spell_cost(s))
    shown = sorted(worst[:MOST_SPELLS], key=lambda s: s.first_turn)
    more = len(figures.spells) - len(shown)
    names = [f"{each.provider}, {_when(each, zone)}" for each in shown]
    heads = ["whose, and when", "what", "requests", "bad", "p50", "usual p50"]
    rows = [
        [
            name,
            each.kind,
            count(each.requests),
            count(each.bad),
            estimate(each.p50),
            estimate(each.usual_p50),
        ]
        for name, each in zip(names, shown, strict=True)
    ]
    costs = [
        *("what callers had of it", "turns", "p95", "usual p95", "kept the promise"),
        *("waited longer", "no answer", "given up", "extra requests", "extra cost"),
    ]
    borne = [
        [
            name,
            count(each.turns),
            secs(each.waits.p95_secs),
            secs(each.usual_waits.p95_secs),
            f"{share(each.kept.share, 0)}, else {share(each.usual_kept.share, 0)}",
            secs(each.extra_wait_secs),
            count(each.unanswered),
            count(each.given_up.count),
            f"{each.extra_requests:.0f}",
            usd(each.extra_usd),
        ]
        for name, each in zip(names, shown, strict=True)
    ]
    told = "".join(f"<li>{escape(spell_told(each, zone))}</li>" for each in shown)
    told += f"<li>And {things(more, 'spell')} that cost less.</li>" if more else ""
    return (
        f'<h3 id="spells">Slow spells</h3><ul>{told}</ul>'
        f"{table(heads, rows, 'spells in which a provider was slow or failed')}"
        f"{table(costs, borne, 'what these spells cost', broad=(4,))}"
        '<p class="about">A spell is a stretch in which so many requests failed or took over one '
        "and a half times the usual median that chance makes it once in a hundred logs.</p>"
    )


def _when(spell: Spell, zone: tzinfo | None) -> str:
    if spell.begin_at is None:
        return f"turns {spell.first_turn} – {spell.last_turn}"
    return between(spell.begin_at, spell.end_at, zone)
