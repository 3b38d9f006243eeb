"""``pipecat-hedge drill``: makes providers fail, and shows the effect on callers."""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.bench.drill.figures import Figures, failed_checks, failed_goal, figures
from pipecat_hedge.tools.bench.drill.redis_process import MISSING, has_redis
from pipecat_hedge.tools.bench.drill.running import Fleet, run_drill
from pipecat_hedge.tools.bench.drill.scenarios import DRILLS, Drill, Variant
from pipecat_hedge.tools.formatting import (
    UNKNOWN,
    TextTable,
    count,
    print_json,
    progress_bar,
    secs,
    share,
    text_of,
)

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
        settle_secs = max(10.0 * args.pace, think_secs)  # until every caller has begun
        fleet = Fleet(args.processes, args.sessions, think_secs, args.seed, settle_secs)
        found: list[Figures] = []
        for variant in variants:
            with progress_bar() as bar:
                task = bar.add_task(f"{drill.name}, {variant.name}", total=drill.secs(variant))
                record = run_drill(drill, variant, fleet, partial(bar.advance, task))
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
