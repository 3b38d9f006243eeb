"""How far two replays differ by chance. Pure.

The problem: a replay has thousands of turns and rests on few observations. A second provider that
was asked in a tenth of the turns, and mostly cancelled before it answered, is known from some
dozens of answers, though each of them be drawn a hundred times.

The naive answer, the standard error of the replayed turns, takes the draws for observations. Ours
is a bootstrap of what was observed (Efron, 1979; for latencies that were cut short, Efron, 1981):
the log's turns are drawn again, in blocks since slow turns come together, so that whatever was
measured in a turn comes or goes with it; each provider's Kaplan-Meier curve follows from that; and
each replayed turn weighs as much as its latencies have become likelier. Both replays of a
comparison are weighed by the same draws, so what they have in common is no difference.

Left out: what a policy learns would be another thing from other turns; and how the curve goes on
where it is not known, which no drawing tells.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.analysis.whatif.answer import Answer
from pipecat_hedge.tools.analysis.whatif.reading import Measured, Recorded
from pipecat_hedge.tools.analysis.whatif.trust import block_of, drawn_again, rank_correlation_of

__all__ = ["Chances"]

RESAMPLES = 200
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Chances:
    """A log, drawn again from itself; the first time as it is."""

    def __init__(self, recorded: Recorded, first: str, seed: int = 1):
        """Draw.

        Args:
            recorded: What was measured.
            first: Who is asked first: how far its slow turns come together says how long blocks
                are.
            seed: The same seed makes the same draws.
        """
        turns, rng = recorded.turns, np.random.default_rng(seed)
        secs = recorded.providers[first].secs
        correlation = rank_correlation_of(secs[:-1], secs[1:]) if len(secs) > 2 else 0.0
        block = block_of(turns, correlation)
        drawn = [drawn_again(turns, block, rng) for _ in range(RESAMPLES)]
        self._weights = np.stack([np.ones(turns), *drawn])

    def means(self, recorded: Recorded, answer: Answer, waits: list[Floats]) -> list[Floats]:
        """The mean wait of replays of the same draws, in each of the logs.

        Args:
            recorded: What was measured, as it was replayed.
            answer: What the replays told.
            waits: Each replay's turns, in seconds; shape (m,) each.

        Returns:
            For each replay its means, that of the log as it is first; shape (RESAMPLES + 1,).
        """
        draws = answer.draws
        assert draws is not None
        first, second = recorded.providers[answer.first], recorded.providers[answer.second]
        secs = np.asarray(draws.secs)
        fails = np.zeros(secs.shape, np.bool_) if draws.fails is None else np.asarray(draws.fails)
        weights = self._weights_of(first, secs[:, 0], fails[:, 0], draws.turns)
        if not np.array_equal(draws.turns, draws.other_turns):  # else both are of the same turn
            weights *= self._weights_of(second, secs[:, 1], fails[:, 1], draws.other_turns)
        total = weights.sum(axis=1)
        return [weights @ each / total for each in waits]

    def _weights_of(
        self, measured: Measured, secs: Floats, fails: npt.NDArray[np.bool_], turns: Ints
    ) -> Floats:
        """How much likelier each drawn latency of a provider is in each of the logs."""
        if not measured.censored.any():
            return self._weights[:, turns]
        answers = np.flatnonzero(~measured.failed)
        answers = answers[np.lexsort((measured.censored[answers], measured.secs[answers]))]
        came = ~measured.censored[answers]
        weights = self._weights[:, measured.row[answers]]
        at_risk = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
        falls = np.where(came & (weights > 0), weights / np.maximum(at_risk, 1e-9), 0.0)
        left = np.cumprod(1.0 - falls, axis=1)
        masses = np.concatenate([np.ones((len(left), 1)), left[:, :-1]], axis=1) * falls
        steps, begins = np.unique(measured.secs[answers][came], return_index=True)
        likely = np.add.reduceat(masses[:, came], begins, axis=1)
        likely = np.concatenate([likely, left[:, -1:]], axis=1) * weights.sum(axis=1, keepdims=True)
        at = np.searchsorted(steps, secs)
        drawn = np.bincount(at[~fails], minlength=len(steps) + 1)
        if not drawn[-1]:  # nothing is beyond the slowest answer
            likely[:, -2] += likely[:, -1]
        likely /= np.maximum(drawn, 1)
        times = len(secs) / len(measured.secs)
        return np.where(fails, self._weights[:, turns] / times, likely[:, at])
