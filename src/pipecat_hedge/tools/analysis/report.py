"""Computes callers' waits, provider incidents, and the effect of hedging. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import Literal, TypeAlias

import numpy as np

from pipecat_hedge.policy import Slo, classify_llm, classify_wait
from pipecat_hedge.race import AttemptReport, SpeechReport, TranscriptReport
from pipecat_hedge.tools.analysis.incidents import Incident, attempt_waits, incidents_of
from pipecat_hedge.tools.analysis.latency_files import recorded_from
from pipecat_hedge.tools.analysis.slow_turns import SlowTurn, slowest_turns
from pipecat_hedge.tools.analysis.statistics import FEW, Bootstrap, Floats, Interval, Waits
from pipecat_hedge.tools.analysis.turn_log import Log, LoggedTurn, ReadingError
from pipecat_hedge.tools.analysis.whatif import Answer, Question, what_if

P99_TURNS = 500
"""From this many turns on the p99 shows the effect of hedging."""
BUDGETS = (0.05, 0.1, 0.25)
"""The budgets that are replayed."""
REPLAYED = 6_000
"""Turns that are replayed."""
SAMPLED = 20_000
"""The most turns whose latencies are used."""
AS_LOGGED = "as logged"
"""The name of the logged policy."""
SAME_REQUESTS = 0.02
"""Shares of extra requests within this are the same."""
PERIODS = {60: 25, 300: 25, 600: 25, 3600: 7 * 24, 86_400: 60}
"""Lengths of a period in seconds, each with the most periods of that length."""
COMPARED_TURNS = 20_000
"""The latest turns, which are compared."""
MIN_BEYOND = 5
"""The fewest turns beyond a percentile."""
MIN_TURNS = 20
"""The fewest turns of a share."""
RESAMPLES = 400
Objective: TypeAlias = Literal["ttft", "ttfs", "voice_to_voice"]


@dataclass(frozen=True, slots=True)
class Group:
    """The turns of a tier or a period.

    Parameters:
        name: The group's name.
        turns: The number of turns.
        ttft: Times to first token; given-up turns are right-censored.
        unanswered: Turns without a complete answer.
    """

    name: str
    turns: int
    ttft: Waits
    unanswered: int

    @classmethod
    def of(cls, name: str, turns: Sequence[LoggedTurn]) -> Group:
        """Sum up turns."""
        return cls(name, len(turns), _ttft(turns), sum(turn.unanswered for turn in turns))


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """How well a tier met an objective.

    Parameters:
        objective: ``ttft``, ``ttfs`` or ``voice_to_voice``.
        tier: The callers' tier; None for all.
        limit_secs: The objective's limit.
        target: The target share of turns.
        met: Turns that met it.
        turns: Turns to which it applies.
    """

    objective: Objective
    tier: str | None
    limit_secs: float
    target: float
    met: int
    turns: int


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """One provider's requests.

    Parameters:
        provider: The provider's name.
        requests: Requests sent to it.
        reasons: The same by ``primary``, ``hedge``, ``failure`` and ``stall``.
        outcomes: The same by ``won``, ``superseded``, ``failed`` and ``interrupted``.
        ttft: Times to first token; cancelled requests are right-censored.
        usd: Their cost, in US dollars; None if no price is known.
    """

    provider: str
    requests: int
    reasons: dict[str, int]
    outcomes: dict[str, int]
    ttft: Waits
    usd: float | None


@dataclass(frozen=True, slots=True)
class RecogniserFigures:
    """One recogniser's utterances.

    Parameters:
        recogniser: The recogniser's name.
        utterances: The number of utterances.
        transcript: Times from the end of speech to the last transcript; utterances without one are
            left out.
        rescued: Utterances for which another recogniser was asked.
    """

    recogniser: str
    utterances: int
    transcript: Waits
    rescued: int


@dataclass(frozen=True, slots=True)
class VoiceFigures:
    """What one voice has spoken.

    Parameters:
        voice: The voice's name; None has spoken nothing.
        sentences: The number of sentences.
        rescued: Those that were asked of another voice first.
        left_out: Those that no voice has spoken to their end.
        extra_characters: The characters that were asked for again, per character to be spoken.
        first_sound: Times from the first sentence's text to its first sound.
        silent_secs: The longest silence between the sentences of an answer.
    """

    voice: str | None
    sentences: int
    rescued: int
    left_out: int
    extra_characters: float
    first_sound: Waits
    silent_secs: float


@dataclass(frozen=True, slots=True)
class Hedging:
    """The effect of hedging.

    Parameters:
        hedges: Requests sent because another one was slow.
        won: The hedges whose answer was released.
        replacements: Requests that replaced a failed or stalled one.
        extra_requests: Requests beyond the first, per turn with a request.
        lost_usd: The cost of requests that lost a race; None if no price is known.
        percentile: The compared percentile: ``p99``, or ``p95`` for few turns.
        with_secs: It under the log's policy, replayed; None without a replay.
        without_secs: It without hedging, failed requests being replaced.
        is_known: Whether both are known; else hedges cancelled too many requests.
    """

    hedges: int
    won: int
    replacements: int
    extra_requests: float
    lost_usd: float | None
    percentile: str = "p99"
    with_secs: float | None = None
    without_secs: float | None = None
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two logs.

    Parameters:
        name: Its name.
        unit: ``secs``, ``share``, ``requests`` or ``usd``.
        this: This log's figure; None if unknown.
        other: The other log's figure.
        interval: The 95 % interval of this minus other; None if unknown.
        verdict: ``differs``, ``no difference shown``, ``too few turns``, or ``unknown``.
    """

    name: str
    unit: str
    this: float | None
    other: float | None
    interval: Interval | None
    verdict: Literal["differs", "no difference shown", "too few turns", "unknown"]


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of the page, the summary and the JSON.

    Parameters:
        files: The logs' names.
        skipped: Unusable lines.
        named_skips: The first of them.
        begin_at: The beginning of the first turn, in seconds since the epoch; None unless all times
            are known.
        end_at: The end of the last turn.
        outcomes: Turns by outcome.
        degraded: Turns with the fallback text.
        known_answers: By source, turns that were answered without a request.
        withdrawn: Speculative turns that were withdrawn; they are left out of all others.
        all_turns: All turns.
        tiers: The turns of each tier.
        periods: The turns of each period; empty unless all times are known.
        ttfs: Times to the first speakable sentence.
        voice_to_voice: From the caller's last sound to the answer's first, if logged.
        objectives: How well the objectives were met; empty without an SLO.
        providers: Each provider's requests, the most frequent first provider first.
        recognisers: Each recogniser's utterances, if they are reported.
        voices: What each voice has spoken, if that is reported.
        incidents: Times in which a provider was slow or failing, costliest first.
        hedging: The effect of hedging.
        usd_per_success: The cost of a completely answered turn; None if unknown.
        slowest: The slowest turns.
        whatif: The results of other policies; None if nothing was replayed.
        keeps_policy: Whether the recommended policy is as good as the log's own.
        other_files: The names of the logs compared with.
        comparison: The figures of both logs, if there is another one.
    """

    files: tuple[str, ...]
    skipped: int
    named_skips: tuple[str, ...]
    begin_at: float | None
    end_at: float | None
    outcomes: dict[str, int]
    degraded: int
    known_answers: dict[str, int]
    withdrawn: int
    all_turns: Group
    tiers: tuple[Group, ...]
    periods: tuple[Group, ...]
    ttfs: Waits
    voice_to_voice: Waits
    objectives: tuple[ObjectiveResult, ...]
    providers: tuple[ProviderFigures, ...]
    recognisers: tuple[RecogniserFigures, ...]
    voices: tuple[VoiceFigures, ...]
    incidents: tuple[Incident, ...]
    hedging: Hedging
    usd_per_success: float | None
    slowest: tuple[SlowTurn, ...]
    whatif: Answer | None
    keeps_policy: bool
    other_files: tuple[str, ...]
    comparison: tuple[Difference, ...]

    @property
    def is_small(self) -> bool:
        """Whether there are too few turns for a p99."""
        return self.all_turns.turns < FEW

    @property
    def missed(self) -> list[ObjectiveResult]:
        """The objectives that were missed, the worst first."""
        missed = [o for o in self.objectives if o.turns and o.met < o.target * o.turns]
        return sorted(missed, key=lambda o: o.met / o.turns - o.target)

    @property
    def slowest_p95_secs(self) -> float:
        """The longest p95 of a period."""
        return max((g.ttft.p95.secs for g in self.periods if g.ttft.p95), default=1.0)


def report_of(
    log: Log,
    *,
    slo: Slo | None = None,
    zone: tzinfo | None = None,
    against: Log | None = None,
    replay: bool = True,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Report:
    """Compute a report.

    Args:
        log: The turns.
        slo: The callers' SLO; None has no objectives.
        zone: The time zone; None is the local one.
        against: Another log to compare with.
        replay: Whether to replay the turns under other policies.
        progress: Called with the current step, and its completed share.
    """
    turns = log.turns
    sent = [attempt for turn in turns for attempt in turn.sent]
    providers = _providers(turns)
    is_timed = all(turn.at is not None for turn in turns)
    answer = _replayed(turns, slo, progress) if replay else None
    all_turns, cost = Group.of("all callers", turns), _usd(sent)
    successes = sum(turn.succeeded for turn in turns)
    tiers = dict.fromkeys(turn.report.tier for turn in turns)
    usual = {p.provider: p.ttft.p50.secs for p in providers if p.ttft.p50 is not None}
    return Report(
        log.files,
        log.skipped,
        tuple(log.named_skips),
        turns[0].began_at if is_timed else None,
        max(turn.at or 0.0 for turn in turns) if is_timed else None,
        dict(Counter(turn.report.outcome for turn in turns)),
        sum(turn.report.degraded_reason is not None for turn in turns),
        dict(Counter(t.report.known_answer for t in turns if t.report.known_answer)),
        log.withdrawn,
        all_turns,
        tuple(Group.of(tier, [t for t in turns if t.report.tier == tier]) for tier in tiers),
        _periods(turns, zone) if is_timed else (),
        _ttfs(turns),
        Waits.of(
            [each.secs for each in log.voice_turns if each.answered],
            [each.secs for each in log.voice_turns if not each.answered],
        ),
        _objectives(log, slo),
        providers,
        _recognisers(turns),
        _voices(turns),
        incidents_of(turns),
        _hedging(turns, answer),
        cost / successes if cost is not None and successes else None,
        slowest_turns(turns, usual),
        answer,
        answer is not None and _keeps_policy(answer),
        () if against is None else against.files,
        () if against is None else tuple(_compared(turns, against.turns)),
    )


def _ttft(turns: Iterable[LoggedTurn]) -> Waits:
    known = list(turns)
    return Waits.of(
        [t.report.ttft_secs for t in known if t.report.ttft_secs is not None],
        [t.report.duration_secs for t in known if t.given_up],
    )


def _ttfs(turns: Sequence[LoggedTurn]) -> Waits:
    silent = [t for t in turns if t.report.ttfs_secs is None]
    return Waits.of(
        [t.report.ttfs_secs for t in turns if t.report.ttfs_secs is not None],
        [t.report.duration_secs for t in silent if t.given_up or t.report.outcome == "interrupted"],
    )


def _usd(attempts: Iterable[AttemptReport]) -> float | None:
    prices = [a.usd for a in attempts if a.usd is not None]
    return math.fsum(prices) if prices else None


def _periods(turns: Sequence[LoggedTurn], zone: tzinfo | None) -> tuple[Group, ...]:
    """Group the turns by hour; by minutes or days in logs of another length."""
    began = np.array([turn.began_at or 0.0 for turn in turns])
    span = float(np.ptp(began))
    width = next((w for w, most in PERIODS.items() if span < w * most), 30 * 86_400)
    offset = datetime.fromtimestamp(began[0], zone).astimezone(zone).utcoffset() or timedelta()
    place = np.floor((began + offset.total_seconds()) / width).astype(int)
    form = "%Y-%m-%d" if width >= 86_400 else "%m-%d %H:%M" if span > 86_400 else "%H:%M"
    groups: dict[int, list[LoggedTurn]] = {n: [] for n in range(place.min(), place.max() + 1)}
    for turn, n in zip(turns, place, strict=True):
        groups[int(n)].append(turn)
    return tuple(
        Group.of(f"{datetime.fromtimestamp(n * width, zone) - offset:{form}}", group)
        for n, group in groups.items()
    )


def _providers(turns: Sequence[LoggedTurn]) -> tuple[ProviderFigures, ...]:
    sent: dict[str, list[AttemptReport]] = {}
    for turn in turns:
        for attempt in turn.sent:
            sent.setdefault(attempt.provider, []).append(attempt)
    figures = [
        ProviderFigures(
            name,
            len(mine),
            dict(Counter(a.launch_reason for a in mine)),
            dict(Counter(a.outcome for a in mine)),
            attempt_waits(mine),
            _usd(mine),
        )
        for name, mine in sent.items()
    ]
    return tuple(sorted(figures, key=lambda p: (-p.reasons.get("primary", 0), -p.requests)))


def _recognisers(turns: Sequence[LoggedTurn]) -> tuple[RecogniserFigures, ...]:
    by_name: dict[str, list[TranscriptReport]] = {}
    for turn in turns:
        for transcript in turn.report.transcripts:
            by_name.setdefault(transcript.recogniser, []).append(transcript)
    return tuple(
        RecogniserFigures(
            name,
            len(mine),
            Waits.of([each.transcript_secs for each in mine if each.transcript_secs is not None]),
            sum(each.is_rescued for each in mine),
        )
        for name, mine in by_name.items()
    )


def _voices(turns: Sequence[LoggedTurn]) -> tuple[VoiceFigures, ...]:
    by_name: dict[str | None, list[SpeechReport]] = {}
    for turn in turns:
        for speech in turn.report.speech:
            by_name.setdefault(speech.voice, []).append(speech)
    return tuple(
        VoiceFigures(
            name,
            sum(each.sentences for each in mine),
            sum(each.rescued for each in mine),
            sum(each.left_out for each in mine),
            sum(each.extra_characters for each in mine)
            / max(sum(each.characters for each in mine), 1),
            Waits.of([each.first_sound_secs for each in mine if each.first_sound_secs is not None]),
            max(each.silent_secs for each in mine),
        )
        for name, mine in by_name.items()
    )


def _objectives(log: Log, slo: Slo | None) -> tuple[ObjectiveResult, ...]:
    if slo is None:
        return ()
    verdicts: dict[tuple[Objective, str | None], list[bool | None]] = {}
    objectives: tuple[Literal["ttft", "ttfs"], ...] = ("ttft", "ttfs")
    for turn in log.turns:
        for objective in objectives:
            if (limit := slo.within(objective)) is not None:
                verdict = classify_llm(objective, limit, turn.report)
                verdicts.setdefault((objective, turn.report.tier), []).append(verdict)
    if (limit := slo.voice_to_voice_secs) is not None and log.voice_turns:
        verdicts["voice_to_voice", None] = [
            classify_wait(
                limit,
                turn.secs if turn.answered else None,
                turn.secs,
                is_cut=not turn.answered,
                is_degraded=False,
            )
            for turn in log.voice_turns
        ]
    results = list[ObjectiveResult]()
    for (objective, tier), each in verdicts.items():
        limit, known = slo.within(objective) or 0.0, [v for v in each if v is not None]
        result = ObjectiveResult(objective, tier, limit, slo.share, sum(known), len(known))
        results.append(result)
    return tuple(results)


def _replayed(
    turns: Sequence[LoggedTurn], slo: Slo | None, progress: Callable[[str, float], None]
) -> Answer | None:
    """Replay other policies and the log's own; None if that is unknown."""
    names = Counter(a.provider for turn in turns for a in turn.sent[:1])
    known = Counter(turn.policy for turn in turns if turn.policy is not None)
    if not names or not known:
        return None
    first, policy = names.most_common(1)[0][0], known.most_common(1)[0][0]
    nexts = Counter(a.provider for turn in turns for a in turn.sent[1:] if a.provider != first)
    recent = turns[-SAMPLED:]
    question = Question(
        first=first,
        second=nexts.most_common(1)[0][0] if nexts else None,
        attempts=max(policy.max_attempts, 2),
        budgets=BUDGETS,
        deadline_secs=None if slo is None else slo.ttft_secs,
        max_turns=REPLAYED,
        others=((AS_LOGGED, policy),),
    )
    try:
        recorded = recorded_from(turn.report for turn in recent if turn.sent)
        return what_if(recorded, question, progress=progress)
    except ReadingError:  # one of the providers never answered
        return None


