"""Makes the ordered traces in fixtures/latencies: simulated times to first token, and when asked.

    python -m scripts.make_traces

The same seeds give the same files. They are no measurements: `fixtures/README.md` says what each
stands for.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.providers import PROFILES

Floats: TypeAlias = npt.NDArray[np.float64]
TARGET = Path(__file__).parents[1] / "fixtures" / "latencies"
BEGIN_AT = datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp()
HOUR_SECS = 3600.0


def calm(count: int, rng: np.random.Generator) -> Floats:
    """Return latencies of a hosted model's good hours: those below its p95."""
    profile = PROFILES["gemma-4-31b-baseten"]
    return np.array([profile.quantile(0.95 * p) for p in rng.random(count)])


def times(count: int, hours: float, rng: np.random.Generator) -> Floats:
    """Return when turns are asked: at random within so many hours, in seconds."""
    return np.sort(rng.uniform(0, hours * HOUR_SECS, count))


def two_days() -> dict[str, Floats]:
    """A calm day; then one in which two in three requests are slow for minutes, again and again."""
    rng = np.random.default_rng(1)
    count, hours = 1500, 12.0
    first, second = times(count, hours, rng), times(count, hours, rng)
    secs = calm(2 * count, rng)
    begins = rng.uniform(0, hours * HOUR_SECS, 14)
    lengths = rng.uniform(180, 600, 14)
    is_bad = ((second[:, None] >= begins) & (second[:, None] < begins + lengths)).any(axis=1)
    is_slow = is_bad & (rng.random(count) < 2 / 3)
    secs[count:][is_slow] = 0.5 + rng.lognormal(np.log(2.0), 0.9, is_slow.sum())
    return {"at": np.concatenate([first, second + 24 * HOUR_SECS]), "hosted": secs}


def thinking() -> dict[str, Floats]:
    """Two models that think about the same questions: a quarter of them, and four in five of it."""
    rng = np.random.default_rng(2)
    count = 1000
    thinks = rng.random(count) < 0.25
    both = thinks & (rng.random(count) < 0.8)
    quick = [rng.lognormal(np.log(median), 0.2, count) for median in (0.5, 0.6)]
    slow = [rng.uniform(3.5, 6.5, count) for _ in quick]
    return {
        "at": times(count, 6, rng),
        "thinks": np.where(thinks, slow[0], quick[0]),
        "second": np.where(both, slow[1], quick[1]),
    }


def outage() -> dict[str, Floats]:
    """Two hours; for eight minutes one provider takes 15 to 45 s, and the other is well."""
    rng = np.random.default_rng(3)
    count = 1200
    at = times(count, 2, rng)
    is_out = (at >= 75 * 60) & (at < 83 * 60)
    hosted = np.where(is_out, rng.uniform(15, 45, count), calm(count, rng))
    return {"at": at, "hosted": hosted, "other": rng.lognormal(np.log(0.7), 0.25, count)}


def main() -> None:
    """Write the files: whole seconds since the epoch, and milliseconds."""
    for make in (two_days, thinking, outage):
        columns = make()
        path = TARGET / f"{make.__name__}.csv"
        names = [name if name == "at" else f"{name}_ms" for name in columns]
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            for at, *secs in zip(*columns.values(), strict=True):
                writer.writerow([round(BEGIN_AT + at), *(round(1000 * each) for each in secs)])
        print(f"{path.name}: {len(columns['at'])} turns, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
