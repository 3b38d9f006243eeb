"""The command ``pipecat-hedge proxy``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from loguru import logger

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import ProviderStats, default_store
from pipecat_hedge.tools.proxy.keys import new_key
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.proxy.settings import ProxySettings, read_settings
from pipecat_hedge.tools.proxy.upstream import check_packages


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
    level = "DEBUG" if args.verbose else "INFO"
    logger.add(sys.stderr, level=level, diagnose=False)  # no values: they may be prompts or keys
    path: Path = args.settings or Path("hedge.toml")
    settings = read_settings(path)
    for name, model in settings.models.items():
        for number, upstream in enumerate(model.upstreams):
            check_packages(upstream, f"{path}: models.{name}.upstreams[{number}]")
    if args.check:
        missing = ", ".join(settings.missing_keys)
        print(f"{path} can be used" + (f"; not set here: {missing}" if missing else ""))
        return 0
    with asyncio.Runner(loop_factory=_new_loop()) as runner:
        runner.run(_serve(path, settings))
    return 0


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A quicker event loop if uvloop is installed; else None for asyncio's own."""
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None


def tune_gc() -> None:
    """Make full collections quick and rare: one takes tens of milliseconds from every stream."""
    gc.freeze()  # what was imported stays anyway
    gc.set_threshold(700, 10, 50)


def _read_keys(path: Path, server: ProxyServer) -> None:
    try:
        server.set_keys(read_settings(path).keys)
    except ConfigurationError as error:
        logger.error(f"the keys stay as they were: {error}")
    else:
        logger.info(f"{path}: the keys were read again")


async def _serve(path: Path, settings: ProxySettings) -> None:
    ends, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ends.set)
    async with ProxyServer(settings, ProviderStats(default_store())) as server:
        loop.add_signal_handler(signal.SIGHUP, _read_keys, path, server)
        host = settings.address[0]
        print(f"pipecat-hedge proxy: http://{host}:{server.port}", flush=True)
        for name, model in settings.models.items():
            upstreams = ", ".join(upstream.name for upstream in model.upstreams)
            print(f"  {name} ({model.wire}, {model.policy.name}): {upstreams}", flush=True)
        tune_gc()
        await ends.wait()
        draining = asyncio.create_task(server.drain(), name="drains the proxy")
        loop.add_signal_handler(signal.SIGINT, draining.cancel)
        print("proxy: stops when its streams have ended; Ctrl-C cuts them", file=sys.stderr)
        with suppress(asyncio.CancelledError):
            await draining
    print("proxy: stopped", file=sys.stderr)
