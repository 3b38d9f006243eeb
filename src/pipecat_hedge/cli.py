"""The command ``pipecat-hedge``: one sub-command a tool, each in a module of its own."""

import argparse
import sys
from collections.abc import Sequence

from pipecat_hedge import overhead
from pipecat_hedge.simulator import command as simulate

# A command is a module with SUMMARY, configure(parser) and run(args) -> exit status.
_COMMANDS = {"simulate": simulate, "overhead": overhead}


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(prog="pipecat-hedge", description="Tools of pipecat-hedge.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        sub = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; those of the process if None.

    Returns:
        The exit status.
    """
    args = parser().parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
