"""``pipecat-hedge whatif``: what another policy would have done, and which one to take."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.tools.analysis.whatif.plotting import check_picture, plot
from pipecat_hedge.tools.analysis.whatif.question import (
    BUDGETS,
    LEAST_TURNS,
    MOST_TURNS,
    Costs,
    Question,
)
from pipecat_hedge.tools.analysis.whatif.reading import read_latencies
from pipecat_hedge.tools.analysis.whatif.replaying import what_if
from pipecat_hedge.tools.analysis.whatif.showing import as_dict, show

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments.

    Args:
        parser: The command's own parser.
    """
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="turn logs (HedgedLLMService(turn_log=...)), or latencies as JSONL or CSV: one a "
        "line, or a column a provider",
    )
    parser.add_argument("--first", help="the provider asked first (default: the one that was)")
    parser.add_argument(
        "--second", help="the provider hedged to (default: the other one, or the first again)"
    )
    parser.add_argument("--attempts", type=int, default=2, help="most requests a turn (default 2)")
    parser.add_argument(
        "--after",
        type=float,
        action="append",
        metavar="SECS",
        default=None,
        help="a fixed delay to compare with; may be repeated (default: the p95)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        action="append",
        metavar="SHARE",
        default=None,
        help="a budget of the adaptive policy, such as 0.05; may be repeated "
        "(default: 0.01, 0.02, 0.05, 0.1 and 0.25)",
    )
    parser.add_argument(
        "--deadline", type=float, metavar="SECS", help="when an answer should be there"
    )
    parser.add_argument(
        "--slo",
        type=float,
        metavar="SECS",
        help="promise first tokens within so long: adaptive policies with and without the promise "
        "are compared by how many turns keep it",
    )
    parser.add_argument(
        "--slo-share",
        type=float,
        metavar="SHARE",
        default=0.95,
        help="the share of turns for which it is promised (default 0.95)",
    )
    parser.add_argument(
        "--worth",
        type=float,
        metavar="SECS",
        default=0.15,
        help="what an extra request must save to be worth it (default 0.15)",
    )
    parser.add_argument(
        "--unit",
        choices=("auto", "s", "ms", "us", "ns"),
        default="auto",
        help="what plain figures are (default: told by names and size)",
    )
    parser.add_argument(
        "--column",
        action="append",
        metavar="NAME",
        default=None,
        help="a column that holds latencies; may be repeated (default: told by names)",
    )
    parser.add_argument(
        "--prompt-tokens", type=float, metavar="N", help="size of a prompt, to count tokens"
    )
    parser.add_argument(
        "--usd-per-mtok",
        type=float,
        nargs=2,
        metavar=("IN", "OUT"),
        help="price in US dollars per million tokens of prompt and answer",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=MOST_TURNS,
        metavar="N",
        help=f"sample larger files (default {MOST_TURNS})",
    )
    parser.add_argument(
        "--least-turns",
        type=int,
        default=LEAST_TURNS,
        metavar="N",
        help=f"go through smaller files several times (default {LEAST_TURNS})",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="draw the distributions (.png, .svg, .pdf)"
    )


def run(args: argparse.Namespace) -> int:
    """Answer the question.

    Args:
        args: The parsed arguments.

    Returns:
        0, or 2 if it cannot be answered.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        question = Question(
            first=args.first,
            second=args.second,
            attempts=args.attempts,
            after_secs=tuple(dict.fromkeys(args.after or ())),
            budgets=tuple(dict.fromkeys(args.budget or BUDGETS)),
            deadline_secs=args.deadline,
            slo=_promise(args.slo, args.slo_share),
            min_saving_secs=args.worth,
            costs=Costs(
                args.prompt_tokens, None if args.usd_per_mtok is None else tuple(args.usd_per_mtok)
            ),
            least_turns=args.least_turns,
            most_turns=args.turns,
            seed=args.seed,
        )
        if args.plot is not None:
            check_picture(args.plot)
        recorded = read_latencies(args.files, unit=args.unit, columns=args.column or ())
        with Progress(
            TextColumn("{task.description:20}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        ) as bar:
            task = bar.add_task("", total=1.0)
            answer = what_if(
                recorded,
                question,
                progress=lambda policy, share: bar.update(
                    task, description=policy, completed=share
                ),
            )
        if args.plot is not None:
            plot(answer, args.plot)
    except HedgeError as e:
        errors.print(f"pipecat-hedge whatif: {e}", markup=False)
        return 2
    if args.json:
        json.dump(as_dict(answer), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        width = None if sys.stdout.isatty() else 130
        show(answer, Console(highlight=False, width=width))
    return 0


def _promise(within_secs: float | None, share: float) -> Slo | None:
    if within_secs is None:
        return None
    return Slo(within_secs, ttfs_secs=None, voice_to_voice_secs=None, share=share)
