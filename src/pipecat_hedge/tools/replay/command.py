"""``pipecat-hedge replay``: calls a bot with recordings, and measures what the caller hears."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from pipecat_hedge.tools.formatting import print_json, progress_bar
from pipecat_hedge.tools.replay.audio import one_utterance, utterances
from pipecat_hedge.tools.replay.conversation import TurnResult
from pipecat_hedge.tools.replay.peer import Network
from pipecat_hedge.tools.replay.report import as_row, check_folder, table, write_report
from pipecat_hedge.tools.replay.run import Replay, replay

DEFAULT_URL = "http://127.0.0.1:7860"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    secs: dict[str, Any] = {"type": float, "metavar": "SECS"}
    files = "recordings (WAV, FLAC, ...), folders of them, or a manifest.toml; played in this order"
    add("files", nargs="+", type=Path, metavar="FILE", help=files)
    add("--url", default=DEFAULT_URL, help=f"the bot, served with SmallWebRTC ({DEFAULT_URL})")
    add("--runs", type=int, default=1, metavar="N", help="consecutive calls per caller")
    add("--callers", type=int, default=1, metavar="N", help="concurrent callers")
    interruption = "interrupt every answer with this recording, and measure the time to silence"
    add("--interrupt-with", type=Path, metavar="FILE", help=interruption)
    add("--loss", type=float, default=0.0, metavar="SHARE", help="packet loss, from 0 to below 1")
    add("--jitter", default=0.0, **secs, help="delay of the caller's packets, at most")
    add("--seed", type=int, default=1, help="of loss and jitter")
    add("--timeout", default=15.0, **secs, help="longest silence before the answer (default 15)")
    add("--greeting", default=5.0, **secs, help="longest wait for a greeting (default 5; 0: none)")
    add("--report", type=Path, metavar="FOLDER", help="write report.html and replay.json there")
    add("--json", action="store_true", help="print the turns as JSON, not a table")


def run(args: argparse.Namespace) -> int:
    """Make the calls, and print or write the results.

    Returns:
        0 if every turn was answered, 1 if one was not, 130 after Ctrl-C; the turns that were
        complete by then are printed or written all the same.

    Raises:
        HedgeError: If no call could be made.
    """
    turns: list[TurnResult] = []
    wanted = _wanted(args)
    if args.report is not None:
        check_folder(args.report)
    is_complete = _call(wanted, turns)
    if not is_complete:
        complete = f"{len(turns)} of {wanted.turns} turns are complete"
        print(f"pipecat-hedge replay: interrupted; {complete}", file=sys.stderr)
        if not turns:
            return 130
    if args.report is not None:
        write_report(args.report, turns, _about(wanted))
    if args.json:
        print_json([as_row(turn) for turn in turns])
    else:
        print(table(turns))
        if args.report is not None:
            print(f"report: {args.report / 'report.html'}")
    return int(any(turn.error is not None for turn in turns)) if is_complete else 130


def _wanted(args: argparse.Namespace) -> Replay:
    script = utterances(args.files)
    interruption = None if args.interrupt_with is None else one_utterance(args.interrupt_with)
    if interruption is not None and interruption.name in {each.name for each in script}:
        interruption = changed(interruption, name=f"{interruption.name} (interrupting)")
    return Replay(
        args.url,
        script,
        runs=args.runs,
        callers=args.callers,
        network=Network(args.loss, args.jitter, args.seed),
        timeout_secs=args.timeout,
        greeting_secs=args.greeting,
        interrupt_with=interruption,
    )


def _call(wanted: Replay, turns: list[TurnResult]) -> bool:
    """Make the calls and add each complete turn; False after Ctrl-C."""
    with progress_bar() as bar:
        task = bar.add_task("calling", total=wanted.turns)

        def add(turn: TurnResult) -> None:
            turns.append(turn)
            secs = turn.voice_to_voice_secs
            latency = "no answer" if secs is None else f"{secs:.2f} s"
            bar.update(task, advance=1, description=f"{turn.recording}: {latency}")

        try:
            asyncio.run(replay(wanted, on_turn=add))
        except KeyboardInterrupt:
            return False
        finally:
            turns.sort(key=lambda turn: (turn.caller, turn.run))
    return True


def _about(wanted: Replay) -> str:
    line = wanted.network
    parts = [f"{len(wanted.script)} recordings into {wanted.url}"]
    if wanted.runs > 1:
        parts.append(f"{wanted.runs} runs")
    if wanted.callers > 1:
        parts.append(f"{wanted.callers} callers at once")
    if wanted.interrupt_with is not None:
        parts.append(f"every answer interrupted with {wanted.interrupt_with.name}")
    if line.loss or line.jitter_secs:
        parts.append(
            f"{line.loss:.1%} of packets lost, up to {1000 * line.jitter_secs:.0f} ms late"
        )
    return ", ".join(parts) + "."
