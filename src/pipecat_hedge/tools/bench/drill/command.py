"""``pipecat-hedge drill``: runs drills, and computes, checks and prints their figures.

A second holds about fifty turns, so shares within one second are mostly chance. Shares are taken
over `STRETCH_SECS`, and requests per turn over as many seconds as `ENOUGH` turns take. Requests to
a provider are counted per turn that begins, because waiting callers send none.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.bench.drill.running import Counts, Fleet, Record, Turn, run_drill
from pipecat_hedge.tools.bench.drill.scenarios import DRILLS, Drill, Variant
from pipecat_hedge.tools.bench.percentiles import percentile
from pipecat_hedge.tools.bench.redis_process import MISSING, has_redis
from pipecat_hedge.tools.formatting import (
    UNKNOWN,
    TextTable,
    count,
    follow,
    print_json,
    progress_bar,
    secs,
    share,
    text_of,
)

STRETCH_SECS = 10
ENOUGH = 150
GRACE_SECS = 10
"""The longest time until a broken provider gets no more requests, or overload is detected."""
ALONE_SHARE = 0.02
"""A provider with less than this share of its usual requests counts as avoided."""
RECOVERED_SHARE = 0.9
RELIED_ON = 0.25
"""A provider that usually gets less than this share of all requests has no usual load."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one drill with one variant. None is never, or not applicable.

    Parameters:
        turns: Turns that began during the measurement and have ended.
        unended: Turns that have not: their worker was killed, or they still waited at the end.
        degraded: Turns with the fallback text, alone or after a partial answer.
        lost: Turns with neither a complete answer nor the fallback text within 30 s.
        lost_why: Their number by reason.
        calm_p95_secs: 95th percentile of the time to first token before the failure.
        p50_secs: Of answered turns during the failure; likewise ``p95_secs``, ``p99_secs``.
        premium_p95_secs: 95th percentile of premium callers from `GRACE_SECS` after the failure's
            beginning; infinite if more than one in twenty got no answer.
        requests_per_turn: Requests sent by the workers, per turn.
        replacements_per_turn: Requests that replaced a failed or a silent one, per turn.
        worst_requests_per_turn: The highest value over a stretch, without replacements.
        stretch_secs: The length of that stretch.
        broken_share: The broken provider's requests from `GRACE_SECS` after the failure's beginning
            to its end, as a share of the usual.
        recover_secs: From the failure's end until the broken provider had its share again.
        load_after: The highest load of returned providers after the failure, over the usual: of
            all together, and of each with a usual load.
        busy_share: The mean share of the machine's processors in use.
    """

    drill: str
    variant: str
    turns: int
    unended: int
    degraded: int
    lost: int
    lost_why: dict[str, int]
    calm_p95_secs: float | None
    p50_secs: float | None
    p95_secs: float | None
    p99_secs: float | None
    premium_p95_secs: float | None
    requests_per_turn: float | None
    replacements_per_turn: float
    worst_requests_per_turn: float | None
    stretch_secs: int
    broken_share: float | None
    recover_secs: float | None
    load_after: float | None
    busy_share: float | None


def figures(drill: Drill, variant: Variant, record: Record) -> Figures:
    """Compute the figures of one run."""
    turns, began = record.turns, record.began
    length, begun = len(began), int(began.sum())
    failure = drill.failure_secs or 0.0
    end = math.inf if drill.return_secs is None else drill.return_secs
    during = [turn for turn in turns if failure <= turn.at < end]
    before = [turn for turn in turns if turn.at < failure] or turns
    calm_p95_secs = percentile(_waits(before), 0.95)
    answered = [turn.ttft_secs or 0.0 for turn in during if turn.outcome == "answered"]
    premium = [turn for turn in during if turn.premium and turn.at >= failure + GRACE_SECS]
    sent = _total(record.sent.values(), length)
    replaced = _by_second(
        (turn.at + (r.sent_secs or 0.0) for turn in turns for r in turn.replacements), length
    )
    worst, stretch_secs = worst_requests_per_turn(sent - replaced, _first_requests(record))
    broken = _total((record.sent[name] for name in drill.broken), length)
    usual = _per_turn(broken, began, 0, failure)
    broken_share = recover_secs = load_after = None
    if usual:

        def of_usual(begin: float, until: float) -> float | None:
            got = _per_turn(broken, began, begin, until)
            return None if got is None else got / usual

        broken_share = of_usual(failure + GRACE_SECS, end)
        seconds = [] if math.isinf(end) else range(math.ceil(end), length - STRETCH_SECS + 1)
        recovered = (s for s in seconds if (of_usual(s, s + STRETCH_SECS) or 0) >= RECOVERED_SHARE)
        recover_secs = next((s - end for s in recovered), None)
        load_after = _load_after(drill, record, sent)
    return Figures(
        drill=drill.name,
        variant=variant.name,
        turns=len(turns),
        unended=begun - len(turns),
        degraded=sum(turn.outcome == "degraded" for turn in turns),
        lost=sum(turn.outcome == "lost" for turn in turns),
        lost_why=dict(Counter(turn.why or "unknown" for turn in turns if turn.outcome == "lost")),
        calm_p95_secs=calm_p95_secs,
        p50_secs=percentile(answered, 0.5),
        p95_secs=percentile(answered, 0.95),
        p99_secs=percentile(answered, 0.99),
        premium_p95_secs=percentile(
            [t.ttft_secs or 0.0 if t.outcome == "answered" else math.inf for t in premium], 0.95
        ),
        requests_per_turn=float(sent.sum()) / begun if begun else None,
        replacements_per_turn=float(replaced.sum()) / begun if begun else 0.0,
        worst_requests_per_turn=worst,
        stretch_secs=stretch_secs,
        broken_share=broken_share,
        recover_secs=recover_secs,
        load_after=load_after,
        busy_share=record.busy_share,
    )


def worst_requests_per_turn(
    sent: Counts, began: Counts, enough: int = ENOUGH
) -> tuple[float | None, int]:
    """Return the highest requests per turn over a stretch, and the stretch's length.

    Args:
        sent: Requests, by second.
        began: Turns, by second.
        enough: The least turns of a stretch. A stretch begins at any second and is as short as that
            allows; with fewer turns it is the whole run.
    """
    all_sent = np.concatenate(([0], np.cumsum(sent)))
    all_began = np.concatenate(([0], np.cumsum(began)))
    ends = np.searchsorted(all_began, all_began[:-1] + enough)
    stretches = [(b, e) for b, e in enumerate(ends) if e < len(all_began)] or [(0, len(began))]
    found = [
        (float((all_sent[e] - all_sent[b]) / (all_began[e] - all_began[b])), int(e - b))
        for b, e in stretches
        if all_began[e] > all_began[b]
    ]
    return max(found, default=(None, len(began)), key=lambda each: each[0])


def _load_after(drill: Drill, record: Record, sent: Counts) -> float | None:
    if drill.return_secs is None or drill.failure_secs is None:
        return None
    before = slice(0, math.floor(drill.failure_secs))
    usual_all = sent[before].sum()
    groups = [drill.broken] + [
        (name,) for name in drill.broken if record.sent[name][before].sum() >= RELIED_ON * usual_all
    ]
    rate = float(record.began.mean())
    stretch = math.ceil(ENOUGH / rate) if rate else len(sent)
    loads: list[float] = []
    for names in groups:
        usual = _total((record.sent[name] for name in names), len(sent))[before].mean()
        after = _total((record.arrived[name] for name in names), len(sent))
        after = after[math.floor(drill.return_secs) :]
        if usual and len(after):
            window = np.ones(min(stretch, len(after)))
            loads.append(float(np.convolve(after, window, "valid").max() / len(window) / usual))
    return max(loads, default=None)


def _first_requests(record: Record) -> Counts:
    """Count turns by the second of their first request, or of their beginning without one.

    Queued turns send their requests together later, at one request each.
    """
    length = len(record.began)
    with_requests = [turn for turn in record.turns if turn.requests]
    first = (turn.at + (turn.requests[0].sent_secs or 0.0) for turn in with_requests)
    begun = (turn.at for turn in with_requests)
    return record.began - _by_second(begun, length) + _by_second(first, length)


def _waits(turns: Iterable[Turn]) -> list[float]:
    """Return the waits for answers, infinite for lost turns; degraded turns are excluded."""
    return [
        math.inf if turn.ttft_secs is None else turn.ttft_secs
        for turn in turns
        if turn.outcome != "degraded"
    ]


def _per_turn(counts: Counts, began: Counts, begin: float, end: float) -> float | None:
    """Return the requests per turn in the whole seconds from ``begin`` to ``end``."""
    part = slice(math.ceil(begin), math.floor(min(end, len(counts))))
    turns = int(began[part].sum())
    return float(counts[part].sum()) / turns if turns else None


def _by_second(times: Iterable[float], length: int) -> Counts:
    seconds = np.array([int(at) for at in times if 0 <= at < length], np.int64)
    return np.bincount(seconds, minlength=length)


def _total(series: Iterable[Counts], length: int) -> Counts:
    return np.sum([np.zeros(length, np.int64), *series], axis=0)


# ---- checks

OVER_BUDGET = 1.25
"""For the average over a drill, which may begin with credit and end in debt."""
CHANCE = 3.0
"""Standard deviations that count as chance."""
RECOVER_SECS = 90.0
LOAD_AFTER = 1.5
PREMIUM_FACTOR = 3.5
"""A limit cannot withdraw requests that a provider has already queued; see docs/drills.md."""
BUSY_SHARE = 0.85


def failed_checks(drill: Drill, variant: Variant, found: Figures) -> list[str]:
    """Return the failed checks, a line each, with the figure and its bound.

    Only hedged variants are checked.
    """
    if variant.kind != "hedged":
        return []
    if found.requests_per_turn is None or found.worst_requests_per_turn is None:
        return [f"{drill.name}, {variant.name}: no turn began"]
    why = ", ".join(f"{number} {reason}" for reason, number in found.lost_why.items())
    # Average: the budget plus chance. Stretch: twice the budget plus the allowed bursts.
    on_average = found.requests_per_turn - found.replacements_per_turn
    extra = OVER_BUDGET * variant.budget
    chance = CHANCE * math.sqrt(min(extra * (1 - extra), 0.25) / max(found.turns, 1))
    budget = min(variant.budget, 0.5)
    burst = CHANCE * math.sqrt(
        180 * budget * (1 - budget)
    )  # as in the service: chance in 180 turns
    most = 1 + 2 * variant.budget + 2 * burst / ENOUGH
    broken, load, busy = found.broken_share, found.load_after, found.busy_share
    checks = [
        (not found.lost, f"{found.lost} turns lost ({why}), of {found.turns}"),
        (
            not found.unended or drill.name == "process",  # the killed process's turns do not end
            f"{found.unended} turns had not ended 30 s after the drill",
        ),
        (
            on_average <= 1 + extra + chance,
            f"{on_average:.2f} requests per turn on average; at most {1 + extra:g}, "
            f"and {chance:.2f} by chance",
        ),
        (
            found.worst_requests_per_turn <= most,
            f"{found.worst_requests_per_turn:.2f} requests per turn in the worst "
            f"{found.stretch_secs} s; at most {most:.2f}",
        ),
        (
            broken is None or broken < ALONE_SHARE or len(drill.broken) == len(drill.models),
            f"the broken provider got {broken or 0:.1%} of its usual requests from {GRACE_SECS} s "
            f"on; less than {ALONE_SHARE:.0%} is allowed",
        ),
        (
            load is None or load <= LOAD_AFTER,
            f"{load or 0:.2f} times the usual load after the return; at most {LOAD_AFTER:g}",
        ),
        (
            busy is None or busy <= BUSY_SHARE,
            f"this machine was {busy or 0:.0%} busy, which distorts the figures; raise --think",
        ),
    ]
    if drill.broken and drill.ends:
        recover = math.inf if found.recover_secs is None else found.recover_secs
        checks.append(
            (
                recover <= RECOVER_SECS,
                f"the broken provider had its share back after {recover:.0f} s; "
                f"at most {RECOVER_SECS:.0f}",
            )
        )
    if variant.admission == "shed":
        premium, calm = found.premium_p95_secs or math.inf, found.calm_p95_secs or math.nan
        checks += [
            (
                premium <= PREMIUM_FACTOR * calm,
                f"premium p95 is {premium / calm:.2f} times the usual; at most {PREMIUM_FACTOR:g}",
            ),
            (found.degraded > 0, "no turn was rejected: no overload occurred"),
        ]
    return [f"{drill.name}, {variant.name}: {line}" for holds, line in checks if not holds]


def failed_goal(found: Sequence[Figures]) -> list[str]:
    """Check that some budget reaches the figures of the "jagged edges" report."""
    for each in found:
        p95_secs, p99_secs = each.p95_secs or math.inf, each.p99_secs or math.inf
        failed = (each.degraded + each.lost) / max(each.turns, 1)
        if p95_secs <= 0.8 and p99_secs <= 1.5 and failed <= 0.001:
            return []
    return ["jagged: no budget reaches p95 800 ms, p99 1500 ms and 0.1 % failures"]


# ---- the command

POSITIVE = ("processes", "sessions", "think", "pace")
COLUMNS = 4
"""Variants per table of 80 columns; more tables follow."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "drills:\n" + "\n".join(
        textwrap.fill(f"  {d.name:<10}{d.summary}", 79, subsequent_indent=12 * " ")
        for d in DRILLS.values()
    )
    parser.add_argument("names", nargs="*", metavar="drill", help="the drills (default: all)")
    parser.add_argument("--variants", help="comma-separated, such as bare,hedged (default: all)")
    number = partial(parser.add_argument, metavar="N")
    number("--processes", type=int, default=8, help="worker processes (default 8)")
    number("--sessions", type=int, default=40, help="callers per process (default 40)")
    number("--think", type=float, default=6.0, help="mean seconds between turns (default 6)")
    number(
        "--pace", type=float, default=1.0, help="factor on all times, for quick runs (default 1)"
    )
    number("--seed", type=int, default=1, help="of callers and providers (default 1)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a check fails")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the drills one after another, and print their figures and failed checks.

    Returns:
        The exit status: 0, or 1 if ``--check`` found a failed check.

    Raises:
        HedgeError: If the drills cannot be run.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so all processes end
    try:
        failed = _run_all(args, _chosen(args))
    finally:
        signal.signal(signal.SIGTERM, before)
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr if args.json else sys.stdout)
    if args.check and not failed and not args.json:
        print("all checks hold")
    return int(args.check and bool(failed))


