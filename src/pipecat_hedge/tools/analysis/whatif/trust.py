"""How far an answer can be trusted: whether turns are independent, and what chance does.

A replay draws the second request's latency apart from the first's. If slow turns come in clusters,
a hedge sent in one is slow as well, and the answer promises too much. Clusters show in consecutive
turns, so those are compared: by rank, which does not care how long a tail is, and by how much
likelier a slow turn is after a slow one.

The interval is a bootstrap's (Efron, 1979) over both requests of a turn: the file is drawn again
from itself in blocks of consecutive turns, which keeps clusters together, and as many turns as it
has are drawn from the replay with the weights that follow. So it says where the figure would lie in
another file of this size, which is what a reader who compares it with a file of theirs wants.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.analysis.whatif.answer import PERCENTILES, Independence, Interval

__all__ = [
    "block_of",
    "drawn_again",
    "independence_of",
    "intervals",
    "percentile",
    "rank_correlation_of",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SLOW_SHARE = 0.1
RESAMPLES = 200
BLOCK = 10


def percentile(secs: Floats, p: float) -> float:
    """The least time under which a share p of the turns stayed.

    Args:
        secs: The turns, in seconds, ascending; shape (n,).
        p: The share.
    """
    return float(secs[max(math.ceil(p * len(secs)) - 1, 0)])


def independence_of(
    first: Floats, pairs: tuple[Floats, Floats] | None, *, to_itself: bool = True
) -> Independence:
    """Compare consecutive turns, and the two providers where both were measured in each turn.

    Args:
        first: The first provider's latencies in the order of time; shape (n,).
        pairs: Both providers' latencies, turn by turn, if they were measured side by side.
        to_itself: Whether the second request goes to the same provider.
    """
    if len(first) < 20:
        return Independence(
            0.0, 1.0, 1.0, False, None, True, "too few turns to tell whether they are independent"
        )
    correlation = rank_correlation_of(first[:-1], first[1:])
    noise = 2 / math.sqrt(len(first) - 1)
    slow = _slowest(first)
    share = float(slow.mean())
    after_slow = float(slow[1:][slow[:-1]].mean()) if slow[:-1].any() else 0.0
    clustering = after_slow / share if share else 1.0
    expected = noise * 3  # of a share of a tenth, over so many turns
    holds = abs(correlation) <= 1.5 * noise and clustering <= 1 + max(
        expected / SLOW_SHARE**0.5, 0.5
    )
    seen = (
        f"consecutive turns correlate by {correlation:+.2f} (chance explains ±{noise:.2f}), and a "
        f"slow turn is followed by a slow one {clustering:.1f} times as often as any"
    )
    if pairs is not None:
        both = rank_correlation_of(*pairs)
        together = float(_slowest(pairs[1])[_slowest(pairs[0])].mean())
        text = (
            "both providers were measured in the same turns, so nothing is assumed; they "
            f"correlate by {both:+.2f}, and {together:.0%} of the first one's slowest turns are "
            "slow with the second as well"
        )
        return Independence(correlation, noise, clustering, True, together, True, text)
    text = f"independence holds here: {seen}"
    if not holds:
        helps = (
            "Hedging to the same provider will help less than this"
            if to_itself
            else "If the other provider has its slow spells at the same time, hedging will help "
            "less than this: measure both side by side"
        )
        text = f"slow turns come together: {seen}. {helps}"
        if correlation < 0 and clustering <= 1:
            text = f"turns follow each other, though slow ones keep apart: {seen}"
    return Independence(correlation, noise, clustering, False, None, holds, text)


def intervals(
    secs: Floats,
    rows: Ints,
    other_rows: Ints,
    turns: int,
    other_turns: int | None,
    requests: float,
    seed: int,
    rank_correlation: float = 0.0,
) -> dict[str, Interval]:
    """Where each percentile would lie in 19 of 20 files of this size.

    Args:
        secs: The replayed turns; shape (m,), in seconds.
        rows: The turn of the file that each one's first latency came from; shape (m,).
        other_rows: The observation that its second latency came from; shape (m,).
        turns: How many turns the file has.
        other_turns: How many observations the second has of its own; None if they are the turns.
        requests: Requests per turn. A file of n latencies has been through n / requests turns of
            such a policy.
        seed: The same seed gives the same intervals.
        rank_correlation: Of consecutive turns: the more they correlate, the longer the blocks.
    """
    block = block_of(turns, rank_correlation)
    rng = np.random.default_rng(seed)
    order = np.argsort(secs, kind="stable")
    ascending, first, second = secs[order], rows[order], other_rows[order]
    shown = max(round(turns / requests), 1)
    found: dict[str, list[float]] = {name: [] for name in PERCENTILES}
    for _ in range(RESAMPLES):
        mine = drawn_again(turns, block, rng)
        others = mine if other_turns is None else drawn_again(other_turns, block, rng)
        weight = np.cumsum(mine[first] * others[second])
        if not weight[-1]:
            continue
        for name, p in PERCENTILES.items():
            rank = max(math.ceil(p * shown), 1)  # of so many draws, the one of this rank is at
            drawn = rng.beta(rank, shown - rank + 1) * weight[-1]
            index = int(np.searchsorted(weight, drawn, side="right"))
            found[name].append(float(ascending[min(index, len(ascending) - 1)]))
    return {
        name: Interval(*(percentile(np.sort(np.asarray(values)), p) for p in (0.025, 0.975)))
        for name, values in found.items()
    }


def _slowest(values: Floats) -> npt.NDArray[np.bool_]:
    """Which of them are slow; not all, if the slowest are equal."""
    bound = np.quantile(values, 1 - SLOW_SHARE)
    return values > bound if (values > bound).any() else values >= bound


def _ranks(values: Floats) -> Floats:
    """Ranks, those of equal values their mean, as they have no order; shape (n,)."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[index]


def block_of(turns: int, correlation: float) -> int:
    """How long a block keeps clusters together.

    (2ρ / (1 − ρ²))^⅔ · n^⅓ is the best length for a mean of turns that follow each other with
    correlation ρ (Carlstein, 1986).

    Args:
        turns: How many turns there are.
        correlation: Of consecutive turns.
    """
    rho = min(max(correlation, 0.0), 0.95)
    best = (2 * rho / (1 - rho**2)) ** (2 / 3) * turns ** (1 / 3)
    return round(min(max(best, BLOCK), max(turns / 10, 1)))


def drawn_again(turns: int, block: int, rng: np.random.Generator) -> Floats:
    """How often each turn is in a file drawn from this one.

    Args:
        turns: How many turns there are.
        block: How many consecutive turns are drawn at once.
        rng: Decides which.

    Returns:
        A count a turn; shape (turns,).
    """
    block = min(block, max(turns // 10, 1))
    begins = rng.integers(0, turns, -(-turns // block))
    drawn = ((begins[:, None] + np.arange(block)) % turns).ravel()[:turns]
    return np.bincount(drawn, minlength=turns).astype(np.float64)


def rank_correlation_of(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation; 0 where one of them does not vary.

    Args:
        one: Figures; shape (n,).
        other: Those that belong to them; shape (n,).
    """
    ranks = [_ranks(values) for values in (one, other)]
    if any(np.ptp(values) == 0 for values in (one, other)):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
