"""The page's part on money: what hedging bought and cost, the bill, and what to change."""

from __future__ import annotations

from html import escape

from pipecat_hedge.policy.settings import told as written
from pipecat_hedge.tools.analysis.report.changes import Change, Replays
from pipecat_hedge.tools.analysis.report.figures import Figures
from pipecat_hedge.tools.analysis.report.headlines import bought, effect_of, predicted, unseen_told
from pipecat_hedge.tools.analysis.report.predictions import Prediction
from pipecat_hedge.tools.analysis.report.providers import Spending
from pipecat_hedge.tools.analysis.report.tables import cards, table
from pipecat_hedge.tools.analysis.report.wording import UNKNOWN, count, secs, share, usd

__all__ = ["bill_part", "changes_part", "hedging_part"]


def hedging_part(figures: Figures) -> str:
    """What hedging bought and cost.

    Args:
        figures: The figures.
    """
    hedging = figures.hedging
    lost = hedging.lost
    tokens = None
    if lost.input_tokens is not None or lost.output_tokens is not None:
        tokens = (lost.input_tokens or 0) + (lost.output_tokens or 0)
    hedged = share(hedging.hedged_turns / hedging.turns)
    shown = [
        (share(hedging.extra_requests), "more requests"),
        (
            count(hedging.hedges),
            f"hedges, in {hedged} of turns",
        ),
        (share(hedging.won / hedging.hedges, 0) if hedging.hedges else UNKNOWN, "of hedges won"),
        (count(hedging.rescues), f"replacements of failed requests, {hedging.rescued} answered"),
        (count(tokens), f"tokens of requests that lost{_estimated(lost)}"),
        (usd(lost.usd, at_least=lost.without_price > 0), "for requests that lost"),
    ]
    names = ", ".join(
        f"{name} ({count(number)} turns)" for name, number in figures.candidates.policies
    )
    if figures.candidates.policy is not None and len(figures.candidates.policies) == 1:
        names += f": {written(figures.candidates.policy)}"
    return (
        '<h2 id="hedging">What hedging bought and cost</h2>'
        f'<p class="about">Policy: {escape(names) or "not told by the log"}.</p>{cards(shown)}'
        f"{_replayed(figures)}"
    )


def bill_part(figures: Figures) -> str:
    """What it all cost.

    Args:
        figures: The figures.
    """
    bill = figures.bill
    rows = [
        _spent(name, spending)
        for name, spending in (
            ("answers that callers heard", bill.answers),
            ("lost a race", bill.lost),
            ("failed", bill.failed),
            ("cut off by callers", bill.interrupted),
            ("everything", bill.total),
        )
    ]
    least = "at least " if bill.is_least and bill.usd_per_success is not None else ""
    told = (
        f"A successful turn cost {least}{usd(bill.usd_per_success)}, everything counted: "
        f"{count(bill.successful_turns)} turns were answered to their end."
        if bill.usd_per_success is not None
        else "What a successful turn cost is not known: give each Provider its usd_per_mtok."
    )
    heads = ["what for", "requests", "prompt tokens", "answer tokens", "cost"]
    estimated = bill.total.estimated
    note = (
        f'<p class="about">{count(estimated)} of {count(bill.total.requests)} token counts are '
        "estimates: their requests were closed before the provider had counted.</p>"
        if estimated
        else ""
    )
    return (
        f'<h2 id="cost">Cost per successful turn</h2><p><b>{escape(told)}</b></p>'
        f"{table(heads, rows, 'what requests cost')}{note}"
    )


def changes_part(figures: Figures) -> str:
    """What would help most.

    Args:
        figures: The figures.
    """
    head = '<h2 id="changes">What would help most</h2>'
    replays = figures.replays
    if replays is None:
        return f"{head}<p>Nothing was replayed.</p>"
    about = (
        f"{replays.tried} changes were tried on these turns, each replayed with the service’s own "
        f"objects in virtual time ({count(replays.replayed)} turns). "
    )
    if len(replays.changes) < 3:
        about += {
            0: "None makes a difference that these turns can show.",
            1: "Only this one makes a difference that these turns can show.",
        }.get(len(replays.changes), "Only these make a difference that these turns can show.")
    about = " ".join([about.strip(), *unseen_told(replays)])
    shown = "".join(_change(n, each) for n, each in enumerate(replays.changes, 1))
    return f'{head}<p class="about">{escape(about)}</p>{shown}'


