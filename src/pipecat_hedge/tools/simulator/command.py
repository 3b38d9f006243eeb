"""``pipecat-hedge simulate``: runs the simulator until SIGINT or SIGTERM."""

import argparse
import asyncio
import contextlib
import signal
import sys
import textwrap

from pipecat_hedge.providers import PROFILES
from pipecat_hedge.tools.simulator.behaviour import KEYS
from pipecat_hedge.tools.simulator.server import Simulator
from pipecat_hedge.tools.simulator.timeline import FAULTS, SPEECH_FAULTS, VOICE_FAULTS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    lists = {
        "profiles": {profile.name: profile.summary for profile in PROFILES.values()},
        "keys": KEYS,
        "faults": {fault.name: fault.summary for fault in FAULTS.values()},
        "faults of streaming recognisers, besides cut": {
            fault.name: fault.summary for fault in SPEECH_FAULTS.values()
        },
        "faults of voices, besides those of models (a word is a token) and late, half_open, 1008": {
            fault.name: fault.summary for fault in VOICE_FAULTS.values()
        },
    }
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "The model name chooses the behaviour: profile?key=value&key=value, or\n"
        "profile@key=value,key=value where ? is not allowed (Gemini).\n"
    )
    for title, rows in lists.items():
        parser.epilog += f"\n{title}:\n"
        parser.epilog += "".join(
            textwrap.fill(
                f"{name:<22}{summary}", 79, initial_indent="  ", subsequent_indent=24 * " "
            )
            + "\n"
            for name, summary in rows.items()
        )
    parser.add_argument("--port", type=int, default=8900, help="0 picks a free one (default 8900)")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument(
        "--seed", type=int, default=0, help="same seed, same latencies and faults (default 0)"
    )
    parser.add_argument(
        "--capacity",
        type=int,
        help="concurrent requests; others wait in a queue (default: no limit)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the simulator until SIGINT or SIGTERM.

    Returns:
        The exit status: 0, or 2 if an argument is invalid or the address is not available.
    """
    try:
        simulator = Simulator(args.port, host=args.host, seed=args.seed, capacity=args.capacity)
        asyncio.run(_serve(simulator))
    except (OSError, ValueError) as error:
        print(f"pipecat-hedge simulate: {getattr(error, 'strerror', error)}", file=sys.stderr)
        return 2
    return 0


async def _serve(simulator: Simulator) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows raises KeyboardInterrupt instead
            loop.add_signal_handler(number, stop.set)
    async with simulator:
        url = simulator.url
        print(f"pipecat-hedge simulator: {url} (ledger: {url}/ledger)", flush=True)
        await stop.wait()
    print("simulate: stopped", file=sys.stderr)
