"""``pipecat-hedge whatif``: shows which policy is best for recorded turns."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table

from pipecat_hedge.tools.analysis.learned_delays import HELD, Day, OfDay
from pipecat_hedge.tools.analysis.reading_options import add_reading_options, read_as_asked
from pipecat_hedge.tools.analysis.replay_policies import BLOCK, NEAR
from pipecat_hedge.tools.analysis.routes import Route
from pipecat_hedge.tools.analysis.statistics import FEW, PERCENTILES
from pipecat_hedge.tools.analysis.whatif import (
    BUDGETS,
    MAX_TURNS,
    Answer,
    Outcome,
    Question,
    what_if,
)
from pipecat_hedge.tools.formatting import (
    TextTable,
    bullets,
    count,
    print_json,
    progress_bar,
    secs,
    share,
    text_of,
    usd,
)


def show(answer: Answer, width: int | None = None) -> str:
    """Format the answer: the recommendation, the table, the caveats.

    Args:
        answer: The answer.
        width: Columns; None is those of the terminal.
    """
    pair = "itself" if answer.second == answer.first else answer.second
    names = [name for name, p in PERCENTILES.items() if round(answer.turns * (1 - p), 9) >= 1]
    names = names or ["p50"]
    columns: dict[str, Callable[[Outcome], str]] = {
        "policy": lambda o: ("> " if o.policy == answer.choice.policy else "  ") + o.policy
    }
    for name in (*names, "max"):
        columns[name] = lambda o, name=name: _figure(o, name)
    if answer.deadline_secs is not None:
        columns[f"≤ {answer.deadline_secs:g} s"] = lambda o: share(o.under_deadline, 2)
    if any(o.unanswered for o in answer.policies):
        columns["failed"] = lambda o: share(o.unanswered)
    columns["extra"] = lambda o: share(o.extra_requests)
    if any(o.replacements for o in answer.policies):
        columns["replaced"] = lambda o: share(o.replacements)
    if any(o.extra_usd is not None for o in answer.policies):
        columns["$/1,000"] = lambda o: usd(o.extra_usd)
    if "p99" in names:
        columns["p99 in 19 of 20"] = _interval
    drop = ("replaced", "max", "p99.9", "p99 in 19 of 20", "$/1,000", "p95", "failed")
    parts: list[str | TextTable | Table] = [
        f"Recommended: {answer.choice.policy}",
        f"{why(answer)}.",
        "",
        f"{count(answer.turns, 'turn')} of {answer.first}, hedged to {pair}:",
        _table(columns, answer.policies, drop),
        "",
        bullets(f"{caveat}." for caveat in caveats(answer)),
    ]
    if answer.days:
        parts += ["", *_days(answer.days)]
    if answer.routes:
        parts += ["", *_routes(answer.routes, names)]
    return text_of(parts, width)


def why(answer: Answer) -> str:
    """Explain the recommendation, in a sentence or two without the last full stop."""
    choice = answer.choice
    none, chosen = answer.outcome(choice.baseline), answer.outcome(choice.policy)
    least = f"less than the required {secs(answer.min_saving_secs)}"
    if choice.obstacle is not None:
        saving = secs(choice.saving_secs)
        text = f"an extra request saves {saving} at most, {least}: {_obstacle(answer)}"
    else:
        name = "mean wait" if answer.sample.is_small else "p99"
        now, before = (_figure(o, name) for o in (chosen, none))
        parts = [] if now == before else [f"{name} {now} instead of {before}"]
        if answer.deadline_secs is not None:
            parts.append(
                f"{share(chosen.under_deadline, 2)} of turns within {answer.deadline_secs:g} s "
                f"instead of {share(none.under_deadline, 2)}"
            )
        text = ", ".join([*parts, f"for {share(chosen.extra_requests)} more requests"])
        if choice.passed_over is not None:
            policy, saving_secs = choice.passed_over
            text += f". {policy} would save {secs(saving_secs)} per additional request, {least}"
    if (bound := none.at_least.get("p99")) is not None:
        text += (
            f". But hedges cancelled requests that took longer than {secs(bound)}, so the tail is "
            "unknown: log some turns under HedgePolicy.fallback() first"
        )
    return text


def _obstacle(answer: Answer) -> str:
    match answer.choice.obstacle:
        case "in time":
            within = share(answer.outcome(answer.choice.baseline).under_deadline, 2)
            return f"{within} of turns are within {answer.deadline_secs:g} s without it"
        case "slow together":
            together = answer.independence.slow_together or 0.0
            return f"in {together:.0%} of its slowest turns the second provider is slow as well"
        case "light tail":
            name = "slowest" if answer.sample.is_small else "p99"
            return f"the tail is light, the {name} is {answer.choice.tail:.1f} times the p50"
        case _:
            return "the second request is too slow to overtake the first"


def caveats(answer: Answer) -> Iterator[str]:
    """Yield the limitations of the answer, a sentence each without its full stop."""
    sample, turns, independence = answer.sample, answer.sample.latencies, answer.independence
    if sample.is_small:
        verb = "has" if turns == 1 else "have"
        yield f"{count(turns, 'turn')} {verb} no p99: the result is rough"
    elif turns < 1000:
        yield f"{turns} turns are too few beyond the p{100 * (1 - 10 / turns):.0f}"
    if independence.slow_together is not None:
        yield (
            "both providers were measured in the same turns: in "
            f"{independence.slow_together:.0%} of the first one's slowest turns the second is slow "
            "as well"
        )
    elif sample.is_timed:
        yield (
            f"a further request takes as long as one of the {2 * NEAR} that its provider was sent "
            "at that time, so slow minutes are slow for both"
        )
    elif independence.is_clustered:
        to_itself = answer.first == answer.second
        which = "the same provider" if to_itself else "a provider that is slow at the same times"
        yield (
            f"slow turns cluster: a slow turn follows a slow one {independence.clustering:.1f} "
            f"times as often as by chance, so hedging to {which} helps less than shown"
        )
    for name, number in sample.cut_short.items():
        yield (
            f"{number} requests to {name} were cancelled by a hedge or an interruption, and are "
            "estimated from the others (Kaplan-Meier)"
        )
    if sample.second_answers < FEW <= turns:
        yield f"only {sample.second_answers} answers of {answer.second} are known"
    if answer.replayed < turns:
        yield f"{answer.replayed:,} of {turns:,} turns were replayed, in blocks of {BLOCK:,}"
    if sample.others:
        yield f"also measured: {', '.join(sample.others)}; --second NAME hedges to one of them"
    if sample.is_prompt_only:
        yield "the price of an extra request counts only its prompt"
    if sample.unit == "ms":
        yield "the figures were read as milliseconds"
    if sample.skipped:
        more = sample.skipped - len(sample.named_skips)
        rest = f"; and {more} more" if more else ""
        lines = count(sample.skipped, "bad line")
        yield f"{lines} skipped: {'; '.join(sample.named_skips)}{rest}"


def _days(days: Sequence[Day]) -> tuple[str, str, TextTable]:
    """Format the days: whether the delay of the day before held, and a table."""
    worst = max(days, key=lambda day: day.excess)
    fixed, adaptive = worst.fixed, worst.adaptive
    sent = f"{share(fixed.extra_requests)} more requests instead of {share(worst.budget)}"
    if worst.excess <= HELD:
        title = f"A fixed delay learned the day before holds: at most {sent}."
    else:
        title = (
            f"A fixed delay learned on {worst.learned_on} does not fit {worst.name}: "
            f"{fixed.policy} sends {sent}, with a p99 of {secs(fixed.p99)}. "
            f"{adaptive.policy} sends {share(adaptive.extra_requests)}, with {secs(adaptive.p99)}."
        )
    columns: dict[str, Callable[[tuple[str, OfDay | None]], str]] = {"in order": lambda row: row[0]}
    cells: dict[str, Callable[[OfDay], str]] = {
        "p50": lambda of: secs(of.p50),
        "p95": lambda of: secs(of.p95),
        "p99": lambda of: secs(of.p99),
        "max": lambda of: secs(of.max_secs),
        "extra": lambda of: share(of.extra_requests),
    }
    for name, cell in cells.items():
        columns[name] = lambda row, cell=cell: "" if row[1] is None else cell(row[1])
    rows = list[tuple[str, OfDay | None]]()
    for day in days:
        rows.append((f"{day.name}, {count(day.turns, 'turn')}", None))
        rows += [(f"  {of.policy}", of) for of in (day.none, day.fixed, day.adaptive)]
    return title, "", _table(columns, rows, ("max", "p50"))


def _routes(routes: Sequence[Route], names: Sequence[str]) -> tuple[str, TextTable]:
    """Format the routes: a title and a table."""
    simple, complex = routes[0].simple, routes[0].complex
    said = {0.0: f"all to {complex}", math.inf: f"all to {simple}"}
    columns: dict[str, Callable[[Route], str]] = {
        "threshold": lambda r: said.get(r.threshold, f"{r.threshold:g}"),
        "complex": lambda r: share(r.complex_share),
        **{name: lambda r, name=name: secs(r.percentiles[name]) for name in names},
    }
    if routes[0].usd is not None:
        columns["$/1,000"] = lambda r: usd(r.usd)
    title = (
        f"Routes by complexity, without hedging: turns below the threshold to {simple}, others "
        f"to {complex}. Each is as quick as in the log, whatever the turn; within a call a router "
        "only moves up, so more turns are complex than here."
    )
    return title, _table(columns, routes, ("p99.9", "p95"))


def _table(
    columns: dict[str, Callable[[Any], str]], rows: Sequence[Any], drop: Sequence[str]
) -> TextTable:
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return TextTable(list(columns), cells, drop)


def _figure(outcome: Outcome, name: str) -> str:
    if name == "mean wait":
        return secs(outcome.mean_secs)
    if (bound := outcome.at_least.get(name)) is not None:
        return secs(bound, at_least=True)
    return secs(outcome.max_secs if name == "max" else outcome.percentiles[name])


def _interval(outcome: Outcome) -> str:
    """Format the p99's interval, as far as it is known."""
    interval = outcome.intervals["p99"]
    if "p99" in outcome.at_least or math.isinf(interval.low):
        return _figure(outcome, "p99")
    if math.isinf(interval.high):
        return secs(interval.low, at_least=True)
    return f"{interval.low:.2f}-{interval.high:.2f} s"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    secs: dict[str, Any] = {"type": float, "metavar": "SECS"}
    share: dict[str, Any] = {"type": float, "metavar": "SHARE"}
    files = "turn logs, or CSV or JSONL with a column of latencies, and one of times if known"
    add("files", nargs="+", metavar="FILE", help=files)
    add("--first", metavar="NAME", help="the first provider (default: as in the files)")
    add("--second", metavar="NAME", help="the provider hedged to (default: the other one, if any)")
    add("--attempts", type=int, default=2, help="most requests per turn (default 2)")
    add("--after", action="append", **secs, help="a fixed delay; repeatable (default: the p95)")
    add("--budget", action="append", **share, help="a budget of the adaptive policy; repeatable")
    add("--deadline", **secs, help="the latest time of a first token")
    add("--slo", **secs, help="compare adaptive policies with this SLO as their target, too")
    add("--min-saving", default=0.15, **secs, help="least saving of a request (default 0.15)")
    add_reading_options(parser)
    add("--prompt-tokens", type=float, metavar="N", help="tokens of a prompt, to count dollars")
    price = "US dollars per million tokens of prompt and answer"
    add("--usd-per-mtok", type=float, nargs=2, metavar=("IN", "OUT"), help=price)
    add("--turns", type=int, default=MAX_TURNS, help=f"of larger files (default {MAX_TURNS:,})")
    add("--seed", type=int, default=1, help="of the draws (default 1)")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the answer.

    Raises:
        HedgeError: If it cannot be given.
    """
    question = Question(
        first=args.first,
        second=args.second,
        attempts=args.attempts,
        after_secs=tuple(dict.fromkeys(args.after or ())),
        budgets=tuple(dict.fromkeys(args.budget or BUDGETS)),
        deadline_secs=args.deadline,
        slo_secs=args.slo,
        min_saving_secs=args.min_saving,
        prompt_tokens=args.prompt_tokens,
        usd_per_mtok=None if args.usd_per_mtok is None else tuple(args.usd_per_mtok),
        max_turns=args.turns,
        seed=args.seed,
    )
    recorded = read_as_asked(args.files, args)
    with progress_bar() as bar:
        task = bar.add_task("", total=1.0)
        answer = what_if(
            recorded,
            question,
            progress=lambda name, done: bar.update(task, description=name, completed=done),
        )
    if args.json:
        texts = {"why": why(answer), "caveats": [*caveats(answer)]}
        print_json(answer, version=2, recommended=answer.choice.policy, **texts)
    else:
        print(show(answer))
    return 0
