"""``pipecat-hedge simulate``: the simulator until it is interrupted."""

import argparse
import asyncio
import contextlib
import signal
import sys

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.simulator.behaviour import KEYS
from pipecat_hedge.tools.simulator.faults import FAULTS
from pipecat_hedge.tools.simulator.server import Simulator


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _lists()
    parser.add_argument(
        "--port", type=_port, default=8900, help="0 picks a free one (default 8900)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument(
        "--seed", type=int, default=0, help="same seed, same latencies and faults (default 0)"
    )
    parser.add_argument(
        "--capacity",
        type=_capacity,
        help="requests served at once, the others wait in a queue (default: as many as come)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the simulator until SIGINT or SIGTERM.

    Args:
        args: The command line.

    Returns:
        The exit status: 0, or 2 if the address cannot be had.
    """
    try:
        asyncio.run(_serve(args.host, args.port, args.seed, args.capacity))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"pipecat-hedge simulate: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


async def _serve(host: str, port: int, seed: int, capacity: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows has KeyboardInterrupt instead
            loop.add_signal_handler(number, stop.set)
    async with Simulator(port, host=host, seed=seed, capacity=capacity) as sim:
        print(f"pipecat-hedge simulator: {sim.url} (ledger: {sim.url}/ledger)", flush=True)
        await stop.wait()


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, got {text}")
    return int(text)


def _capacity(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text}")
    return int(text)


def _lists() -> str:
    """What a model name may say, for the help text."""
    profiles = "\n".join(f"  {p.name:<22}{p.summary}" for p in PROFILES.values())
    keys = "\n".join(f"  {key:<22}{meaning}" for key, (_, meaning) in KEYS.items())
    faults = "\n".join(f"  {f.name:<22}{f.summary}" for f in FAULTS.values())
    return (
        "The model name chooses the behaviour: profile?key=value&key=value, or\n"
        "profile@key=value,key=value where ? cannot stand (Gemini).\n\n"
        f"profiles:\n{profiles}\n\nkeys:\n{keys}\n\nfaults:\n{faults}\n"
    )
