"""Figures of callers' turns, arm by arm, and what of them is worse than with the bare service."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecat_hedge.race import TurnReport
from pipecat_hedge.tools.bench import percentile

SLOW_SECS = 2.0
ANSWER = "We are open until nine."
BARE = ("bare", "bare again")
_NUMBER = re.compile(r"\b\d+(\.\d+)?\b")


@dataclass(slots=True)
class Turn:
    """One turn of one caller.

    Parameters:
        arm: Which service answered.
        phase: During which part of the scenario it began.
        ttft_secs: The time to the first text; infinite if the turn is lost.
        text: All of the answer that came.
        error: What the service reported as an error, if anything.
        is_over: Whether the turn came to its end in time.
        report: The hedged service's own report of it.
    """

    arm: str
    phase: str
    ttft_secs: float
    text: str
    error: str | None
    is_over: bool
    report: TurnReport | None = None

    @property
    def is_lost(self) -> bool:
        """Whether there was no answer, or no end of it."""
        return math.isinf(self.ttft_secs)

    @property
    def is_cut(self) -> bool:
        """Whether only a part of the answer came, or something else."""
        return not self.is_lost and self.text.strip() != ANSWER

    @property
    def asked(self) -> list[str]:
        """The providers that were sent a request, in order."""
        if self.report is None:
            return []
        return [a.provider for a in self.report.attempts if a.sent_secs is not None]

    @property
    def reason(self) -> str:
        """Why the turn is lost, as far as is known."""
        if not self.is_over:
            return "no end within 30 s"
        report = self.report
        if report is None:
            return self.error or "silence"
        if report.degraded_reason is not None:
            return report.degraded_reason
        failures = [f"{a.provider} {a.error_category or a.outcome}" for a in report.attempts]
        return ", ".join(failures) or self.error or "no request"


@dataclass(frozen=True, slots=True)
class Figures:
    """What callers got from one arm. Lost turns count as infinitely late.

    Parameters:
        turns: How many there were.
        lost: How many without an answer, or without its end.
        cut: How many with a part of the answer.
        p50: Of the time to first text, in seconds.
        p95: The same.
        p99: The same.
        slow_share: The share over 2 s.
        extra: Requests beyond the first, by turn.
        asked: By provider, the share of turns in which it was sent a request.
    """

    turns: int
    lost: int
    cut: int
    p50: float
    p95: float
    p99: float
    slow_share: float
    extra: float
    asked: dict[str, float]


@dataclass(slots=True)
class Comparison:
    """All turns of a scenario.

    Parameters:
        arms: The arms' names.
        phases: The phases' names.
        turns: The turns.
        counts: What else was counted.
    """

    arms: Sequence[str]
    phases: list[str] = field(default_factory=list[str])
    turns: list[Turn] = field(default_factory=list[Turn])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def figures(self, arm: str, phase: str | None = None) -> Figures:
        """The figures of an arm.

        Args:
            arm: Which.
            phase: Of the turns that began during it; None is of all.
        """
        turns = [t for t in self.turns if t.arm == arm and phase in (None, t.phase)]
        ttfts = [t.ttft_secs for t in turns]
        sent = [t.asked for t in turns]
        names = sorted({name for asked in sent for name in asked})
        count = max(len(turns), 1)
        return Figures(
            turns=len(turns),
            lost=sum(t.is_lost for t in turns),
            cut=sum(t.is_cut for t in turns),
            p50=percentile(ttfts, 0.5) or 0.0,
            p95=percentile(ttfts, 0.95) or 0.0,
            p99=percentile(ttfts, 0.99) or 0.0,
            slow_share=sum(secs > SLOW_SECS for secs in ttfts) / count,
            extra=sum(max(len(asked) - 1, 0) for asked in sent) / count,
            asked={name: sum(name in asked for asked in sent) / count for name in names},
        )

    def harms(self, arm: str = "hedged", phase: str | None = None) -> list[str]:
        """In what an arm is worse than both bare ones, beyond what they differ by themselves.

        Two more turns may be lost. Where the bare arms lose some, so may what chance allows for
        beside that: how many turns begin during an outage is chance. A percentile may exceed the
        bare ones' by 15 %, by as much as they differ, or by ``CHANCE`` standard deviations of its
        rank, among the turns of both bare arms.

        Args:
            arm: Which.
            phase: Of the turns that began during it; None is of all.
        """
        ours, (one, other) = self.figures(arm, phase), (self.figures(b, phase) for b in BARE)
        found: list[str] = []
        fewest = min(one.lost, other.lost)
        if ours.lost > fewest + 2 + CHANCE / 2 * math.sqrt(fewest):
            found.append(
                f"{arm}: {ours.lost} of {ours.turns} turns lost, bare {one.lost} of {one.turns} "
                f"and {other.lost} of {other.turns}"
            )
        pooled = [t.ttft_secs for t in self.turns if t.arm in BARE and phase in (None, t.phase)]
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            values = getattr(one, name), getattr(other, name)
            worst = max(values)
            limit = max(1.15 * worst, 2 * worst - min(values)) if worst < math.inf else worst
            rank = share + CHANCE * math.sqrt(share * (1 - share) / max(ours.turns, 1))
            limit = max(limit, percentile(pooled, min(rank, 1.0)) or 0.0)
            if getattr(ours, name) > limit:
                found.append(
                    f"{arm}: {name} {getattr(ours, name):.3f} s, "
                    f"bare {values[0]:.3f} s and {values[1]:.3f} s"
                )
        return found

    def table(self) -> str:
        """The figures of every arm in every phase, and why turns were lost."""
        lines = ["phase / arm: turns, lost, cut; p50, p95, p99; over 2 s; extra requests, to whom"]
        for phase in [*self.phases, None] if len(self.phases) > 1 else [None]:
            for arm in self.arms:
                f = self.figures(arm, phase)
                asked = ", ".join(f"{name} {share:.0%}" for name, share in f.asked.items())
                lines.append(
                    f"{phase or 'all':10} {arm:11} {f.turns:6} {f.lost:4} {f.cut:4} "
                    f"{f.p50:8.3f} {f.p95:7.3f} {f.p99:7.3f} {f.slow_share:7.1%} "
                    f"{f.extra:6.2f}  {asked}"
                )
        lost = Counter((t.arm, _NUMBER.sub("n", t.reason)) for t in self.turns if t.is_lost)
        lines += [f"  {arm} lost {n}: {why[:200]}" for (arm, why), n in lost.most_common(8)]
        return "\n".join([*lines, *(f"  {what}: {n}" for what, n in self.counts.items())])


CHANCE = 3.5
"""All scenarios compare some thirty percentiles, of which chance is to fail one in 150 runs."""
