"""Compares two example bots over the same recordings: its first LLM alone, and hedged.

Both bots run concurrently, each with simulated providers that draw the same latencies, and are
called over WebRTC with the same recordings. The comparison is of voice-to-voice times. With the
default seed the slowest answer of the first provider has the usual size for so many answers (5.3 s
of 40); `make compare ARGS="--seed 3"` uses another one.

The exit status is 1 if the hedged bot's slowest answer takes more than half as long as the bare
one's, or its median is more than 5 % worse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipecat_hedge.tools.replay import (
    CommandBot,
    Replay,
    Summary,
    TurnResult,
    Utterance,
    check_folder,
    replay,
    summarise,
    utterances,
    write_report,
)
from pipecat_hedge.tools.simulator import SimulatorProcess

ROOT = Path(__file__).parents[1]
BOT = ("python", "-m", "examples.voice_bot", "--port", "{port}", "--loopback-only")
SCRIPT = 10
"""Recordings per call."""
TOOLS = ("book", "four-people", "cancel")
"""Recordings that make the bot call a tool: two requests per turn."""
HALF, NO_WORSE = 0.5, 1.05
MODELS, SEED = "jagged claude-haiku-4-5", 9
BOTS = {"bare": "off", "hedged": "adaptive"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One bot's results.

    Parameters:
        name: The bot's name.
        turns: Its turns.
        requests: Requests to all providers.
        expected_requests: Requests without hedging: one per turn and one per greeting.
    """

    name: str
    turns: list[TurnResult]
    requests: int
    expected_requests: int

    @property
    def summary(self) -> Summary:
        """The bot's figures."""
        return summarise(self.turns)