def _chosen(args: argparse.Namespace) -> list[tuple[Drill, list[Variant]]]:
    """Return the drills to run, each with its variants."""
    for name in POSITIVE:
        if not getattr(args, name) > 0:
            raise ConfigurationError(f"--{name} must be more than 0, got {getattr(args, name)}")
    wanted = args.variants.split(",") if args.variants else None
    known = dict.fromkeys(v.name for drill in DRILLS.values() for v in drill.variants)
    for kind, given, there in (("drill", args.names, DRILLS), ("variant", wanted or [], known)):
        if unknown := [name for name in given if name not in there]:
            known_names = ", ".join(there)
            raise ConfigurationError(f"unknown {kind} {unknown[0]!r}; known {kind}s: {known_names}")
    drills = [DRILLS[name] for name in args.names] or list(DRILLS.values())
    if not has_redis():
        if "redis" in args.names:
            raise ConfigurationError(MISSING)
        drills = [drill for drill in drills if drill.name != "redis"]
        print(f"note: {MISSING}; the workers share no statistics", file=sys.stderr)
    chosen = [
        (drill.paced(args.pace), [v for v in drill.variants if not wanted or v.name in wanted])
        for drill in drills
    ]
    return [(drill, variants) for drill, variants in chosen if variants]


def _run_all(args: argparse.Namespace, drills: Sequence[tuple[Drill, list[Variant]]]) -> list[str]:
    """Run the drills and print the figures; returns the failed checks."""
    failed: list[str] = []
    everything: list[Figures] = []
    for drill, variants in drills:
        think_secs = args.think * drill.think_factor
        start_secs = max(10.0 * args.pace, think_secs)  # until every caller has begun
        fleet = Fleet(args.processes, args.sessions, think_secs, args.seed, start_secs)
        found: list[Figures] = []
        for variant in variants:
            with progress_bar() as bar:
                advance = follow(bar, f"{drill.name}, {variant.name}", drill.secs(variant))
                record = run_drill(drill, variant, fleet, advance)
            found.append(figures(drill, variant, record))
            failed += failed_checks(drill, variant, found[-1])
        if drill.name == "jagged":
            failed += failed_goal(found)
        if not args.json:
            for begin in range(0, len(found), COLUMNS):
                print(table(drill, found[begin : begin + COLUMNS]), end="\n\n")
        everything += found
    if args.json:
        options = {name: getattr(args, name) for name in (*POSITIVE, "seed")}
        print_json({**options, "figures": everything, "failed": failed})
    return failed


