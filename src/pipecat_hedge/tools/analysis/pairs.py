"""Two providers' answers to one turn, read from logs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.agreement import Said, disagreements

__all__ = ["Pair", "read_pairs", "wilson"]

Z_95 = 1.96


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


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927)."""
    p, z2 = successes / trials, Z_95**2
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


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
