"""Whether callers got what was promised: a turn against an `Slo`, and many of them. Pure.

A turn that failed, was degraded or never answered has broken its promise, however soon that was.
One that the caller interrupted before the time was up says nothing, and neither does one whose line
does not tell the figure; one in which only tools were called says nothing of sentences. All of it
is judged by what judges it in the process itself (`policies/slo.py`, `promise.py`): the report, the
metrics and `llm.slo_status()` tell the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.limits.priority import TIERS
from pipecat_hedge.policy.slo_outcome import Slo, judge_llm
from pipecat_hedge.telemetry.slo_tracker import WINDOWS_SECS, WindowCount, judge_voice
from pipecat_hedge.tools.analysis.report.periods import Calendar, Period
from pipecat_hedge.tools.analysis.report.turns import HeardTurn, LoggedTurn

__all__ = [
    "BURN_SECS",
    "OF_LLM",
    "Attainment",
    "Burn",
    "TierPromise",
    "promises_of",
    "was_heard_in_time",
    "was_kept",
]

OfLLM: TypeAlias = Literal["ttft", "ttfs"]
OF_LLM: tuple[OfLLM, ...] = ("ttft", "ttfs")
"""What is promised of the LLM's answer."""
BURN_SECS = WINDOWS_SECS[1]
"""The worst burn is that of an hour, as the alerts' and the page's is."""
LEAST_BURNT = 20
"""Of fewer turns one that is late burns as fast as a bad hour."""


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many turns kept a promise, of those that tell.

    Parameters:
        kept: How many did.
        told: How many tell.
    """

    kept: int
    told: int

    @property
    def share(self) -> float | None:
        """The share of turns that kept it; None if none tells."""
        return self.kept / self.told if self.told else None

    @classmethod
    def of(cls, verdicts: Iterable[bool | None]) -> Attainment:
        """Count verdicts.

        Args:
            verdicts: Whether each turn kept it; None says nothing.
        """
        told = [verdict for verdict in verdicts if verdict is not None]
        return cls(sum(told), len(told))


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast an error budget was spent in a stretch of time.

    Parameters:
        times: So many times as fast as allowed; 1 uses it up exactly.
        begin_at: When the first turn of it was, in seconds since the epoch.
        end_at: When the last one was.
    """

    times: float
    begin_at: float
    end_at: float


@dataclass(frozen=True, slots=True)
class TierPromise:
    """What became of one promise to one tier.

    Parameters:
        tier: Whose; None where the log does not say whose turns they were.
        objective: ``ttft``, ``ttfs`` or ``voice_to_voice``.
        limit_secs: What was promised.
        target: For what share of turns.
        overall: What became of it.
        by_period: The same of each stretch of time; empty where times are not known.
        worst_burn: The fastest that its error budget was spent in an hour (``BURN_SECS``), or in
            the whole log if that is shorter; None if there was none of at least ``LEAST_BURNT``
            turns, or times are not known.
    """

    tier: str | None
    objective: str
    limit_secs: float
    target: float
    overall: Attainment
    by_period: tuple[tuple[Period, Attainment], ...]
    worst_burn: Burn | None

    @property
    def is_kept(self) -> bool | None:
        """Whether it was kept; None if no turn tells."""
        share = self.overall.share
        return None if share is None else share >= self.target

    @property
    def budget_left(self) -> float | None:
        """What the log's turns left of their error budget: 1 is all of it, below 0 is overspent."""
        told, kept = self.overall.told, self.overall.kept
        return WindowCount(0.0, told, told - kept).budget_left(self.target) if told else None

    @property
    def worst(self) -> tuple[Period, Attainment] | None:
        """The stretch in which most turns missed it beyond what may; None if there was none."""

        def beyond(each: tuple[Period, Attainment]) -> float:
            return each[1].told - each[1].kept - (1 - self.target) * each[1].told

        worst = max(self.by_period, key=beyond, default=None)
        return worst if worst is not None and beyond(worst) > 0 else None


def was_kept(turn: LoggedTurn, objective: OfLLM, limit_secs: float) -> bool | None:
    """Whether a turn kept a promise.

    Args:
        turn: The turn.
        objective: ``ttft`` or ``ttfs``.
        limit_secs: What was promised.

    Returns:
        Whether it did; None if it says nothing.
    """
    if f"{objective}_secs" in turn.lacks and not turn.is_unanswered:
        return None
    return judge_llm(objective, limit_secs, turn.report)


