"""``pipecat-hedge compare``: how much providers' answers to the same turns differ."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.agreement import CHECKS
from pipecat_hedge.tools.analysis.pairs import Pair, read_pairs, wilson
from pipecat_hedge.tools.analysis.turn_log import NAMED, printable
from pipecat_hedge.tools.formatting import (
    TextTable,
    count,
    print_json,
    share,
    text_of,
)

if TYPE_CHECKING:
    from pipecat_hedge.tools.analysis.judge import Judgement

WORST = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answers of two providers.

    Parameters:
        names: The providers.
        turns: How many turns both answered.
        agreement: The share of turns in which the answers agree.
        low: The lower bound of its 95 % interval.
        high: The upper bound.
        differs_by: By check, in how many turns they differ.
        worst: The pairs that differ most.
    """

    names: tuple[str, str]
    turns: int
    agreement: float
    low: float
    high: float
    differs_by: dict[str, int]
    worst: tuple[Pair, ...]


def compared(pairs: Iterable[Pair]) -> list[Comparison]:
    """Return a comparison for each pair of providers, that with the lowest agreement first."""
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.names].append(pair)
    found: list[Comparison] = []
    for names, group in groups.items():
        agree = sum(not pair.differs_by for pair in group)
        low, high = wilson(agree, len(group))
        differs = Counter(check for pair in group for check in pair.differs_by)
        worst = sorted(group, key=lambda pair: len(pair.differs_by), reverse=True)[:WORST]
        worst = [pair for pair in worst if pair.differs_by]
        found.append(
            Comparison(
                names, len(group), agree / len(group), low, high, dict(differs), tuple(worst)
            )
        )
    return sorted(found, key=lambda each: each.agreement)


def threshold_for(pairs: Iterable[Pair], most_errors: float) -> float | None:
    """Return the lowest similarity above which at most a share of the curated answers differ.

    Args:
        pairs: Pairs with a similarity.
        most_errors: The error rate, from 0 to 1; the upper bound of its 95 % interval counts.

    Returns:
        The threshold; None if there is none, as with too few pairs.
    """
    scored = sorted(
        ((p.similarity, bool(p.differs_by)) for p in pairs if p.similarity is not None),
        reverse=True,
    )
    found, wrong = None, 0
    for number, (similarity, is_wrong) in enumerate(scored, 1):
        wrong += is_wrong
        is_last_of_equals = number == len(scored) or scored[number][0] < similarity
        if is_last_of_equals and wilson(wrong, number)[1] <= most_errors:
            found = similarity
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    what = "drained answers (drained_log=...), or a shadow log (FaqAnswers(shadow=True))"
    add("files", nargs="+", metavar="FILE", help=what)
    add("--floor", type=float, metavar="SHARE", help="exit with 1 if a pair agrees less often")
    what = "print the FAQ threshold whose answers differ at most this often"
    add("--errors", type=float, metavar="SHARE", help=what)
    what = "have a model judge a sample, too: its name at OpenAI, or at --judge-url"
    add("--judge", metavar="MODEL", help=what)
    add("--judge-url", metavar="URL", help="an API like OpenAI's, as http://localhost:8000/v1")
    add("--judged", type=int, default=50, metavar="N", help="of two providers (default 50)")
    add("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Compare and print.

    Raises:
        HedgeError: If a file cannot be read or has no pairs, or a share is out of range.
    """
    for name in ("floor", "errors"):
        if getattr(args, name) is not None and not 0 <= getattr(args, name) <= 1:
            raise ConfigurationError(f"{name} must be from 0 to 1, got {getattr(args, name):g}")
    if args.judged < 1:
        raise ConfigurationError(f"judged must be at least 1, got {args.judged}")
    pairs, skipped = read_pairs(args.files)
    comparisons = compared(pairs)
    judgements: list[Judgement] = []
    if args.judge is not None:
        from pipecat_hedge.tools.analysis.judge import judge, judge_model  # imports Pipecat

        model = judge_model(args.judge, args.judge_url)
        judgements = asyncio.run(judge(pairs, model, args.judged))
    if args.json:
        found = {"comparisons": comparisons, "judgements": judgements, "skipped": len(skipped)}
        print_json(found, version=1)
    else:
        print(shown(comparisons))
        for each in judgements:
            print(f"\n{_judged(each)}")
        if args.errors is not None:
            print(f"\n{_advice(pairs, args.errors)}")
        if skipped:
            lines = f"{count(len(skipped), 'line')} skipped: {'; '.join(skipped[:NAMED])}"
            print(f"\n{text_of([lines])}")
    is_below = args.floor is not None and any(c.agreement < args.floor for c in comparisons)
    return 1 if is_below else 0


def shown(comparisons: Sequence[Comparison]) -> str:
    """Return tables of the pairs of providers, and the worst answers side by side."""
    checks = [*CHECKS, "length"]
    agreements = [
        [
            _names(each.names),
            str(each.turns),
            f"{share(each.agreement)} ({share(each.low)} to {share(each.high)})",
        ]
        for each in comparisons
    ]
    differing = [
        [_names(each.names), *(str(each.differs_by.get(check, 0)) for check in checks)]
        for each in comparisons
    ]
    tables = [
        TextTable(["providers", "turns", "agree (95 %)"], agreements),
        "\nTurns that differ, by check",
        TextTable(["providers", *checks], differing),
    ]
    worst = (pair for each in comparisons for pair in each.worst)
    return "\n\n".join(
        [text_of(tables), *(_side_by_side(pair, ", ".join(pair.differs_by)) for pair in worst)]
    )


def _judged(found: Judgement) -> str:
    head = (
        f"judged, {_names(found.names)}: {share(found.agreement)} of {found.asked} say the "
        f"same ({share(found.low)} to {share(found.high)})"
    )
    if found.failed:
        head += f"; {count(found.failed, 'pair')} without a judgement: {_brief(found.why or '')}"
    rest = (_side_by_side(pair, "only the judge") for pair in found.missed[:WORST])
    return "\n\n".join([head, *rest])


def _side_by_side(pair: Pair, title: str) -> str:
    lines = [title + (f": {_brief(pair.question)}" if pair.question else "")]
    for place, (name, said) in enumerate(zip(pair.names, pair.answers, strict=True)):
        heard = " (heard)" if place == pair.heard else ""
        calls = "" if said.tool_calls == "[]" else f" {printable(said.tool_calls)}"
        lines.append(f"  {printable(name)}{heard}: {_brief(said.text)}{calls}")
    return "\n".join(lines)


def _names(names: tuple[str, str]) -> str:
    return " / ".join(map(printable, names))


def _brief(text: str) -> str:
    return printable(" ".join(text.split()))


def _advice(pairs: Sequence[Pair], errors: float) -> str:
    threshold = threshold_for(pairs, errors)
    if threshold is None:
        scored = sum(pair.similarity is not None for pair in pairs)
        return f"no threshold: {count(scored, 'shadow answer')} cannot show {share(errors)} errors"
    return f"threshold={threshold:.2f}: at most {share(errors)} of the answers differ"
