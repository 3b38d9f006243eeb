"""The percentile of a list of figures, by one rule for all tools."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["percentile"]


def percentile(values: Sequence[float], p: float) -> float | None:
    """The least of the values that a share ``p`` of them does not exceed: the nearest rank.

    Args:
        values: The figures, in any order.
        p: The share, above 0 and at most 1.

    Returns:
        One of the values; None if there are none.
    """
    return sorted(values)[max(math.ceil(p * len(values)) - 1, 0)] if values else None