def was_heard_in_time(turn: HeardTurn, limit_secs: float) -> bool | None:
    """Whether the answer was heard as soon as promised.

    Args:
        turn: The turn, as the caller lived it.
        limit_secs: What was promised, in seconds from the caller's last sound.

    Returns:
        Whether it was; None if the turn says nothing.
    """
    return judge_voice(limit_secs, turn.latency)


def promises_of(
    turns: Sequence[LoggedTurn],
    heard: Sequence[HeardTurn],
    slos: dict[str | None, Slo],
    calendar: Calendar | None,
) -> tuple[TierPromise, ...]:
    """What became of every promise.

    Args:
        turns: The turns.
        heard: What callers heard.
        slos: What is promised to each tier; under None, to all that are not named.
        calendar: The stretches of time, if times are known.
    """
    found = list[TierPromise]()
    whose = _tiers_of(heard)
    seen = {turn.tier for turn in turns} | set(whose)
    known: list[str | None] = [*TIERS, None]
    others = sorted(tier for tier in seen if tier is not None and tier not in TIERS)
    for tier in [*(tier for tier in known if tier in seen), *others]:
        slo, mine = _slo(slos, tier), [turn for turn in turns if turn.tier == tier]
        for objective in OF_LLM:
            if mine and (limit := slo.within(objective)) is not None:
                verdicts = [was_kept(turn, objective, limit) for turn in mine]
                moments = [turn.began_at for turn in mine]
                found.append(_promise(tier, objective, limit, slo, verdicts, moments, calendar))
        lived = [turn for turn, to in zip(heard, whose, strict=True) if to == tier]
        if lived and (limit := slo.voice_to_voice_secs) is not None:
            verdicts = [was_heard_in_time(turn, limit) for turn in lived]
            moments = [turn.at for turn in lived]
            found.append(_promise(tier, "voice_to_voice", limit, slo, verdicts, moments, calendar))
    return tuple(found)


def _tiers_of(heard: Sequence[HeardTurn]) -> list[str | None]:
    """Whose turns they were; those without a race are ordinary callers', as in the metrics."""
    is_told = any(turn.tier is not None for turn in heard)
    return [turn.tier or ("standard" if is_told else None) for turn in heard]


def _slo(slos: dict[str | None, Slo], tier: str | None) -> Slo:
    return slos.get(tier) or slos.get(None) or Slo()


def _promise(
    tier: str | None,
    objective: str,
    limit: float,
    slo: Slo,
    verdicts: Sequence[bool | None],
    moments: Sequence[float | None],
    calendar: Calendar | None,
) -> TierPromise:
    by_period = list[tuple[Period, Attainment]]()
    if calendar is not None:
        cells: list[list[bool | None]] = [[] for _ in range(calendar.count)]
        for verdict, moment in zip(verdicts, moments, strict=True):
            if moment is not None:
                cells[calendar.index(moment)].append(verdict)
        by_period = [(calendar.period(i), Attainment.of(cell)) for i, cell in enumerate(cells)]
    burn = _worst_burn(verdicts, moments, slo.share)
    overall = Attainment.of(verdicts)
    return TierPromise(tier, objective, limit, slo.share, overall, tuple(by_period), burn)


def _worst_burn(
    verdicts: Sequence[bool | None], moments: Sequence[float | None], target: float
) -> Burn | None:
    """The window that slides over the turns, at its worst."""
    told = sorted(
        (moment, not kept)
        for kept, moment in zip(verdicts, moments, strict=True)
        if kept is not None and moment is not None
    )
    worst, first, bad = None, 0, 0
    for last, (moment, is_bad) in enumerate(told):
        bad += is_bad
        while told[first][0] <= moment - BURN_SECS:
            bad -= told[first][1]
            first += 1
        is_whole = moment - told[0][0] >= BURN_SECS or last == len(told) - 1
        if is_whole and (count := last - first + 1) >= LEAST_BURNT:
            times = WindowCount(BURN_SECS, count, bad).burn(target) or 0.0
            if worst is None or times > worst.times:
                worst = Burn(times, told[first][0], moment)
    return worst
