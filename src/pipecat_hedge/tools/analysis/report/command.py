"""``pipecat-hedge report``: what turn logs say, as a page, in the terminal, and as JSON."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pipecat_hedge.limits.priority import TIERS
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.errors import ConfigurationError, HedgeError
from pipecat_hedge.tools.analysis.report.figures import figures_of
from pipecat_hedge.tools.analysis.report.page import page_of
from pipecat_hedge.tools.analysis.report.reading import read_logs
from pipecat_hedge.tools.analysis.report.showing import as_dict, show

__all__ = ["configure", "run"]

_LIMITS = {
    "ttft": "to the first token",
    "ttfs": "to the first speakable sentence",
    "voice_to_voice": "from the caller's last sound to the answer's first",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments.

    Args:
        parser: The command's own parser.
    """
    usual = Slo()
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="turn logs (HedgedLLMService(turn_log=...)), and maybe logs of what callers heard "
        "(TurnLatencyObserver(log=...))",
    )
    parser.add_argument("--out", type=Path, metavar="PAGE", help="write a page (HTML) there")
    parser.add_argument(
        "--against",
        action="append",
        metavar="FILE",
        default=None,
        help="another log to compare with; may be repeated",
    )
    for name, what in _LIMITS.items():
        limit = getattr(usual, f"{name}_secs")
        parser.add_argument(
            f"--slo-{name.replace('_', '-')}",
            dest=f"slo_{name}",
            metavar="SECS",
            default=None,
            help=f"what callers are promised, {what} (default {limit:g}; none is no promise)",
        )
    parser.add_argument(
        "--slo-share",
        type=float,
        metavar="SHARE",
        default=usual.share,
        help=f"for what share of turns (default {usual.share:g})",
    )
    parser.add_argument(
        "--slo-tier",
        action="append",
        metavar="TIER:TTFT[:TTFS]",
        default=None,
        help="another promise to a tier, as premium:0.6:1.0; may be repeated",
    )
    parser.add_argument(
        "--tz", metavar="ZONE", help="the time zone of hours, as Europe/Paris (default: local)"
    )
    parser.add_argument(
        "--no-replay",
        action="store_true",
        help="do not replay the turns: quicker, without what hedging bought and what would help",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Make the report.

    Args:
        args: The parsed arguments.

    Returns:
        0, or 2 if it cannot be made.
    """
    errors = Console(stderr=True, highlight=False)
    gc.disable()  # a log is a million small things, and all of them stay
    try:
        zone = _zone(args.tz)
        slos = _slos(args)
        if args.out is not None and not args.out.parent.is_dir():
            raise ConfigurationError(f"out: there is no folder {args.out.parent}: make it first")
        with Progress(
            TextColumn("{task.description:12}"),
            BarColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        ) as bar:
            task = bar.add_task("reading", total=1.0)
            log = read_logs(args.files)
            against = read_logs(args.against) if args.against else None
            figures = figures_of(
                log,
                slos=slos,
                zone=zone,
                against=against,
                replay=not args.no_replay,
                progress=lambda what, share: bar.update(task, description=what, completed=share),
            )
        if args.out is not None:
            try:
                args.out.write_text(page_of(figures, zone), encoding="utf-8")
            except OSError as e:
                raise ConfigurationError(f"out: {args.out} cannot be written: {e.strerror}") from e
    except HedgeError as e:
        errors.print(f"pipecat-hedge report: {e}", markup=False)
        return 2
    finally:
        gc.enable()
    if args.json:
        json.dump(as_dict(figures), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
        show(figures, console, zone)
        if args.out is not None:
            console.print(f"the page: {args.out}", markup=False)
    return 0


def _zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(f"tz: {name!r} is no time zone: write one as UTC") from None


def _slos(args: argparse.Namespace) -> dict[str | None, Slo]:
    usual = Slo()
    limits = {f"{name}_secs": getattr(usual, f"{name}_secs") for name in _LIMITS}
    for name in _LIMITS:
        if (given := getattr(args, f"slo_{name}")) is not None:
            limits[f"{name}_secs"] = _limit(f"slo-{name.replace('_', '-')}", given)
    slos: dict[str | None, Slo] = {None: Slo(**limits, share=args.slo_share)}
    for told in args.slo_tier or ():
        tier, *given = told.split(":")
        if tier not in TIERS or not 1 <= len(given) <= 2:
            raise ConfigurationError(
                f"slo-tier: {told!r} is no promise: write TIER:TTFT or TIER:TTFT:TTFS, as "
                f"premium:0.6:1.0; tiers are {', '.join(TIERS)}"
            )
        mine = dict(zip(("ttft_secs", "ttfs_secs"), given, strict=False))
        changed = {name: _limit("slo-tier", value) for name, value in mine.items()}
        slos[tier] = Slo(**{**limits, **changed}, share=args.slo_share)
    return slos


def _limit(field: str, given: str) -> float | None:
    if given.lower() == "none":
        return None
    try:
        return float(given)
    except ValueError:
        raise ConfigurationError(
            f"{field}: {given!r} is no number of seconds: write one, or none for no promise"
        ) from None
