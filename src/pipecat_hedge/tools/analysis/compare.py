"""``pipecat-hedge compare``: how much providers' answers to the same turns differ."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.agreement import CHECKS, Said, disagreements
from pipecat_hedge.tools.formatting import count, print_json, share, terminal_width, text_table

__all__ = ["Comparison", "Pair", "compared", "configure", "run"]

Z_95 = 1.96
WORST = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one turn.

    Parameters:
        names: Who gave them.
        answers: The answers.
        question: What was asked, if that is known.
        similarity: How alike the question was to a curated one; None if that is not known.
        differs_by: The checks by which they differ.
    """

    names: tuple[str, str]
    answers: tuple[Said, Said]
    question: str
    similarity: float | None
    differs_by: tuple[str, ...]


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


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927)."""
    p, z2 = successes / trials, Z_95**2
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


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


def read_pairs(paths: Sequence[str]) -> Iterator[Pair]:
    """Read the answers of drained losers, and shadow logs.

    Raises:
        ConfigurationError: If a file cannot be read or has no pairs.
    """
    for path in paths:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
        pairs = [pair for line in lines if (pair := _pair(line)) is not None]
        if not pairs:
            raise ConfigurationError(
                f"{path} has no answers side by side: write them with "
                'HedgePolicy.adaptive(losers="drain") and HedgedLLMService(drained_log=...), or '
                "with FaqAnswers(shadow=True)"
            )
        yield from pairs


def _pair(line: str) -> Pair | None:
    try:
        record: dict[str, Any] = json.loads(line)
        if "answers" in record:
            (first, said), (other, would) = record["answers"].items()
            answers = Said(said), Said(would)
            names, similarity = (first, other), record.get("similarity")
        elif record.get("complete") and record.get("winner"):
            answers = (
                Said(record["said"], record["said_tool_calls"]),
                Said(record["text"], record["tool_calls"]),
            )
            names, similarity = (record["winner"], record["provider"]), None
        else:
            return None
        if names[1] < names[0]:
            names, answers = (names[1], names[0]), (answers[1], answers[0])
        differs = disagreements(*answers)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Pair(names, answers, str(record.get("question", "")), similarity, tuple(differs))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    what = "drained answers (drained_log=...), or a shadow log (FaqAnswers(shadow=True))"
    add("files", nargs="+", metavar="FILE", help=what)
    add("--floor", type=float, metavar="SHARE", help="exit with 1 if a pair agrees less often")
    what = "print the FAQ threshold whose answers differ at most this often"
    add("--errors", type=float, metavar="SHARE", help=what)
    add("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Compare and print.

    Raises:
        ConfigurationError: If a file cannot be read or has no pairs, or a share is out of range.
    """
    for name in ("floor", "errors"):
        if getattr(args, name) is not None and not 0 <= getattr(args, name) <= 1:
            raise ConfigurationError(f"{name} must be from 0 to 1, got {getattr(args, name):g}")
    pairs = list(read_pairs(args.files))
    comparisons = compared(pairs)
    if args.json:
        print_json({"comparisons": comparisons}, version=1)
    else:
        print(shown(comparisons, terminal_width()))
        if args.errors is not None:
            print(f"\n{_advice(pairs, args.errors)}")
    is_below = args.floor is not None and any(c.agreement < args.floor for c in comparisons)
    return 1 if is_below else 0


def shown(comparisons: Sequence[Comparison], width: int) -> str:
    """Return a table of the pairs of providers, and the worst answers side by side."""
    checks = [*CHECKS, "length"]
    rows = [
        [
            " / ".join(each.names),
            str(each.turns),
            f"{share(each.agreement)} ({share(each.low)} to {share(each.high)})",
            *(str(each.differs_by.get(check, 0)) for check in checks),
        ]
        for each in comparisons
    ]
    parts = [text_table(["providers", "turns", "agree (95 %)", *checks], rows, width, checks[::-1])]
    for pair in (pair for each in comparisons for pair in each.worst):
        asked = f": {pair.question}" if pair.question else ""
        parts.append(f"\n{', '.join(pair.differs_by)}{asked}")
        for name, said in zip(pair.names, pair.answers, strict=True):
            parts.append(f"  {name}: {_brief(said)}")
    return "\n".join(parts)


def _brief(said: Said) -> str:
    calls = "" if said.tool_calls == "[]" else f" {said.tool_calls}"
    text = " ".join(said.text.split())
    return (text if len(text) <= 200 else text[:199] + "…") + calls


def _advice(pairs: Sequence[Pair], errors: float) -> str:
    threshold = threshold_for(pairs, errors)
    if threshold is None:
        scored = sum(pair.similarity is not None for pair in pairs)
        return f"no threshold: {count(scored, 'shadow answer')} cannot show {share(errors)} errors"
    return f"threshold={threshold:.2f}: at most {share(errors)} of the answers differ"