def main() -> int:
    """Compare the bots, print a table, and draw a picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40, help="turns per bot (default 40)")
    parser.add_argument("--models", default=MODELS, help=f"of the simulator (default {MODELS!r})")
    parser.add_argument("--policy", default=BOTS["hedged"], help="of the hedged bot")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the latencies (default {SEED})")
    parser.add_argument("--out", type=Path, default=Path("out/compare"), help="output folder")
    parser.add_argument("--picture", type=Path, help="also write the picture here")
    args = parser.parse_args()
    runs = max(round(args.turns / SCRIPT), 1)
    for name in BOTS:
        check_folder(args.out / name)
    compared = asyncio.run(_compare(args.models, args.policy, args.seed, runs))
    bare, hedged = compared
    for bot in compared:
        write_report(args.out / bot.name, bot.turns, f"The {bot.name} bot: {args.models}.")
    drawn = _picture(compared)
    for path in filter(None, (args.out / "compare.svg", args.picture)):
        path.write_text(drawn, encoding="utf-8")
    figures = {bot.name: _figures(bot) for bot in compared}
    (args.out / "compare.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    _show(compared)
    print(f"picture: {args.out / 'compare.svg'}; every turn: {args.out}/*/report.html")
    return _verdict(bare.summary, hedged.summary)


async def _compare(models: str, policy: str, seed: int, runs: int) -> list[Compared]:
    script = _script()
    with (
        Progress(
            TextColumn("{task.description:8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        ) as bars,
    ):

        async def one(name: str, policy: str) -> Compared:
            bar = bars.add_task(name, total=len(script) * runs)
            async with AsyncExitStack() as stack:
                simulator = stack.enter_context(SimulatorProcess(seed=seed))
                env = {
                    "HEDGE_POLICY": policy,
                    "SIMULATED_MODELS": models,
                    "SIMULATOR_URL": simulator.url,
                    "TURN_DETECTION": "0",
                    "PIPECAT_HEDGE_STATS": "off",
                    "PYTHON_DOTENV_DISABLED": "1",
                }
                bot = await stack.enter_async_context(CommandBot(BOT, env=env, cwd=ROOT))
                turns = await replay(
                    Replay(bot.url, script, runs=runs, timeout_secs=45.0),
                    on_turn=lambda turn: bars.advance(bar),
                )
                ledger = await asyncio.to_thread(simulator.ledger, wait_secs=5.0)
            return Compared(name, turns, len(ledger["requests"]), len(turns) + runs)

        both = zip(BOTS, (BOTS["bare"], policy), strict=True)
        return await asyncio.gather(*(one(name, policy) for name, policy in both))


def _script() -> tuple[Utterance, ...]:
    """Questions of one request each: no tool, no pause in mid-sentence."""
    everything = utterances([ROOT / "fixtures/audio"])
    questions = [
        u
        for u in everything
        if not u.interrupts and not u.name.startswith(TOOLS) and "pause" not in u.name
    ]
    return tuple(questions[:SCRIPT])


def _show(compared: Sequence[Compared]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    table = Table(title="voice to voice, as the caller hears it", title_justify="left")
    table.add_column("bot")
    for name in ("turns", "answered", "p50", "p95", "max", "extra requests"):
        table.add_column(name, justify="right")
    for bot in compared:
        row = _figures(bot)
        secs = [f"{row[name]:.2f} s" for name in ("p50", "p95", "max")]
        extra = f"{row['extra_requests']:.0%}"
        table.add_row(bot.name, str(row["turns"]), str(row["answered"]), *secs, extra)
    console.print(table)
    for bot in compared:
        print(f"{bot.name}: {bot.summary.pacing}")


def _figures(bot: Compared) -> dict[str, float]:
    everything = bot.summary.overall
    return {
        "turns": everything.turns,
        "answered": everything.answered,
        "p50": round(everything.p50 or float("inf"), 3),
        "p95": round(everything.p95 or float("inf"), 3),
        "max": round(everything.max or float("inf"), 3),
        "extra_requests": round(bot.requests / bot.expected_requests - 1, 4),
    }


def _verdict(bare: Summary, hedged: Summary) -> int:
    one, other = bare.overall, hedged.overall
    assert one.max is not None
    assert other.max is not None
    assert one.p50 is not None
    assert other.p50 is not None
    slowest, median = other.max / one.max, other.p50 / one.p50
    print(f"the slowest answer takes {slowest:.2f} times as long hedged, the median {median:.2f}")
    lost = other.turns - other.answered
    return int(slowest > HALF or median > NO_WORSE or lost > 0)


# ---- the picture

WIDTH, HEIGHT, LEFT, RIGHT = 860, 250, 110, 24
LANES = {"bare": 92, "hedged": 164}


def _picture(compared: Sequence[Compared]) -> str:
    """Draw each turn as a dot on an axis of seconds, with medians and maxima."""
    slowest = max(turn.voice_to_voice_secs or 0.0 for bot in compared for turn in bot.turns)
    longest = max(float(int(slowest) + 1), 2.0)

    def x(secs: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * secs / longest

    step = next(step for step in (0.5, 1, 2, 5, 10) if longest / step <= 12 or step == 10)
    parts = [_HEAD.format(width=WIDTH, height=HEIGHT)]
    for number in range(int(longest / step) + 1):
        at = x(number * step)
        parts.append(
            f'<path class="grid" d="M{at:.1f} 62V196"/><text class="dim" x="{at:.1f}" y="216" '
            f'text-anchor="middle" font-size="13">{number * step:g} s</text>'
        )
    for bot in compared:
        parts += _lane(bot, LANES[bot.name], x)
    parts.append(
        f'<text class="dim" x="{WIDTH - RIGHT}" y="238" text-anchor="end" font-size="13">'
        "from the caller's last sound to the answer's first</text></svg>\n"
    )
    return "\n".join(parts)


def _lane(bot: Compared, middle: int, x: Callable[[float], float]) -> list[str]:
    figures = bot.summary.overall
    parts = [f'<text class="ink" x="28" y="{middle + 5}" font-weight="600">{bot.name}</text>']
    secs = sorted(t.voice_to_voice_secs for t in bot.turns if t.voice_to_voice_secs is not None)
    for number, value in enumerate(secs):
        y = middle + (number * 7 % 23) - 11  # spread the dots vertically
        parts.append(f'<circle class="{bot.name}" cx="{x(value):.1f}" cy="{y}" r="4.5"/>')
    assert figures.p50 is not None
    assert figures.max is not None
    for name, value, top in (("median", figures.p50, 20), ("slowest", figures.max, 20)):
        at = min(max(x(value), LEFT + 40), WIDTH - RIGHT - 60)
        parts.append(
            f'<text class="ink" x="{at:.1f}" y="{middle - top}" text-anchor="middle" '
            f'font-size="13">{name} {value:.2f} s</text>'
        )
    return parts


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="t" \
font-family="system-ui, -apple-system, 'Segoe UI', sans-serif" font-size="15">
<title id="t">Waits for an answer, bare and hedged</title>
<style>
.ink {{ fill: #1c2530 }} .dim {{ fill: #5b6875 }}
.grid {{ stroke: #d5dbe1 }} .bg {{ fill: #f7f9fb }}
.bare {{ fill: #c2452d; fill-opacity: .65 }} .hedged {{ fill: #13795b; fill-opacity: .65 }}
@media (prefers-color-scheme: dark) {{
.ink {{ fill: #e8edf2 }} .dim {{ fill: #9aa7b4 }}
.grid {{ stroke: #35414d }} .bg {{ fill: #141a21 }}
.bare {{ fill: #f0866e }} .hedged {{ fill: #52cfa5 }} }}
</style>
<rect class="bg" width="{width}" height="{height}" rx="12"/>
<text class="ink" x="28" y="36" font-size="17" font-weight="600">\
The same calls to the same bot: its first LLM alone, and hedged</text>"""


if __name__ == "__main__":
    sys.exit(main())
