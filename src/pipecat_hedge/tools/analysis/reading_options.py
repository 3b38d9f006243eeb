"""The options that say how files of latencies are read; ``whatif`` and ``bench`` have them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipecat_hedge.tools.analysis.latency_files import Recorded, read_latencies


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--unit", choices=("s", "ms"), help="of columns not named _secs or _ms (default s)")
    add("--column", action="append", metavar="NAME", help="of latencies; one per provider")
    add("--at", metavar="NAME", help="the column of times, when turns were asked (default at)")
    add("--at-unit", choices=("s", "ms"), help="of its figures, likewise; dates need none")


def read_as_asked(files: Sequence[str], args: argparse.Namespace) -> Recorded:
    """Read files as the options say.

    Raises:
        ReadingError: As `read_latencies` does.
    """
    columns = args.column or ()
    return read_latencies(files, unit=args.unit, columns=columns, at=args.at, at_unit=args.at_unit)
