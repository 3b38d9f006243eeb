"""The nearest-rank percentile of a list of figures."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], p: float) -> float | None:
    """Return the nearest-rank percentile; None without values.

    Args:
        values: The figures, in any order.
        p: The share, above 0 and at most 1.
    """
    return sorted(values)[max(math.ceil(p * len(values)) - 1, 0)] if values else None
