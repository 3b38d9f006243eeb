"""``python -m tests.no_harm SCENARIO…``: run scenarios, and print a table of each."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from tests.no_harm.figures import BARE
from tests.no_harm.provider import two_providers
from tests.no_harm.scenarios import SCENARIOS


def main() -> int:
    """Run what the command line names."""
    known = "\n".join(f"  {name:<20}{(s.__doc__ or '').strip()}" for name, s in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="tests.no_harm",
        description="Compare bare and hedged callers, side by side.",
        epilog=f"scenarios:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="+", choices=SCENARIOS, metavar="SCENARIO")
    parser.add_argument("--pace", type=float, default=1.0, help="how long they last, default 1")
    args = parser.parse_args()
    os.environ["PIPECAT_HEDGE_STATS"] = "off"
    for name in args.scenarios:
        print(f"\n{name}, at {time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}: ", end="")
        print((SCENARIOS[name].__doc__ or "").strip(), flush=True)
        with two_providers() as providers:
            result = asyncio.run(SCENARIOS[name](providers, pace=args.pace))
        print(result.table())
        for arm in (a for a in result.arms if a not in BARE and BARE[0] in result.arms):
            for harm in result.harms(arm):
                print(f"  WORSE: {harm}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
