"""Takes screenshots of the example bot's page after a call: `python -m scripts.page_screenshots`.

A browser calls the bot with recordings as its microphone. The caller interrupts an answer; then the
first provider is made to hang, by the page's button. Screenshots are of a laptop,
a tablet and a telephone, light and dark: out/page-*.png. The README's picture is made of the first.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page
from tests.live.bot_process import BotProcess
from tests.live.browser import NO_BROWSER, browsing, chromium, write_microphone

from pipecat_hedge.tools.replay import Utterance, utterances

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
PICTURE = ROOT / "docs/images/page.png"
SCREENS = {1280: 720, 768: 1024, 390: 844}
SCHEMES = ("light", "dark")
PAUSE_SECS = 9.0
SCRIPT = (
    ("open-sunday", PAUSE_SECS),
    ("book-table_rms", PAUSE_SECS),
    ("special", 4.5),  # its answer is interrupted by the next one
    ("cancel-that", PAUSE_SECS),
    ("vegetarian", PAUSE_SECS),
)
HANGS_AFTER = len(SCRIPT)  # cards, of which the first is the greeting
CALL_SECS = 150.0


async def main() -> int:
    """Make the call and take the screenshots; returns 2 without a browser."""
    if chromium() is None:
        print(f"page_screenshots: {NO_BROWSER}", file=sys.stderr)
        return 2
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        microphone = write_microphone(Path(folder) / "microphone.wav", _script())
        async with (
            BotProcess(
                SIMULATED_MODELS="jagged claude-haiku-4-5?ttft=0.45",
                TURN_DETECTION="0.3",
                PIPECAT_HEDGE_STATS="off",
            ) as bot,
            browsing(microphone) as context,
        ):
            page = await context.new_page()
            await page.goto(bot.url)
            await page.click("#connect")
            await _cards(page, HANGS_AFTER)
            await page.click(".bench-row:first-of-type [data-behaviour=hang]")
            await _cards(page, HANGS_AFTER + 1)
            await page.wait_for_selector("#bot[data-activity=silent]")
            for width, height in SCREENS.items():
                await page.set_viewport_size({"width": width, "height": height})
                for scheme in SCHEMES:
                    await page.emulate_media(color_scheme=scheme)
                    path = OUT / f"page-{scheme}-{width}.png"
                    await page.screenshot(path=path)
                    print(path.relative_to(ROOT))
    shutil.copy(OUT / "page-light-1280.png", PICTURE)
    return 0


async def _cards(page: Page, count: int) -> None:
    """Wait until the page shows this many turns."""
    await page.wait_for_function(
        "count => document.querySelectorAll('#turns .turn').length >= count",
        arg=count,
        timeout=CALL_SECS * 1000,
    )


def _script() -> list[Utterance | float]:
    recordings = utterances([ROOT / "fixtures/audio"])
    spoken: list[Utterance | float] = [PAUSE_SECS]
    for name, pause_secs in SCRIPT:
        spoken += [next(r for r in recordings if r.name.startswith(name)), pause_secs]
    return spoken


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