def _replayed(figures: Figures) -> str:
    replays = figures.replays
    if replays is None:
        return "<p>What it bought is not known: nothing was replayed.</p>"
    waits, heard = figures.heard.ttft, figures.heard
    usd_per_turn = figures.bill.total.usd
    measured = [
        "measured",
        *(secs(value) for value in (waits.p50_secs, waits.p95_secs, waits.p99_secs)),
        _kept(figures),
        share(heard.unanswered / heard.turns),
        UNKNOWN
        if figures.hedging.extra_requests is None
        else f"{1 + figures.hedging.extra_requests:.3f}",
        usd(None if usd_per_turn is None else 1000 * usd_per_turn / heard.turns),
    ]
    rows = [measured, _predicted("replayed as it was", replays.as_it_was)]
    if replays.replaced is not None:
        rows.append(_predicted("only failed requests replaced", replays.replaced))
    rows.append(_predicted("one request a turn", replays.without))
    heads = [
        *("", "p50", "p95", "p99", "first token in time", "no whole answer", "requests a turn"),
        "cost of 1,000 turns",
    ]
    return (
        f"<p><b>{escape(bought(replays))}</b></p>"
        f"{table(heads, rows, 'turns as they were, and without hedges')}"
        f'<p class="about">{escape(_trust(replays))}</p>'
    )


def _trust(replays: Replays) -> str:
    policy = (
        ""
        if replays.policy_is_told
        else f"The log does not tell the policy; {replays.as_it_was.policy} was taken for it. "
    )
    least = (
        "“>” marks what rests on requests that a hedge cut short: it is at least that. "
        if replays.without.at_least
        else ""
    )
    return (
        f"{policy}{least}How near the second row is to the first tells how far to trust the "
        "others: turns are replayed one after the other, so how many are hedged at once is not "
        f"bounded as it was. Also: {replays.independence}."
    )


def _kept(figures: Figures) -> str:
    """What the first promise came to for all tiers together."""
    mine = [p for p in figures.promises if p.objective == "ttft"]
    told = sum(p.overall.told for p in mine)
    is_one = len({p.limit_secs for p in mine}) == 1
    return share(sum(p.overall.kept for p in mine) / told) if told and is_one else UNKNOWN


def _predicted(name: str, each: Prediction) -> list[str]:
    return [
        name,
        *(predicted(each, p) for p in ("p50", "p95", "p99")),
        share(each.kept_share),
        share(each.unanswered),
        f"{each.requests:.3f}",
        usd(each.usd_per_1000),
    ]


def _change(number: int, change: Change) -> str:
    heads = [
        *("", "p50", "p95", "p99", "first token in time", "no answer", "requests a turn"),
        "cost of 1,000 turns",
    ]
    rows = [_predicted("as it was", change.before), _predicted("with it", change.after)]
    after = change.after
    is_guess = bool(change.before.at_least or after.at_least)
    saved = (
        f"It saves about {secs(change.saved_secs)} of the mean wait, if requests that were cut "
        "short would have gone on as the slowest did"
        if is_guess
        else f"It saves {secs(change.saved_secs)} of the mean wait"
    )
    where = (
        ""
        if "p95" in after.at_least
        else f"; its p95 would lie between {secs(after.p95_low_secs)} and "
        f"{secs(after.p95_high_secs)} in 19 of 20 logs like this one"
    )
    return (
        f'<div class="change"><h3>{number}. {escape(change.title)}</h3>'
        f"<p><b>{escape(effect_of(change))}.</b> {saved}{where}.</p>"
        f"<p><code>{escape(change.how)}</code></p>"
        f"{table(heads, rows, change.title)}</div>"
    )


def _spent(name: str, spending: Spending) -> list[str]:
    return [
        name,
        count(spending.requests),
        count(spending.input_tokens),
        count(spending.output_tokens),
        usd(spending.usd, at_least=spending.without_price > 0),
    ]


def _estimated(spending: Spending) -> str:
    return ", mostly estimated" if 2 * spending.estimated > spending.requests else ""
