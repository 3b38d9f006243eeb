"""The command ``pipecat-hedge proxy``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from loguru import logger

from pipecat_hedge.service import ProviderStats, default_store
from pipecat_hedge.tools.proxy.keys import new_key
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.proxy.settings import ProxySettings, read_settings

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("settings", nargs="?", type=Path, help="the settings, such as hedge.toml")
    parser.add_argument("--new-key", metavar="NAME", help="print a new client key, and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="log a line per request")
    parser.add_argument("--check", action="store_true", help="check the settings, and exit")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status.
    """
    if args.new_key is not None:
        print(new_key(args.new_key), end="")
        return 0
    logger.remove()
    logger.add(sys.stderr, level="DEBUG" if args.verbose else "INFO")
    settings = read_settings(args.settings or Path("hedge.toml"))
    if args.check:
        print(f"{args.settings or 'hedge.toml'} can be used")
        return 0
    with asyncio.Runner(loop_factory=_new_loop()) as runner:
        runner.run(_serve(settings))
    return 0


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A quicker event loop if uvloop is installed; else None for asyncio's own."""
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None


async def _serve(settings: ProxySettings) -> None:
    ends = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async with ProxyServer(settings, ProviderStats(default_store())) as server:
        host = settings.address[0]
        print(f"pipecat-hedge proxy: http://{host}:{server.port}", flush=True)
        for name, model in settings.models.items():
            upstreams = ", ".join(upstream.name for upstream in model.upstreams)
            print(f"  {name} ({model.wire}, {model.policy.name}): {upstreams}", flush=True)
        await ends.wait()
        await server.drain(settings.drain_secs)
    print("proxy: stopped", file=sys.stderr)