def _hedging(turns: Sequence[LoggedTurn], answer: Answer | None) -> Hedging:
    sent = [a for turn in turns for a in turn.sent]
    hedges = [a for a in sent if a.launch_reason == "hedge"]
    with_requests = sum(bool(turn.sent) for turn in turns)
    counted = Hedging(
        len(hedges),
        sum(a.outcome == "won" for a in hedges),
        sum(a.launch_reason in ("failure", "silence", "stall") for a in sent),
        len(sent) / with_requests - 1 if with_requests else 0.0,
        _usd([a for a in sent if a.outcome == "superseded"]),
    )
    if answer is None:
        return counted
    plain_ones = [o for o in answer.policies if o.policy.startswith(("no hedging", "fallback("))]
    mine, bare = answer.outcome(AS_LOGGED), plain_ones[-1]
    found = counted
    for name in ("p99", "p95")[answer.turns < P99_TURNS :]:
        both = [o.at_least.get(name, o.percentiles[name]) for o in (mine, bare)]
        # A lower bound is enough if it exceeds the other figure.
        known = name not in mine.at_least and (name not in bare.at_least or both[1] > both[0])
        found = replace(
            counted, percentile=name, with_secs=both[0], without_secs=both[1], is_known=known
        )
        if known:
            break
    return found


