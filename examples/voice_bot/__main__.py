"""`python -m examples.voice_bot`: the voice bot, its page and, without keys, simulated providers.

Pipecat's own runner serves the bot; its options (`--port`, `--host`, `-v` …) all work.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI
    from pipecat.runner.types import SmallWebRTCRunnerArguments

NEEDED = (
    *("aiortc", "dotenv", "fastapi", "uvicorn", "onnxruntime", "prometheus_client"),
    "pipecat_hedge",
)
LEVELS = ("INFO", "DEBUG", "TRACE")
DEFAULTS = ("--host", "127.0.0.1", "--port", "7860", "--transport", "webrtc")


def main() -> int:
    """Serve the bot until the process is stopped; returns 2 if a setting is invalid."""
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")  # until the bot is ready
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(f'not installed: {", ".join(missing)}; run pip install -e ".[demo]"')

    from examples.voice_bot.choices import SettingError

    try:
        _serve(sys.argv[1:])
    except SettingError as error:
        return _fail(str(error))
    except KeyboardInterrupt:  # while it starts
        return 130
    return 0


def _fail(why: str) -> int:
    print(f"voice bot: {why}", file=sys.stderr)
    return 2


def _serve(arguments: list[str]) -> None:
    from pipecat.runner.run import app
    from pipecat.runner.run import main as run

    parser = argparse.ArgumentParser(prog="python -m examples.voice_bot")
    parser.add_argument("--loopback-only", action="store_true", help="use loopback only for calls")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web page's origin that may call, such as https://bot.example.com, and a host name "
        "of this server; may be repeated. Loopback is always allowed",
    )
    parser.add_argument(
        "--max-sessions", type=int, default=16, help="concurrent calls (default 16)"
    )
    options = _read_ahead(arguments)
    if not options.help:
        port = _prepare(app, options)
        arguments = [*DEFAULTS, *arguments, "--port", str(port)]
    sys.argv[1:] = arguments
    run(parser)


def _read_ahead(arguments: list[str]) -> argparse.Namespace:
    """Parse the options that are needed before the runner parses all."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("-v", "--verbose", action="count", default=0)
    parser.add_argument("--loopback-only", action="store_true")
    parser.add_argument("--allow-origin", action="append", default=[])
    parser.add_argument("--max-sessions", type=int, default=16)
    return parser.parse_known_args([*DEFAULTS, *arguments])[0]


def _prepare(app: FastAPI, options: argparse.Namespace) -> int:
    """Check all settings, and configure the application; returns the port."""
    from dotenv import find_dotenv, load_dotenv
    from loguru import logger

    from examples.voice_bot.bench import Bench
    from examples.voice_bot.choices import SettingError, choose
    from examples.voice_bot.gate import Gate, connected_in_time
    from examples.voice_bot.services import (
        check_installed,
        check_simulated_models,
        check_simulator,
        discover_models,
        parts,
        simulated_models,
    )
    from examples.voice_bot.serving import (
        Calls,
        add_live,
        add_metrics,
        add_page,
        free_port,
        guard,
        offer_loopback,
        surround,
    )
    from pipecat_hedge.race import ConfigurationError
    from pipecat_hedge.telemetry import AllowedOrigins, is_loopback

    load_dotenv(find_dotenv(usecwd=True), override=True)  # as Pipecat's runner does
    choices = discover_models(choose(os.environ), os.environ)
    check_installed(choices)
    check_simulated_models(choices)
    check_simulator(choices, os.environ)
    for llm in choices.llms:
        if llm.kind == "vllm" and llm.model is not None:
            os.environ["VLLM_MODEL"] = llm.model
    if choices.traces != "off":
        from pipecat_hedge.telemetry import export_traces

        export_traces("voice-bot", with_text=choices.traces == "with text")
    try:
        origins = AllowedOrigins(options.allow_origin, field="--allow-origin")
    except ConfigurationError as error:
        raise SettingError(str(error)) from None
    if options.max_sessions < 1:
        raise SettingError(f"--max-sessions must be at least 1, got {options.max_sessions}")
    port = free_port(options.host, options.port)
    offer_loopback(alone=options.loopback_only)

    from examples.voice_bot.bot import FEED, load_models, recorder
    from examples.voice_bot.bot import bot as answer

    recorder()  # serve metrics before the first call
    load_models(choices)

    calls = Calls()

    async def bot(runner_args: SmallWebRTCRunnerArguments) -> None:
        connection = runner_args.webrtc_connection
        with calls.held(connection.pc_id):
            async with connected_in_time(connection):
                await answer(runner_args)

    def ready() -> None:
        logger.remove()
        logger.add(sys.stderr, level=LEVELS[min(options.verbose, 2)])
        print(f"\nOpen http://{options.host}:{port}/ and talk to the bot. Ctrl-C stops it.")
        sys.stdout.flush()

    surround(app, calls, _simulator() if choices.needs_simulator else nullcontext(), ready)
    guard(
        app,
        functools.partial(
            Gate,
            origins=origins,
            max_sessions=options.max_sessions,
            is_local=is_loopback(options.host),
            is_known=calls.is_known,
        ),
    )
    add_page(app, parts(choices))
    add_metrics(app)
    add_live(app, FEED)
    # Buttons that break providers for all callers are for the machine's own user.
    Bench(simulated_models(choices) if is_loopback(options.host) else {}).add_to(app)
    vars(sys.modules["__main__"])["bot"] = bot  # where Pipecat's runner looks for it
    return port


def _simulator() -> AbstractAsyncContextManager[Any]:
    """Simulated providers, in this process so that they end with it."""
    if "SIMULATOR_URL" in os.environ:
        return nullcontext()

    @asynccontextmanager
    async def simulated() -> AsyncIterator[None]:
        from examples.voice_bot.simulated_speech import recognize, speak
        from pipecat_hedge.tools.simulator import Simulator

        async with Simulator(transcripts=recognize, voice=speak) as simulator:
            os.environ["SIMULATOR_URL"] = simulator.url
            print(f"Simulated providers at {simulator.url} (ledger: {simulator.url}/ledger)")
            yield

    return simulated()


if __name__ == "__main__":
    sys.exit(main())
