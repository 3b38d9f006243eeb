"""The command that measures a server: under load, or in a race."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.bench.llm_load import LEVELS, Load, check_server, measure
from pipecat_hedge.vllm.server import check_base_url

if TYPE_CHECKING:
    from pipecat_hedge.tools.bench.llm_race import Raced

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("base_url", metavar="BASE_URL", help="as http://localhost:8000/v1")
    parser.add_argument("--model", help="what to ask for (default: the first that is served)")
    parser.add_argument("--api-key", help="the server's key")
    parser.add_argument(
        "--levels",
        default=",".join(map(str, LEVELS)),
        help="requests at once (default 1,2,4,8,16,32,64)",
    )
    parser.add_argument(
        "--requests", type=int, default=0, help="at each level (default: 4 x level, at least 16)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=2000, help="(default 2000)")
    parser.add_argument("--answer-tokens", type=int, default=64, help="(default 64)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts' words")
    parser.add_argument(
        "--race",
        metavar="PROFILE",
        choices=sorted(PROFILES),
        help="measure a race instead, between the server and a simulated hosted provider",
    )
    parser.add_argument("--turns", type=int, default=500, help="of the race (default 500)")
    parser.add_argument("--out", type=Path, help="a file for the figures, in JSON")


def run(args: argparse.Namespace) -> int:
    """Measure, print and keep.

    Args:
        args: The command line.

    Returns:
        The exit status: 1 if a request has failed.
    """
    try:
        levels = _levels(args)
        if args.race:
            rows = _run_race(args)
            _show_race(args.race, rows)
            kept = [asdict(row) for row in rows]
            status = 0
        else:
            loads = _run_loads(args, levels)
            _show(loads)
            kept = [asdict(load) for load in loads]
            status = int(any(load.failed for load in loads))
    except ConfigurationError as error:
        print(f"pipecat-hedge bench-llm: {error}", file=sys.stderr)
        return 2
    if args.out is not None:
        args.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        print(f"kept in {args.out}")
    return status


def _levels(args: argparse.Namespace) -> list[int]:
    check_base_url(args.base_url)
    try:
        levels = [int(level) for level in args.levels.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise ConfigurationError(f"--levels {args.levels}: write numbers of requests, as 1,8,64")
    for name, least in (("requests", 0), ("prompt_tokens", 1), ("answer_tokens", 1), ("turns", 20)):
        if getattr(args, name) < least:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} must be at least {least}, got {getattr(args, name)}"
            )
    if args.out is not None and not args.out.parent.is_dir():
        raise ConfigurationError(f"--out: there is no folder {args.out.parent}: make it first")
    return levels


def _run_loads(args: argparse.Namespace, levels: Sequence[int]) -> list[Load]:
    total = 2 * sum(args.requests or max(16, 4 * level) for level in levels)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=total)
        return asyncio.run(
            measure(
                args.base_url,
                levels=levels,
                requests=args.requests,
                prompt_tokens=args.prompt_tokens,
                answer_tokens=args.answer_tokens,
                model=args.model,
                api_key=args.api_key,
                seed=args.seed,
                took=lambda: bar.advance(task),
            )
        )


def _run_race(args: argparse.Namespace) -> list[Raced]:
    from pipecat_hedge.tools.bench.llm_race import race  # loads Pipecat

    async def check() -> None:
        async with AsyncOpenAI(
            base_url=args.base_url, api_key=args.api_key or "EMPTY", max_retries=0
        ) as client:
            await check_server(client, args.model)

    asyncio.run(check())
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("turns", total=3 * args.turns)
        return race(
            args.base_url,
            args.race,
            turns=args.turns,
            model=args.model,
            api_key=args.api_key,
            seed=args.seed,
            took=lambda: bar.advance(task),
        )


def _show(loads: Sequence[Load]) -> None:
    table = Table(title="as the client sees it | as the server says", title_justify="left")
    for name in ("at once", "prefix", "answered"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (
        "TTFT p50",
        "p95",
        "max",
        "server p50",
        "p95",
        "queued mean",
        "a token p50",
        "p95",
        "server p50",
        "p95",
        "gaps p95",
        "tokens/s",
        "in cache",
    ):
        table.add_column(name, justify="right")
    for number, load in enumerate(loads):
        times = (
            load.ttft_p50,
            load.ttft_p95,
            load.ttft_max,
            load.server_ttft_p50,
            load.server_ttft_p95,
            load.server_queued_mean,
            load.per_token_p50,
            load.per_token_p95,
            load.server_per_token_p50,
            load.server_per_token_p95,
            load.gap_p95,
        )
        ends = number + 1 == len(loads) or loads[number + 1].prefix != load.prefix
        table.add_row(
            str(load.concurrency),
            load.prefix,
            f"{load.requests}" if not load.failed else f"{load.requests}, {load.failed} failed",
            *(_ms(secs) for secs in times),
            f"{load.tokens_per_sec:.0f}",
            "-" if load.hit_share is None else f"{load.hit_share:.0%}",
            end_section=ends,
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)
    for load in loads:
        for why in load.failures:
            print(f"{load.concurrency} at once, {load.prefix}: {why}")


def _show_race(profile: str, rows: Sequence[Raced]) -> None:
    title = f"time to first token, {rows[0].turns} turns each; hosted is simulated: {profile}"
    table = Table(title=title, title_justify="left")
    table.add_column("asked first, second", no_wrap=True)
    for name in ("p50", "p95", "p99", "max", "no answer", "extra requests", "won by the server"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.arrangement,
            *(_ms(secs) for secs in (row.p50_secs, row.p95_secs, row.p99_secs, row.max_secs)),
            str(row.unanswered),
            f"{row.extra_requests:+.1%}",
            f"{row.local_share:.0%}",
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _ms(secs: float | None) -> str:
    if secs is None:
        return "-"
    return f"{1000 * secs:.1f} ms" if secs < 0.1 else f"{1000 * secs:.0f} ms"