def _keeps_policy(answer: Answer) -> bool:
    mine, chosen = answer.outcome(AS_LOGGED), answer.outcome(answer.choice.policy)
    interval, more = chosen.intervals["p95"], chosen.extra_requests - mine.extra_requests
    return interval.low <= mine.percentiles["p95"] <= interval.high and abs(more) < SAME_REQUESTS


def _compared(turns: Sequence[LoggedTurn], others: Sequence[LoggedTurn]) -> Iterable[Difference]:
    """Compare each figure of both logs, with its bootstrap interval."""
    both = [_resampled(each[-COMPARED_TURNS:], seed) for seed, each in enumerate((turns, others))]
    for (name, unit, mine, enough), (_, _, theirs, other_enough) in zip(*both, strict=True):
        values = [None if np.isnan(each[0]) else float(each[0]) for each in (mine, theirs)]
        interval, verdict = None, "unknown" if None in values else "too few turns"
        if enough and other_enough and None not in values:
            low, high = (float(v) for v in np.nanquantile((mine - theirs)[1:], (0.025, 0.975)))
            interval = Interval(low, high)
            verdict = "differs" if low > 0 or high < 0 else "no difference shown"
        yield Difference(name, unit, values[0], values[1], interval, verdict)


_Figure: TypeAlias = tuple[str, str, Floats, bool]
"""A figure's name, unit, value followed by those of resampled logs, and if it has enough turns."""


