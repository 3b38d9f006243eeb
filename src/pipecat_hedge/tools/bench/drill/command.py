"""``pipecat-hedge drill``: lets providers fail, and shows what callers noticed of it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import Progress

from pipecat_hedge.race.errors import ConfigurationError, HedgeError
from pipecat_hedge.tools.bench.drill.checks import failed_checks, failed_goal
from pipecat_hedge.tools.bench.drill.figures import Figures, figures
from pipecat_hedge.tools.bench.drill.picture import check_drawing, draw
from pipecat_hedge.tools.bench.drill.plans import DRILLS, Drill
from pipecat_hedge.tools.bench.drill.records import Record
from pipecat_hedge.tools.bench.drill.redis_process import MISSING, has_redis
from pipecat_hedge.tools.bench.drill.running import SETTLE_SECS, Fleet, run_drill
from pipecat_hedge.tools.bench.drill.tables import LEGEND, as_markdown, as_table
from pipecat_hedge.tools.bench.drill.variants import Variant

__all__ = ["configure", "run"]

WIDTH = 120


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "drills:\n" + "\n".join(f"  {d.name:<10}{d.summary}" for d in DRILLS.values())
    parser.add_argument(
        "names", nargs="*", metavar="drill", help="which ones, see below (default all)"
    )
    parser.add_argument("--variants", help="which ones, with commas: bare,retry,hedged")
    parser.add_argument("--processes", type=int, default=8, help="workers (default 8)")
    parser.add_argument("--sessions", type=int, default=40, help="callers of each (default 40)")
    parser.add_argument(
        "--think",
        type=float,
        default=6.0,
        help="seconds between a caller's turns on average (default 6)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of callers and providers (default 1)")
    parser.add_argument(
        "--pace",
        type=float,
        default=1.0,
        help="all times of the drills are multiplied by this, to try something out (default 1)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if something fails")
    parser.add_argument("--no-pictures", action="store_true", help="draw nothing")
    parser.add_argument(
        "--out", type=Path, default=Path("out/drill"), help="a folder (default out/drill)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the drills, one after the other, and show and keep what came of them.

    Args:
        args: The command line.

    Returns:
        The exit status: 0; 1 if ``--check`` found something; 2 if it cannot be run.
    """
    before = signal.signal(signal.SIGTERM, _end)  # which ends the processes, as Ctrl-C does
    try:
        drills = _chosen(args)
        if not args.no_pictures:
            check_drawing()
        args.out.mkdir(parents=True, exist_ok=True)
        failed = _run_all(args, drills)
    except (HedgeError, OSError, ValueError, RuntimeError) as error:
        print(f"pipecat-hedge drill: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    for line in failed:
        print(f"FAILED {line}")
    if args.check and not failed:
        print("all checks hold")
    return 1 if args.check and failed else 0


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _chosen(args: argparse.Namespace) -> list[tuple[Drill, list[Variant]]]:
    """The drills to run, each with its variants."""
    if unknown := [name for name in args.names if name not in DRILLS]:
        raise ValueError(f"unknown drill {unknown[0]!r}; known drills: {', '.join(DRILLS)}")
    for name in ("processes", "sessions", "think", "pace"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name} must be more than 0, got {getattr(args, name)}")
    wanted = args.variants.split(",") if args.variants else None
    known = dict.fromkeys(v.name for drill in DRILLS.values() for v in drill.variants)
    if wanted and (unknown := [name for name in wanted if name not in known]):
        raise ValueError(f"unknown variant {unknown[0]!r}; known variants: {', '.join(known)}")
    drills = [DRILLS[name] for name in args.names] or list(DRILLS.values())
    if not has_redis():
        if "redis" in args.names:
            raise ConfigurationError(MISSING)
        drills = [drill for drill in drills if drill.name != "redis"]
        print(f"note: {MISSING}; the workers learn each for itself")
    return [
        (drill.paced(args.pace), variants)
        for drill in drills
        if (variants := [v for v in drill.variants if wanted is None or v.name in wanted])
    ]


def _run_all(args: argparse.Namespace, drills: Sequence[tuple[Drill, list[Variant]]]) -> list[str]:
    """Run them; what does not hold."""
    settle_secs = max(SETTLE_SECS * args.pace, args.think)  # everybody has asked once
    fleet = Fleet(args.processes, args.sessions, args.think, args.seed, settle_secs)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    errors = Console(stderr=True)
    failed: list[str] = []
    everything: list[Figures] = []
    for drill, variants in drills:
        records: list[Record] = []
        told: list[Figures] = []
        for variant in variants:
            with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
                task = bar.add_task(f"{drill.name}, {variant.name}", total=drill.secs(variant))
                record = run_drill(drill, variant, fleet, partial(bar.advance, task))
            records.append(record)
            told.append(figures(drill, record))
            failed += failed_checks(drill, variant, told[-1])
        if drill.name == "jagged":
            failed += failed_goal(told)
        console.print(as_table(drill, told))
        if not args.no_pictures:
            draw(drill, records, args.out / f"{drill.name}.png")
        _keep(args.out / f"{drill.name}.json", drill, fleet, zip(records, told, strict=True))
        everything += told
    print(LEGEND)
    (args.out / "drills.md").write_text(as_markdown(everything), encoding="utf-8")
    print(f"kept in {args.out}")
    return failed


def _keep(path: Path, drill: Drill, fleet: Fleet, found: Iterable[tuple[Record, Figures]]) -> None:
    kept = {
        "drill": drill.name,
        "summary": drill.summary,
        "event_secs": drill.event_secs,
        "return_secs": drill.return_secs,
        "fleet": asdict(fleet),
        "variants": {record.variant: _as_json(record, told) for record, told in found},
    }
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _as_json(record: Record, told: Figures) -> dict[str, Any]:
    by_kind = {kind: [0] * len(record.began) for kind in ("answered", "degraded", "lost")}
    for turn in record.turns:
        by_kind[turn.kind][int(turn.at)] += 1
    return {
        "figures": {name: _finite(value) for name, value in asdict(told).items()},
        "by_second": {
            "began": record.began.tolist(),
            **by_kind,
            "asked": {name: counts.tolist() for name, counts in record.asked.items()},
            "arrived": {name: counts.tolist() for name, counts in record.arrived.items()},
            "cpu_share": [round(share, 3) for share in record.load.cpu_share],
        },
    }


def _finite(value: Any) -> Any:
    """JSON knows no infinity."""
    return None if value == float("inf") else value
