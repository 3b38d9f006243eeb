"""Writes a provider's counts as fields of a hash, and reads them. Pure.

A field names a model (a prompt class, all prompts of unknown size, sentences), whether the wait was
cut short, and a bucket ``STEP`` times as wide as the model's. Counts are additive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipecat_hedge.providers.latency import ALL, COUNTS
from pipecat_hedge.providers.shared_store import Sums
from pipecat_hedge.providers.survival import Floats

STEP = 3
"""Buckets of 6 % instead of 2 %: a third of the fields and commands."""
MOST_SAVED = 1024.0
"""Observations of a model in a snapshot, so that a process's own soon count for more."""
_FIELD = re.compile(r"(\d)(c?)(\d{1,4})", re.ASCII)


def fields_of(counts: np.ndarray) -> dict[str, int]:
    """The fields of counts.

    Args:
        counts: Whole numbers of shape ``COUNTS``.
    """
    left = counts.copy()
    left[ALL] -= counts[:ALL].sum(axis=0)  # what the prompt classes have needs no second field
    found: dict[str, int] = {}
    for model, censored, bucket in np.argwhere(left > 0).tolist():
        name = f"{model}{'c' if censored else ''}{bucket // STEP}"
        found[name] = found.get(name, 0) + int(left[model, censored, bucket])
    return found


def counts_of(fields: Mapping[str, int]) -> Floats:
    """The counts that ``fields_of`` has written; other fields are left out.

    Args:
        fields: Counts by field.
    """
    counts = np.zeros(COUNTS)
    for name, count in fields.items():
        match = _FIELD.fullmatch(name)
        if match is None or count < 0:
            continue
        model, bucket = int(match[1]), int(match[3]) * STEP + STEP // 2
        if model < COUNTS[0] and bucket < COUNTS[2]:
            counts[model, int(bool(match[2])), bucket] += count
    counts[ALL] += counts[:ALL].sum(axis=0)
    return counts


def without(fields: Sums, own: Sums) -> dict[str, int]:
    """Sums without what this process has added to them."""
    return {name: max(count - own.get(name, 0), 0) for name, count in fields.items()}


def saved_of(fields: Mapping[str, int]) -> dict[str, Any]:
    """What ``ProviderLatency.saved`` would be of these observations alone.

    Args:
        fields: Counts by field.
    """
    counts = counts_of(fields)
    totals = counts.sum(axis=(1, 2), keepdims=True)
    counts *= np.minimum(MOST_SAVED / np.maximum(totals, 1.0), 1.0)
    used = np.flatnonzero(counts)
    return {
        "seen": counts.sum(axis=(1, 2)).astype(int).tolist(),
        "buckets": used.tolist(),
        "counts": counts.ravel()[used].round(2).tolist(),
        "slow_period": [0, 0, 0, 0.0],
        "late_secs": [],
        "silences": 0,
    }
