"""Two providers' answers to one turn, read from logs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.agreement import Said, disagreements
from pipecat_hedge.tools.analysis.turn_log import named, printable

Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one turn.

    Parameters:
        names: Their providers.
        answers: The answers.
        heard: Which of the answers the caller heard, 0 or 1.
        question: What was asked, if that is known.
        similarity: How alike the question was to a curated one; None if that is not known.
        differs_by: The checks by which they differ.
    """

    names: tuple[str, str]
    answers: tuple[Said, Said]
    heard: int
    question: str
    similarity: float | None
    differs_by: tuple[str, ...]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927)."""
    p, z2 = successes / trials, Z_95**2
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def read_pairs(paths: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Read the answers of drained losers, and shadow logs.

    Returns:
        The pairs, and each unreadable line by file, line and fault, without its content.

    Raises:
        ConfigurationError: If a file has no pairs.
        ReadingError: If a file cannot be read.
    """
    pairs: list[Pair] = []
    skipped: list[str] = []
    for path in map(Path, paths):
        before = len(pairs)
        with named(path, "a log of drained answers"), path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                try:
                    pairs += _pairs(line) if line.strip() else []
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    why = "not JSON" if isinstance(error, json.JSONDecodeError) else "no answers"
                    skipped.append(f"{printable(path.name)}:{number}: {why}")
        if len(pairs) == before:
            detail = f" ({skipped[-1]})" if skipped else ""
            raise ConfigurationError(
                f"{path} has no answers side by side{detail}: write them with "
                'HedgePolicy.adaptive(losers="drain") and HedgedLLMService(drained_log=...), or '
                "with FaqAnswers(shadow=True)"
            )
    return pairs, skipped


def _pairs(line: str) -> list[Pair]:
    """The answers of a line; none if one of them is not whole."""
    record: dict[str, Any] = json.loads(line)
    if "answers" in record:
        (first, said), (other, would) = record["answers"].items()
        answers = Said(said), Said(would)
        names, similarity = (first, other), record.get("similarity")
    else:
        answers = (
            Said(record["said"], record["said_tool_calls"]),
            Said(record["text"], record["tool_calls"]),
        )
        names, similarity = (str(record["winner"]), str(record["provider"])), None
        if not (record["complete"] and record["winner"]):
            return []
    heard = 0
    if names[1] < names[0]:
        names, answers, heard = (names[1], names[0]), (answers[1], answers[0]), 1
    differs, question = disagreements(*answers), str(record.get("question", ""))
    return [Pair(names, answers, heard, question, similarity, tuple(differs))]
