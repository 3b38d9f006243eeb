"""What else there is to say of an answer: what was skipped, filled in or sampled."""

from __future__ import annotations

from pipecat_hedge.tools.analysis.whatif.drawing import Material
from pipecat_hedge.tools.analysis.whatif.question import BLOCK, Question
from pipecat_hedge.tools.analysis.whatif.reading import Recorded

__all__ = ["notes_on"]

FEW, SOME = 100, 1000
_UNITS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def notes_on(
    recorded: Recorded, material: Material, question: Question, replayed: int
) -> list[str]:
    """Sentences, without their full stops.

    Args:
        recorded: What was read.
        material: What was made of it.
        question: What was to be found out.
        replayed: How many turns were replayed.
    """
    notes: list[str] = []
    count = len(material.secs)
    if recorded.bad_lines:
        named = "; ".join(recorded.named_bad_lines)
        more = recorded.bad_lines - len(recorded.named_bad_lines)
        rest = f"; and {more} more" if more else ""
        notes.append(f"{recorded.bad_lines} bad lines skipped: {named}{rest}")
    if recorded.ignored:
        notes.append(f"columns that were not taken for latencies: {', '.join(recorded.ignored)}")
    if count > question.most_turns:
        notes.append(f"{replayed:,} of {count:,} turns were replayed, in blocks of {BLOCK:,}")
    elif replayed > count:
        notes.append(f"these turns were gone through {replayed // count} times")
    if count != recorded.turns:
        notes.append(
            f"of {material.first.name}, {count:,} requests can be replayed, each as the first of a "
            "turn"
        )
    for name in dict.fromkeys((material.first.name, material.second.name)):
        known = recorded.providers[name]
        if known.censored.any():
            notes.append(
                f"{int(known.censored.sum())} latencies of {name} were cut short by a hedge or an "
                "interruption, and drawn from what is known of the rest (Kaplan-Meier)"
            )
    answers = int((~material.second.censored & ~material.second.failed).sum())
    if answers < FEW <= count:
        notes.append(f"only {answers} answers of {material.second.name} are known")
    unused = [n for n in recorded.providers if n not in (material.first.name, material.second.name)]
    if unused:
        notes.append(f"measured too: {', '.join(unused)}; --second names who is hedged to")
    if question.costs.usd_per_mtok is not None and recorded.lost_tokens is None:
        notes.append(
            "a request is priced by its prompt alone, at one price for all: the files do not tell "
            "what losers say before they are cancelled"
        )
    if count < FEW:
        notes.append(f"{count} turns say nothing of a tail: take this for no more than a hint")
    elif count < SOME:
        notes.append(f"{count} turns say little beyond the p{100 * (1 - 10 / count):.0f}")
    if recorded.unit != "s":
        notes.append(f"the figures were taken for {_UNITS[recorded.unit]}")
    return notes
