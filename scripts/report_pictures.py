"""Creates an example report and screenshots of it: `python -m scripts.report_pictures`.

An hour of twelve callers with five slow minutes (`scripts/example_turns.py`) and a learned order of
providers, compared with the same hour without hedges: out/turns.jsonl, out/bare.jsonl,
out/report.html, out/report-*.png. ``--docs`` also takes the picture of docs/report.md.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from pathlib import Path

from loguru import logger
from scripts.example_turns import Hour, write_log
from tests.live.browser import NO_BROWSER, browsing, chromium

from pipecat_hedge import HedgePolicy
from pipecat_hedge.cli import main as pipecat_hedge

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
SCREENS = {1280: 900, 390: 844}
SCHEMES = ("light", "dark")
DOCS = ROOT / "docs/images/report.png"
DOCS_WIDTH, DOCS_HEIGHT = 1180, 1330


async def main() -> int:
    """Take the screenshots; returns 2 without a browser."""
    parser = argparse.ArgumentParser(description="Make an example report and pictures of it.")
    parser.add_argument("--docs", action="store_true", help="take the documentation's picture too")
    args = parser.parse_args()
    if chromium() is None:
        print(f"report_pictures: {NO_BROWSER}", file=sys.stderr)
        return 2
    async with browsing() as context:
        page = await context.new_page()
        await page.goto((OUT / "report.html").as_uri())
        for width, height in SCREENS.items():
            await page.set_viewport_size({"width": width, "height": height})
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                path = OUT / f"report-{scheme}-{width}.png"
                await page.screenshot(path=path, full_page=True)
                print(path.relative_to(ROOT))
        if args.docs:
            await page.set_viewport_size({"width": DOCS_WIDTH, "height": DOCS_HEIGHT})
            await page.emulate_media(color_scheme="light")
            await page.screenshot(path=DOCS)
            print(DOCS.relative_to(ROOT))
    return 0


def make_report() -> int:
    """Write both logs, and the report that compares them; returns the exit status."""
    logger.remove()
    hour = Hour(policy=HedgePolicy.adaptive(0.1, order="learned"))
    write_log(OUT / "turns.jsonl", hour)
    bare = dataclasses.replace(hour, policy=HedgePolicy.fallback(1, stall_secs=None), seed=2)
    write_log(OUT / "bare.jsonl", bare)
    logs = [str(OUT / "turns.jsonl"), "--against", str(OUT / "bare.jsonl")]
    return pipecat_hedge(
        ["report", *logs, "--tz", "UTC", "--slo-ttft", "2", "--out", str(OUT / "report.html")]
    )


if __name__ == "__main__":
    sys.exit(make_report() or asyncio.run(main()))
