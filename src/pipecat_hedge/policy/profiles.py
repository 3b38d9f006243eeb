"""What a provider's time to first token looks like: distributions fitted to published figures.

A profile is a quantile function through the published points. The problem: three or four
percentiles and a maximum are all that is published, and the tail is what matters. A normal or
log-normal fitted to p50 and p95 misses the maximum by an order of magnitude. Ours is a piecewise
Pareto: between two points, log(latency) is linear in -log(1 - p), which meets every published point
exactly and is the curve that heavy tails follow. Below the median the same line runs from a floor
of 0.6 x p50 (nobody publishes that part; a provider is never instantaneous) to p50.

One point is not published itself: Baseten's p98 of 0.9 s. It is what the result of hedging on that
trace (a p99 of 1.09 s with 5 % more requests) says about the shape between p95 and p99: a tight
body up to the p98 and stalls beyond it, rather than a slow rise.

Left out: the dependence of one request on the one before it (slow requests come in clusters) and on
the length of the prompt. The points come from the aiewf-eval benchmark (August 2026: 30-turn
conversations, prompts of 12k tokens, through Pipecat's services) and the "jagged edges" report.
Where no p99 is published the maximum stands at p = 0.999. Tokens per second are an assumption: 80
for hosted models, 400 on Groq, 60 on one local GPU.
"""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_FLOOR_OF_MEDIAN = 0.6
_P_OF_MAX = 0.999


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """Time to first token and pace of one model.

    Parameters:
        name: The model name that chooses this profile.
        points: Pairs of probability and seconds, both rising; the first has probability 0, the last
            is the maximum.
        tokens_per_sec: Tokens per second after the first.
        summary: One line on where the figures come from.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    tokens_per_sec: float
    summary: str

    @property
    def max_secs(self) -> float:
        """The longest time that is ever drawn."""
        return self.points[-1][1]

    def quantile(self, p: float) -> float:
        """The time that a share ``p`` of the requests stays under, in seconds.

        Args:
            p: Probability, from 0 to 1. Beyond the last point it is the maximum.

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
        """The probability that a request takes longer than ``secs``: the inverse of `quantile`."""
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
        """One time to first token in seconds; takes exactly one number from ``rng``."""
        return self.quantile(rng.random())

    def samples(self, n: int, seed: int) -> npt.NDArray[np.float64]:
        """``n`` times to first token in seconds, for simulations in virtual time.

        Args:
            n: How many.
            seed: The same seed gives the same times.
        """
        depths = [_depth(p) for p, _ in self.points]
        logs = [math.log(secs) for _, secs in self.points]
        drawn: npt.NDArray[Any] = -np.log1p(-np.random.default_rng(seed).random(n))
        return np.exp(np.interp(drawn, depths, logs))


def _depth(p: float) -> float:
    """How far into the tail a probability lies: -log(1 - p)."""
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
    """A profile from published milliseconds."""
    published = [
        (0.0, p50 * _FLOOR_OF_MEDIAN),
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
        p98=900,
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
"""Every profile by its model name."""