def _resampled(turns: Sequence[LoggedTurn], seed: int) -> Iterable[_Figure]:
    bootstrap = Bootstrap(len(turns), np.random.default_rng(seed))
    each = np.ones(len(turns))
    weights = np.stack([each, *(bootstrap.draw() for _ in range(RESAMPLES))])
    ttft = np.array([np.nan if (s := t.report.ttft_secs) is None else s for t in turns])
    order = np.argsort(ttft)[: np.count_nonzero(~np.isnan(ttft))]  # NaN comes last
    reached = np.cumsum(weights[:, order], axis=1)
    for p in (0.5, 0.95, 0.99):
        waits = np.full(RESAMPLES + 1, np.nan)
        if order.size:
            index = (reached < p * reached[:, -1:] - 1e-9).sum(axis=1)
            waits = ttft[order[np.minimum(index, order.size - 1)]]
        enough = order.size * (1 - p) >= MIN_BEYOND - 1e-9
        yield f"first token, p{100 * p:.0f}", "secs", waits, enough
    whole = np.array([float(turn.succeeded) for turn in turns])
    gone = np.array([float(turn.given_up) for turn in turns])
    sent = np.array([float(len(turn.sent)) for turn in turns])
    costs = np.array([sum(math.nan if a.usd is None else a.usd for a in t.sent) for t in turns])
    for name, unit, above, below in (
        ("complete answers", "share", whole, each),
        ("given up before the first token", "share", gone, each),
        ("requests per turn", "requests", sent, each),
        ("cost of an answered turn", "usd", costs, whole),
    ):
        total = weights @ below
        ratio = np.divide(weights @ above, total, out=np.full(len(total), np.nan), where=total > 0)
        yield name, unit, ratio, len(turns) >= MIN_TURNS
