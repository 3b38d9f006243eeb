"""``pipecat-hedge stats export``: writes what was learned as a snapshot."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import cast

from pipecat_hedge.fleet import RedisStore, saved_of
from pipecat_hedge.providers import StatsStore
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import STATS_VERSION, default_store, store_named


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("action", choices=["export"], help="write a snapshot, as JSON")
    parser.add_argument(
        "--from", dest="source", metavar="STORE", help="a file or redis://; else the environment's"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="else the standard output")


def run(args: argparse.Namespace) -> int:
    """Export the statistics, and return the exit status."""
    store = default_store() if args.source is None else store_named(args.source)
    if store is None:
        raise ConfigurationError("there is nothing to export: name a store with --from")
    text = asyncio.run(_text_of(store))
    if args.out is None:
        print(text)
    else:
        try:
            args.out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--out: {args.out}: {error.strerror}") from None
        print(f"{len(json.loads(text)['providers'])} providers in {args.out}", file=sys.stderr)
    return 0


async def _text_of(store: object) -> str:
    if isinstance(store, RedisStore):
        try:
            known = await store.known()
        finally:
            await store.close()
        saved = {key: saved_of(fields) for key, fields in sorted(known.items())}
        return json.dumps({"version": STATS_VERSION, "providers": saved})
    text = cast("StatsStore", store).load()
    if text is None:
        raise ConfigurationError(f"there is nothing at {store}: name another store with --from")
    return text.strip()
