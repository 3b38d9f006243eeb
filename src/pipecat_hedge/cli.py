"""The command ``pipecat-hedge``: one sub-command a tool, each in a module of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

# A command's module has configure(parser) and run(args) -> exit status; it is loaded when asked
# for, so that one command does not pay for the imports of another.
_COMMANDS = {
    "simulate": (
        "pipecat_hedge.tools.simulator.command",
        "run simulated LLM providers (OpenAI, Anthropic and Google protocols) on loopback",
    ),
    "whatif": (
        "pipecat_hedge.tools.analysis.whatif",
        "replay recorded turns under other policies, and recommend one",
    ),
    "report": (
        "pipecat_hedge.tools.analysis.report",
        "tell what turn logs say: callers' waits, providers' bad times, what would help",
    ),
    "replay": (
        "pipecat_hedge.tools.replay.command",
        "call a bot over WebRTC with recordings, and measure what a caller would hear",
    ),
    "top": (
        "pipecat_hedge.tools.top.command",
        "show running bots live in a terminal: turns, providers, budgets, promises",
    ),
    "bench": (
        "pipecat_hedge.tools.bench.bench",
        "compare the bare service, Pipecat's failover and hedging on simulated providers",
    ),
    "drill": (
        "pipecat_hedge.tools.bench.drill.command",
        "let simulated providers fail under a fleet of callers, and show what they noticed",
    ),
    "bench-llm": (
        "pipecat_hedge.tools.bench.llm_bench",
        "measure a server's time to first token and between tokens under load, or in a race",
    ),
    "metrics": (
        "pipecat_hedge.telemetry.metrics_command",
        "serve Prometheus metrics of turn logs, or of all processes that write to one folder",
    ),
    "overhead": (
        "pipecat_hedge.tools.bench.overhead",
        "measure what the hedged service costs over the bare one, in one run",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; those of the process if None.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    top = argparse.ArgumentParser(prog="pipecat-hedge", description="Tools of pipecat-hedge.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if arguments[:1] == [name]:
            loaded = import_module(module)
            loaded.configure(command)
            command.set_defaults(run=loaded.run)
    args = top.parse_args(arguments)
    try:
        return args.run(args)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
