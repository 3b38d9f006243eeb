"""Latency profiles: distributions of the time to first token, fitted to published figures.

A profile is a piecewise Pareto distribution: between two published points, log(latency) is linear
in -log(1 - p). It meets every point and follows heavy tails; a log-normal fitted to p50 and p95
misses the maximum by an order of magnitude. Nothing is published below p50: there, the line from
p50 to p95 goes on.
Sources: the aiewf-eval benchmark (August 2026, 12k-token prompts) and the "jagged edges" report.
Without a published p99 the maximum stands at p = 0.999. Token rates are assumed: 80 per second, 400
on Groq, 60 on a local GPU. Clusters of slow requests and prompt length are not modelled.
See ``docs/design/constants.md``.
"""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_P_OF_MAX = 0.999
"""Probability at which a published maximum stands."""


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """Time to first token and token rate of one model.

    Parameters:
        name: The model name that selects this profile.
        points: Pairs of probability and seconds, both ascending; the first probability is 0, and
            the last point is the maximum.
        tokens_per_sec: Tokens per second after the first token.
        summary: One line on the source of the figures.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    tokens_per_sec: float
    summary: str

    @property
    def max_secs(self) -> float:
        """The maximum, in seconds."""
        return self.points[-1][1]

    def quantile(self, p: float) -> float:
        """Return the time below which a share ``p`` of the requests answers, in seconds.

        Args:
            p: Probability from 0 to 1. Beyond the last point it yields the maximum.

        Raises:
            ValueError: If ``p`` is not a probability.
        """
        if not 0 <= p <= 1:
            raise ValueError(f"p must be between 0 and 1, got {p}")
        if p >= self.points[-1][0]:
            return self.max_secs
        after = bisect_right(self.points, p, key=lambda point: point[0])
        (p0, low), (p1, high) = self.points[after - 1], self.points[after]
        x0, x1 = _depth(p0), _depth(p1)
        return low * (high / low) ** ((_depth(p) - x0) / (x1 - x0))

    def survival(self, secs: float) -> float:
        """Return the probability that a request takes longer than ``secs``, from 1 to 0."""
        if secs >= self.max_secs:
            return 0.0
        if secs <= self.points[0][1]:
            return 1.0
        after = bisect_right(self.points, secs, key=lambda point: point[1])
        (p0, low), (p1, high) = self.points[after - 1], self.points[after]
        x0, x1 = _depth(p0), _depth(p1)
        share = math.log(secs / low) / math.log(high / low)
        return math.exp(-(x0 + share * (x1 - x0)))

    def sample(self, rng: random.Random) -> float:
        """Draw one time to first token in seconds; takes exactly one number from ``rng``."""
        return self.quantile(rng.random())

    def samples(self, n: int, seed: int) -> npt.NDArray[np.float64]:
        """Draw ``n`` times to first token in seconds; the same seed gives the same times."""
        depths = [_depth(p) for p, _ in self.points]
        logs = [math.log(secs) for _, secs in self.points]
        drawn: npt.NDArray[Any] = -np.log1p(-np.random.default_rng(seed).random(n))
        return np.exp(np.interp(drawn, depths, logs))


def _depth(p: float) -> float:
    """Return the depth of a probability in the tail, -log(1 - p)."""
    return -math.log1p(-p)


def _published(
    name: str,
    *,
    p50: float,
    p95: float,
    top: float,
    p98: float | None = None,
    p99: float | None = None,
    p999: float | None = None,
    p_of_max: float = _P_OF_MAX,
    tokens_per_sec: float = 80,
    summary: str,
) -> LatencyProfile:
    """Build a profile from published milliseconds."""
    published = [
        (0.0, p50 * (p50 / p95) ** (_depth(0.5) / (_depth(0.95) - _depth(0.5)))),
        (0.5, p50),
        (0.95, p95),
        (0.98, p98),
        (0.99, p99),
        (0.999, p999),
        (p_of_max, top),
    ]
    points = tuple((p, ms / 1000) for p, ms in published if ms is not None)
    return LatencyProfile(name, points, tokens_per_sec, summary)


_PROFILES = (
    _published("gpt-4.1", p50=536, p95=1771, top=5056, summary="OpenAI"),
    _published("claude-haiku-4-5", p50=637, p95=1615, top=3152, summary="Anthropic"),
    _published("claude-sonnet-4-6", p50=850, p95=4126, top=9396, summary="Anthropic"),
    _published("gemini-3.6-flash", p50=798, p95=984, top=1472, summary="Google"),
    _published("gpt-oss-120b-groq", p50=98, p95=217, top=2117, tokens_per_sec=400, summary="Groq"),
    _published(
        "gemma-4-31b-baseten",
        p50=489,
        p95=609,
        p98=900,  # assumed, from the p99 of 1.09 s that 5 % more requests reach on this trace
        p99=6085,
        p999=25643,
        top=38250,
        p_of_max=1 - 1 / 20000,
        summary="Baseten: calm until its p98",
    ),
    _published(
        "qwen3.8-27b-local",
        p50=101,
        p95=318,
        top=592,
        tokens_per_sec=60,
        summary="one RTX 5090 of one's own: almost no tail",
    ),
    _published(
        "jagged",
        p50=200,
        p95=2300,
        p99=8000,
        top=30000,
        summary='the platform of the "jagged edges" report (its maximum is assumed)',
    ),
    _published(
        "jagged-after",
        p50=120,
        p95=800,
        p99=1500,
        top=3500,
        summary="the same platform after the work (its maximum is assumed)",
    ),
    LatencyProfile(
        "fixed",
        ((0.0, 0.05), (0.5, 0.05)),
        100,
        "always 50 ms; set your own with ttft= and tps=",
    ),
)

PROFILES: dict[str, LatencyProfile] = {profile.name: profile for profile in _PROFILES}
"""The profiles by model name."""
