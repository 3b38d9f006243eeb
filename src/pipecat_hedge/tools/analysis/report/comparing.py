"""Two logs side by side: what differs by more than chance. Pure.

The problem: two logs never have the same p95, so "B is 80 ms faster" says nothing until it is known
what two logs of the same bot would differ by. The naive answer, a t-test of the means, asks about
the wrong figure and believes in a bell curve.

Ours is a percentile bootstrap (Efron, 1979; Efron and Tibshirani, 1993, chapter 13): each log is
drawn again from itself ``RESAMPLES`` times, the figure is taken of both and subtracted, and the
middle 95 % of those differences is the interval. Where 0 lies within it, these logs show no
difference, which is another thing than that there is none. The dice are fixed, so that the same
logs give the same report.

What is drawn is what is independent: whole calls, where the log tells whose call a turn was
(``session`` or ``call``) and has ``LEAST_SESSIONS`` of them; else blocks of consecutive turns,
since slow turns come in clusters, as long as Carlstein (1986) has them for the correlation of
consecutive turns (see ``whatif/trust.py``). A log too short to have ``LEAST_BEYOND`` turns beyond a
percentile says nothing of it: there the bootstrap draws the same few turns again and again, and its
interval is too narrow.

Left out: a correction for asking about several figures at once. Of twenty figures that do not
differ, one will be shown as differing; the report says so. And what else was different: two logs of
different days differ by the days too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.tools.analysis.report.promises import OF_LLM, was_kept
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn, was_sent
from pipecat_hedge.tools.analysis.whatif.trust import block_of, drawn_again, rank_correlation_of

__all__ = ["Comparison", "Difference", "compare"]

RESAMPLES, LEAST_RESAMPLES = 1000, 200
DRAWN = 20_000_000
"""So many turns are drawn in all, within those bounds: long logs need fewer resamples."""
SEED = 1
LEAST_SESSIONS = 20
LEAST_BEYOND = 5
LEAST_TURNS = 20
MOST_TURNS = 100_000
"""A figure of more turns than this is known well enough from the latest of them."""
TAIL = 0.025

Unit: TypeAlias = Literal["secs", "share", "requests", "usd"]
Verdict: TypeAlias = Literal["differs", "no difference shown", "too few turns", "unknown"]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two logs.

    Parameters:
        name: What it is of.
        unit: ``secs``, ``share`` (of turns), ``requests`` (a turn) or ``usd``.
        less_is_better: Whether a smaller figure is the better one.
        of_this: The figure in the log; None if it is not known.
        of_other: The same of the log it is compared with.
        low: Where the difference, this less the other, lies in 19 of 20 pairs of such logs: from
            here; None where nothing can be said.
        high: To here.
        verdict: What follows.
    """

    name: str
    unit: Unit
    less_is_better: bool
    of_this: float | None
    of_other: float | None
    low: float | None
    high: float | None
    verdict: Verdict

    @property
    def delta(self) -> float | None:
        """The difference, this less the other."""
        if self.of_this is None or self.of_other is None:
            return None
        return self.of_this - self.of_other


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two logs side by side.

    Parameters:
        turns: How many turns the log has.
        other_turns: The same of the other.
        other_files: What that is called.
        drawn: What was drawn again of each: ``calls`` or ``turns``, this log's first.
        differences: The figures.
    """

    turns: int
    other_turns: int
    other_files: tuple[str, ...]
    drawn: tuple[str, str]
    differences: tuple[Difference, ...]


class _Sample:
    """A log, ready to be drawn again from itself."""

    def __init__(self, turns: Sequence[LoggedTurn], slo: Slo, seed: int):
        self.turns = turns[-MOST_TURNS:]
        self._rng = np.random.default_rng(seed)
        self.waits = {
            "ttft": _floats(turn.report.ttft_secs for turn in self.turns),
            "ttfs": _floats(turn.report.ttfs_secs for turn in self.turns),
        }
        self.ratios: dict[str, tuple[Floats, Floats]] = {
            "answered": _ratio([turn.is_success for turn in self.turns], [1.0] * len(self.turns)),
            "given up": _ratio([turn.was_given_up for turn in self.turns], [1.0] * len(self.turns)),
            "requests": _ratio(
                *zip(*((len(_sent(turn)), bool(_sent(turn))) for turn in self.turns), strict=True)
            ),
            "usd": _usd(self.turns),
        }
        for objective in OF_LLM:
            if (limit := slo.within(objective)) is not None:
                verdicts = [was_kept(turn, objective, limit) for turn in self.turns]
                self.ratios[objective] = _ratio(
                    [v is True for v in verdicts], [v is not None for v in verdicts]
                )
        sessions = {turn.session for turn in self.turns}
        self.by_call = None not in sessions and len(sessions) >= LEAST_SESSIONS
        codes = {session: code for code, session in enumerate(sessions)}
        self._codes = np.array([codes[turn.session] for turn in self.turns])
        waits = self.waits["ttft"][~np.isnan(self.waits["ttft"])]
        correlation = (
            rank_correlation_of(waits[:-1], waits[1:]) if len(waits) > LEAST_TURNS else 0.0
        )
        self._block = block_of(len(self.turns), correlation)
        self._summed: dict[str, Floats] = {}
        self._orders = {name: np.argsort(values) for name, values in self.waits.items()}

    def drawn(self) -> Floats:
        """How often each turn is in a log drawn from this one; shape (turns,)."""
        self._summed.clear()
        if self.by_call:
            count = int(self._codes.max()) + 1
            calls = np.bincount(self._rng.integers(0, count, count), minlength=count)
            return calls[self._codes].astype(np.float64)
        return drawn_again(len(self.turns), self._block, self._rng)

    def percentile(self, name: str, p: float, weight: Floats | None = None) -> float:
        """The nearest rank; not a number where there are no waits."""
        order = self._orders[name]
        ascending = self.waits[name][order]
        count = int(np.sum(~np.isnan(ascending)))
        if not count:
            return math.nan
        if weight is None:
            return float(ascending[max(math.ceil(p * count) - 1, 0)])
        if (summed := self._summed.get(name)) is None:  # the same for every percentile of a draw
            summed = self._summed[name] = np.cumsum(weight[order][:count])
        if not summed[-1]:
            return math.nan
        rank = max(math.ceil(p * summed[-1]), 1)
        return float(ascending[int(np.searchsorted(summed, rank))])

    def known(self, name: str) -> int:
        return int(np.sum(~np.isnan(self.waits[name])))

    def ratio(self, name: str, weight: Floats | None = None) -> float:
        """A sum over a sum; not a number where there is nothing to divide by."""
        if name not in self.ratios:
            return math.nan
        above, below = self.ratios[name]
        if weight is not None:
            above, below = above * weight, below * weight
        total = below.sum()
        return float(above.sum() / total) if total else math.nan


def compare(
    turns: Sequence[LoggedTurn],
    others: Sequence[LoggedTurn],
    other_files: Sequence[str],
    slo: Slo,
    *,
    resamples: int | None = None,
    seed: int = SEED,
) -> Comparison:
    """Compare two logs.

    Args:
        turns: The turns of the one, in the order of time; not empty.
        others: The turns of the other; not empty.
        other_files: What the other is called.
        slo: What callers are promised.
        resamples: How often each is drawn again; None is as often as their length allows.
        seed: The same seed gives the same intervals.

    Returns:
        What differs, and what does not.
    """
    one, other = _Sample(turns, slo, seed), _Sample(others, slo, seed + 1)
    asked = list(_asked(slo))
    if resamples is None:
        fitting = DRAWN // (len(one.turns) + len(other.turns))
        resamples = min(max(fitting, LEAST_RESAMPLES), RESAMPLES)
    found: list[list[float]] = [[] for _ in asked]
    for _ in range(resamples):
        mine, theirs = one.drawn(), other.drawn()
        for values, (_, _, _, figure, _) in zip(found, asked, strict=True):
            values.append(figure(one, mine) - figure(other, theirs))
    differences = [
        _difference(name, unit, less, figure(one, None), figure(other, None), values, least)
        for (name, unit, less, figure, enough), values in zip(asked, found, strict=True)
        for least in (enough(one) and enough(other),)
    ]
    drawn = ["calls" if sample.by_call else "turns" for sample in (one, other)]
    return Comparison(
        len(turns), len(others), tuple(other_files), (drawn[0], drawn[1]), tuple(differences)
    )


_Figure: TypeAlias = Callable[[_Sample, "Floats | None"], float]
_Asked: TypeAlias = tuple[str, Unit, bool, _Figure, Callable[[_Sample], bool]]


def _asked(slo: Slo) -> list[_Asked]:
    """What is compared."""
    found = list[_Asked]()
    for name, told in (("ttft", "first token"), ("ttfs", "first sentence")):
        for p in (0.5, 0.95, 0.99):

            def percentile(
                sample: _Sample, weight: Floats | None, name: str = name, p: float = p
            ) -> float:
                return sample.percentile(name, p, weight)

            def has_enough(sample: _Sample, name: str = name, p: float = p) -> bool:
                return sample.known(name) * (1 - p) >= LEAST_BEYOND

            found.append((f"{told}, p{100 * p:.0f}", "secs", True, percentile, has_enough))
    shares = [("answered to the end", "answered")]
    if slo.ttft_secs is not None:
        shares.append((f"first token within {slo.ttft_secs:g} s", "ttft"))
    if slo.ttfs_secs is not None:
        shares.append((f"first sentence within {slo.ttfs_secs:g} s", "ttfs"))
    rows: list[tuple[str, str, Unit, bool]] = [
        *((told, name, "share", False) for told, name in shares),
        ("given up before the first token", "given up", "share", True),
        ("requests a turn", "requests", "requests", True),
        ("cost of a successful turn", "usd", "usd", True),
    ]
    for told, name, unit, less in rows:

        def ratio(sample: _Sample, weight: Floats | None, name: str = name) -> float:
            return sample.ratio(name, weight)

        found.append((told, unit, less, ratio, lambda sample: len(sample.turns) >= LEAST_TURNS))
    return found


def _difference(
    name: str,
    unit: Unit,
    less_is_better: bool,
    of_this: float,
    of_other: float,
    drawn: Sequence[float],
    has_enough: bool,
) -> Difference:
    mine, theirs = (None if math.isnan(value) else value for value in (of_this, of_other))
    low = high = None
    verdict: Verdict = "too few turns"
    if mine is None or theirs is None:
        verdict = "unknown"
    elif has_enough:
        values = np.asarray(drawn)
        low, high = (float(v) for v in np.quantile(values[~np.isnan(values)], (TAIL, 1 - TAIL)))
        verdict = "differs" if low > 0 or high < 0 else "no difference shown"
    return Difference(name, unit, less_is_better, mine, theirs, low, high, verdict)


def _floats(values: Iterable[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _ratio(above: Sequence[float | bool], below: Sequence[float | bool]) -> tuple[Floats, Floats]:
    return np.asarray(above, np.float64), np.asarray(below, np.float64)


def _sent(turn: LoggedTurn) -> list[float | None]:
    """What each request of a turn cost."""
    return [a.usd for a in turn.report.attempts if was_sent(a, turn.lacks)]


def _usd(turns: Sequence[LoggedTurn]) -> tuple[Floats, Floats]:
    """Dollars over successes; nothing over nothing unless the price of every request is known."""
    prices = [_sent(turn) for turn in turns]
    if any(usd is None for mine in prices for usd in mine):
        return np.zeros(len(turns)), np.zeros(len(turns))
    sums = [math.fsum(usd for usd in mine if usd is not None) for mine in prices]
    return _ratio(sums, [turn.is_success for turn in turns])
