"""The command ``pipecat-hedge``, with a sub-command per tool."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class _Command:
    """A sub-command.

    Its module has ``configure(parser)`` and ``run(args)``, which returns the exit status. It is
    imported only when its command runs, after a check of its extra: importing Pipecat takes a
    second.
    """

    module: str
    summary: str
    extra: str = "tools"
    needs: tuple[str, ...] = ("rich",)


_COMMANDS = {
    "simulate": _Command(
        "simulator.command",
        "run simulated LLM providers (OpenAI, Anthropic and Google protocols) on loopback",
        needs=(),
    ),
    "replay": _Command(
        "replay.command",
        "call a bot over WebRTC with recordings, and measure what a caller hears",
        extra="replay",
        needs=("rich", "aiortc"),
    ),
    "whatif": _Command(
        "analysis.whatif_command", "replay recorded turns under other policies, and recommend one"
    ),
    "report": _Command(
        "analysis.report_command",
        "summarise turn logs: callers' waits, providers' incidents, what would help",
    ),
    "compare": _Command(
        "analysis.compare",
        "show how much providers' answers to the same turns differ",
        needs=("rich", "text_to_num"),
    ),
    "top": _Command(
        "top.command", "show running bots live in a terminal: turns, providers, budgets, SLOs"
    ),
    "stats": _Command(
        "stats.command", "export what was learned, for processes that begin elsewhere", needs=()
    ),
    "proxy": _Command(
        "proxy.command",
        "race every request behind the Anthropic and OpenAI APIs",
        extra="proxy",
        needs=(),
    ),
    "bench": _Command(
        "bench.bench",
        "compare the bare service, Pipecat's failover and hedging, and measure what they cost",
        needs=("rich", "prometheus_client"),
    ),
    "drill": _Command(
        "bench.drill.command",
        "break simulated providers under a fleet of callers, and show what they notice",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None uses those of the process.

    Returns:
        The command's exit status, 2 if it cannot be run, or 130 if Ctrl-C interrupts it.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    top = argparse.ArgumentParser(prog="pipecat-hedge", description="Tools of pipecat-hedge.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, help=command.summary, description=command.summary)
        for name, command in _COMMANDS.items()
    }
    name = arguments[0] if arguments else ""
    try:
        if command := _COMMANDS.get(name):
            for package in command.needs:
                if find_spec(package) is None:
                    raise ModuleNotFoundError(name=package)
            module = _import_quietly(f"pipecat_hedge.tools.{command.module}")
            module.configure(parsers[name])
            parsers[name].set_defaults(run=module.run)
        elif close := get_close_matches(name, _COMMANDS, 1):
            top.error(f"unknown command {name!r} (did you mean {close[0]}?)")
        args, unknown = top.parse_known_args(arguments)
        if unknown:
            _refuse(parsers.get(name, top), unknown)
        if args.command is None:
            top.error("the following arguments are required: COMMAND")
        return _run(args)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "pipecat_hedge"):
            raise
        extra = _COMMANDS[name].extra
        hint = f'{missing} is not installed: pip install "pipecat-hedge[{extra}]"'
        return _fail(f"{name}: {hint}", 2)
    except KeyboardInterrupt:
        return _fail(f"{name}: interrupted", 130)
    except BrokenPipeError:  # the output's reader has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Exit with the command's usage, the unknown arguments, and the options that may be meant."""
    options = ["--help", *re.findall(r"--[a-z][\w-]*", parser.format_usage())]
    words = [word.partition("=")[0] for word in unknown]
    close = [option for word in words for option in get_close_matches(word, options, 1, 0.75)]
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _run(args: argparse.Namespace) -> int:
    from pipecat_hedge.race import HedgeError

    try:
        return args.run(args)
    except HedgeError as error:
        return _fail(f"{args.command}: {error}", 2)


def _import_quietly(name: str) -> ModuleType:
    """Import a module without the line that Pipecat logs when it is imported."""
    from loguru import logger

    logger.disable("pipecat")
    try:
        return import_module(name)
    finally:
        logger.enable("pipecat")


class _Version(argparse.Action):
    """Prints the version; what finds it takes 30 ms to import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(parser.prog, version("pipecat-hedge"))
        parser.exit()


def _fail(message: str, status: int) -> int:
    print(f"pipecat-hedge {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