def _shown(form: str) -> Callable[[float | None], str]:
    return lambda value: UNKNOWN if value is None else form.format(value)


_SECS, _NUMBER = _shown("{:.0f} s"), _shown("{:.2f}")
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("turns", lambda f: count(f.turns)),
    ("degraded (fallback)", lambda f: count(f.degraded)),
    ("lost (no answer)", lambda f: count(f.lost)),
    ("TTFT p50", lambda f: secs(f.p50_secs)),
    ("TTFT p95", lambda f: secs(f.p95_secs)),
    ("TTFT p99", lambda f: secs(f.p99_secs)),
    ("premium TTFT p95", lambda f: secs(f.premium_p95_secs)),
    ("requests per turn", lambda f: _NUMBER(f.requests_per_turn)),
    ("worst stretch", lambda f: f"{_NUMBER(f.worst_requests_per_turn)} ({f.stretch_secs} s)"),
    ("broken provider gets", lambda f: share(f.broken_share)),
    ("share back after", lambda f: _SECS(f.recover_secs)),
    ("load after return", lambda f: _NUMBER(f.load_after)),
    ("processors in use", lambda f: share(f.busy_share)),
)


def table(drill: Drill, found: Sequence[Figures]) -> str:
    """Format a table of a drill's variants; four fit into 80 columns."""
    rows = [[name, *map(shown, found)] for name, shown in _ROWS]
    rows = [row for row in rows if set(row[1:]) != {UNKNOWN}]
    heads = ["", *(f.variant for f in found)]
    return text_of([f"{drill.name}: {drill.summary}", TextTable(heads, rows)])
