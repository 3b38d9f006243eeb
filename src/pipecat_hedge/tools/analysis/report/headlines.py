"""What an operator must know within a minute: a report's figures in a few sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Literal

from pipecat_hedge.tools.analysis.report.changes import Change, Replays
from pipecat_hedge.tools.analysis.report.comparing import Difference
from pipecat_hedge.tools.analysis.report.figures import Figures, Heard
from pipecat_hedge.tools.analysis.report.predictions import Prediction
from pipecat_hedge.tools.analysis.report.promises import TierPromise
from pipecat_hedge.tools.analysis.report.trouble import Spell
from pipecat_hedge.tools.analysis.report.waits import Estimate, Estimates, Waits
from pipecat_hedge.tools.analysis.report.wording import between, listed, secs, share, things, usd

__all__ = [
    "OBJECTIVES",
    "Headline",
    "bought",
    "difference_told",
    "effect_of",
    "estimate",
    "estimates_told",
    "given_up_changes",
    "headlines_of",
    "predicted",
    "spell_cost",
    "spell_told",
    "unseen_told",
    "waits_told",
]

OBJECTIVES = {
    "ttft": "first token",
    "ttfs": "first sentence",
    "voice_to_voice": "voice to voice",
}
"""What is promised, in words."""
MOST_SPELLS = 3
EVERYBODY = "all callers"


@dataclass(frozen=True, slots=True)
class Headline:
    """A sentence.

    Parameters:
        mood: ``good``, ``bad`` or ``plain``.
        topic: What it is about, in a word or two.
        text: The sentence, or some of them.
    """

    mood: Literal["good", "bad", "plain"]
    topic: str
    text: str


def headlines_of(figures: Figures, zone: tzinfo | None) -> list[Headline]:
    """Say what matters most.

    Args:
        figures: The figures.
        zone: The time zone of hours.
    """
    told = [_callers(figures.heard)]
    told += _promises(figures.promises, zone)
    told += _spells(figures.spells, zone)
    told += _hedging(figures)
    if figures.replays is not None and figures.replays.changes:
        change = figures.replays.changes[0]
        told.append(Headline("plain", "To change", f"{change.title}: {effect_of(change)}."))
    return told


def _callers(heard: Heard) -> Headline:
    p50, p95, p99, longest = map(estimate, estimates_told(heard.ttft_all))
    text = (
        f"{things(heard.turns, 'turn')}. Callers waited {p50} for the first token (p50), {p95} "
        f"(p95), {p99} (p99), {longest} at most."
    )
    if heard.unanswered:
        text += f" {things(heard.unanswered, 'turn')} had no whole answer."
    if (given_up := heard.given_up).count:
        text += (
            f" {things(given_up.count, 'turn')} ({share(given_up.count / heard.turns)}) had none "
            f"before the caller spoke again or went, after {secs(given_up.p50_secs)} (p50), "
            f"{secs(given_up.max_secs)} at most."
        )
    if not heard.unanswered and not given_up.count:
        text += " Nobody was left without an answer."
    return Headline("plain", "Callers", text)


def waits_told(waits: Waits) -> tuple[float | None, ...]:
    """The percentiles that are shown, and the longest.

    Args:
        waits: What had an answer.
    """
    return waits.p50_secs, waits.p95_secs, waits.p99_secs, waits.max_secs


def estimates_told(counted: Estimates) -> tuple[Estimate | None, ...]:
    """The same of estimates.

    Args:
        counted: With those who gave up counted in.
    """
    return counted.p50, counted.p95, counted.p99, counted.longest


def given_up_changes(waits: Waits, counted: Estimates) -> bool:
    """Whether those who gave up make any of these another one.

    Args:
        waits: Without them.
        counted: With them.
    """
    known = [None if secs is None else Estimate(secs) for secs in waits_told(waits)]
    return known != list(estimates_told(counted))


def _promises(promises: Sequence[TierPromise], zone: tzinfo | None) -> list[Headline]:
    if not (known := [p for p in promises if p.is_kept is not None]):
        return []
    broken = [p for p in known if not p.is_kept]
    if not broken:
        least = min(known, key=lambda p: (p.overall.share or 0.0) - p.target)
        text = f"Every promise was kept; the closest was {_promise(least)}."
        return [Headline("good", "Promises", text)]
    worst = min(broken, key=lambda p: (p.overall.share or 0.0) - p.target)
    others = "" if len(broken) == 1 else f" So were {len(broken) - 1} more of {len(known)}."
    when = ""
    if worst.worst is not None:
        period, least = worst.worst
        when = (
            f" It was worst {between(period.begin, period.begin + period.secs, zone)}: "
            f"{share(least.share, 0)} of {things(least.told, 'turn')}."
        )
    return [Headline("bad", "Promises", f"Broken: {_promise(worst)}.{when}{others}")]


def _promise(promise: TierPromise) -> str:
    return (
        f"{OBJECTIVES[promise.objective]} within {promise.limit_secs:g} s for "
        f"{promise.tier or EVERYBODY}, {share(promise.overall.share)} of turns, "
        f"{100 * promise.target:g} % promised"
    )


def _spells(spells: Sequence[Spell], zone: tzinfo | None) -> list[Headline]:
    worst = sorted(spells, key=lambda s: -spell_cost(s))
    told = [Headline("bad", spell.provider, spell_told(spell, zone)) for spell in worst]
    if len(told) > MOST_SPELLS:
        more = f"And {len(told) - MOST_SPELLS} more spells."
        told[MOST_SPELLS:] = [Headline("bad", "More", more)]
    return told


def spell_cost(spell: Spell) -> float:
    """How much a spell matters, in seconds of waiting; a turn without an answer is a minute.

    Args:
        spell: The spell.
    """
    waited = spell.given_up.count * (spell.given_up.mean_secs or 0.0)
    return (spell.extra_wait_secs or 0.0) + 60.0 * spell.unanswered + waited


def spell_told(spell: Spell, zone: tzinfo | None) -> str:
    """Who was slow or failed, from when to when, and what it cost.

    Args:
        spell: The spell.
        zone: The time zone of hours.
    """
    if spell.begin_at is not None and spell.end_at is not None:
        mins = (spell.end_at - spell.begin_at) / 60
        lasted = f"{mins:.0f} minutes" if mins >= 1.5 else f"{60 * mins:.0f} s"
        when = f"{between(spell.begin_at, spell.end_at, zone)} ({lasted})"
    else:
        when = f"from turn {spell.first_turn} to turn {spell.last_turn}"
    if spell.kind == "failing":
        why = listed([f"{n} × {why.replace('_', ' ')}" for why, n in spell.failures.items()])
        what = f"failed {when}: {spell.bad} of {spell.requests} requests were bad ({why})"
    else:
        what = (
            f"was slow {when}: {spell.bad} of {spell.requests} requests took longer than "
            f"{secs(spell.slow_secs)}, p50 {estimate(spell.p50)} instead of "
            f"{estimate(spell.usual_p50)}"
        )
    return f"{spell.provider} {what}. {_cost(spell)}"


def _cost(spell: Spell) -> str:
    costs = list[str]()
    if spell.extra_wait_secs is not None and spell.extra_wait_secs > 0:
        costs.append(
            f"{secs(spell.extra_wait_secs)} of waiting in {things(spell.turns, 'turn')} (p95 "
            f"{secs(spell.waits.p95_secs)} instead of {secs(spell.usual_waits.p95_secs)})"
        )
    if spell.unanswered:
        costs.append(f"{things(spell.unanswered, 'turn')} without a whole answer")
    if spell.given_up.count:
        costs.append(
            f"{things(spell.given_up.count, 'turn')} that callers gave up, after "
            f"{secs(spell.given_up.p50_secs)} (p50)"
        )
    if spell.extra_requests >= 1:
        costs.append(f"{things(spell.extra_requests, 'request')} more than usual")
    if spell.extra_usd is not None and spell.extra_usd > 0:
        costs.append(usd(spell.extra_usd))
    return f"It cost {listed(costs)}." if costs else "Callers did not notice."


def estimate(value: Estimate | None) -> str:
    """A percentile that may be known only to be longer than something.

    Args:
        value: The percentile.
    """
    return secs(None) if value is None else secs(value.secs, at_least=value.is_least)


def _hedging(figures: Figures) -> list[Headline]:
    hedging, replays = figures.hedging, figures.replays
    if not hedging.hedges:
        return [Headline("plain", "Hedging", "No turn was hedged.")]
    hedged = share(hedging.hedged_turns / hedging.turns)
    text = (
        f"{things(hedging.hedges, 'hedge')}, in {hedged} of turns; "
        f"{share(hedging.won / hedging.hedges, 0)} of them won."
    )
    if hedging.extra_requests is not None:
        text = f"{share(hedging.extra_requests)} more requests. {text}"
    if replays is not None:
        text += f" {bought(replays)}"
    return [Headline("plain", "Hedging", text)]


def bought(replays: Replays) -> str:
    """What hedging bought, in a sentence.

    Args:
        replays: What replays tell.
    """
    without = replays.replaced or replays.without
    mine = replays.as_it_was
    parts, unknown = _instead(without, mine, ("p95", "p99"))
    told = f"Replayed with and without hedges: {', '.join(parts)}." if parts else ""
    if unknown:
        names = listed(unknown)
        return f"{told} What it did to {names} is not known: requests were cut short.".strip()
    return told or "Replayed without hedges, callers would have waited no longer."


def _instead(
    before: Prediction, after: Prediction, names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """How percentiles differ, and of which that is not known.

    Of some there is but a least; one that lies beyond the other differs all the same.
    """
    parts, unknown = list[str](), list[str]()
    for name in names:
        leasts = before.at_least.get(name), after.at_least.get(name)
        was, now = getattr(before, f"{name}_secs"), getattr(after, f"{name}_secs")
        is_shorter = leasts[0] is not None and leasts[1] is None and leasts[0] > now
        is_longer = leasts[1] is not None and leasts[0] is None and leasts[1] > was
        if leasts != (None, None) and not is_shorter and not is_longer:
            unknown.append(name)
        elif predicted(before, name) != predicted(after, name):
            parts.append(f"{name} {predicted(after, name)} instead of {predicted(before, name)}")
    return parts, unknown


def predicted(prediction: Prediction, name: str) -> str:
    """A percentile of a replay.

    Args:
        prediction: The replay.
        name: ``p50``, ``p95`` or ``p99``.
    """
    if (least := prediction.at_least.get(name)) is not None:
        return secs(least, at_least=True)
    return secs(getattr(prediction, f"{name}_secs"))


def unseen_told(replays: Replays) -> list[str]:
    """Of whom it is not known what asking them first would do, a sentence each.

    Args:
        replays: What replays tell.
    """
    return [
        f"Not known is what asking {name} first would do: hardly a request was waited for beyond "
        f"{secs(known)}. A log of turns that ask it first would tell."
        for name, known in replays.unseen
    ]


def effect_of(change: Change) -> str:
    """What a change would have done, in a sentence without its stop.

    Args:
        change: The change.
    """
    before, after = change.before, change.after
    parts, unknown = _instead(before, after, ("p50", "p95", "p99"))
    if unknown:
        parts.append(f"what becomes of {listed(unknown)} is not known")
    if after.kept_share is not None and before.kept_share is not None:
        parts.append(
            f"{share(after.kept_share)} of turns in time instead of {share(before.kept_share)}"
        )
    more = after.requests - before.requests
    if abs(more) >= 0.001:
        parts.append(f"{share(abs(more))} {'more' if more > 0 else 'fewer'} requests")
    if after.usd_per_1000 is not None and before.usd_per_1000 is not None:
        dollars = after.usd_per_1000 - before.usd_per_1000
        if f"{abs(dollars):.2f}" != "0.00":
            parts.append(f"{usd(abs(dollars))} {'more' if dollars > 0 else 'less'} for 1,000 turns")
    return ", ".join(parts)


def difference_told(difference: Difference, turns: int) -> str:
    """What follows of a figure of two logs.

    Args:
        difference: The figure.
        turns: How many turns the smaller log has.
    """
    if difference.verdict == "unknown":
        return "not known of both"
    if difference.verdict == "too few turns":
        return f"{turns:,} turns are too few to tell"
    if difference.verdict == "no difference shown":
        return "no difference that this much data can show"
    is_less = (difference.delta or 0.0) < 0
    return "better" if is_less == difference.less_is_better else "worse"
