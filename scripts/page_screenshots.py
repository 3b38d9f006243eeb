"""Takes screenshots of the example bot's page after a call: `python -m scripts.page_screenshots`.

A browser calls the bot with recordings as its microphone. The simulated providers cause different
turns: hedges, a filler, failed requests; and the caller interrupts. Screenshots are of a laptop and
a telephone, light and dark: out/page-*.png.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.live.bot_process import BotProcess
from tests.live.browser import NO_BROWSER, browsing, chromium, write_microphone

from pipecat_hedge.tools.replay import Utterance, utterances

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
SCREENS = {1280: 800, 390: 844}
SCHEMES = ("light", "dark")
MODELS = "gpt-4.1?fault=529&rate=0.3&retry_after=2 claude-sonnet-4-6 fixed?fault=401"
SCRIPT = ("open-sunday", "vegetarian", "book-table_rms", "special", "parking", "where", "deliver")
PAUSE_SECS = 9.0
INTERRUPTED_AFTER_SECS = 4.5
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
                SIMULATED_MODELS=MODELS,
                HEDGE_POLICY="after:0.7",
                TURN_DETECTION="0.3",
                PIPECAT_HEDGE_STATS="off",
            ) as bot,
            browsing(microphone) as context,
        ):
            page = await context.new_page()
            await page.goto(bot.url)
            await page.click("#connect")
            await page.wait_for_function(
                "count => document.querySelectorAll('#turns .turn').length >= count",
                arg=len(SCRIPT) + 2,  # plus the greeting and the interruption
                timeout=CALL_SECS * 1000,
            )
            for width, height in SCREENS.items():
                await page.set_viewport_size({"width": width, "height": height})
                for scheme in SCHEMES:
                    await page.emulate_media(color_scheme=scheme)
                    path = OUT / f"page-{scheme}-{width}.png"
                    await page.screenshot(path=path, full_page=width < 720)
                    print(path.relative_to(ROOT))
    return 0


def _script() -> list[Utterance | float]:
    recordings = utterances([ROOT / "fixtures/audio"])
    spoken: list[Utterance | float] = [PAUSE_SECS]
    for name in SCRIPT:
        spoken += [next(r for r in recordings if r.name.startswith(name)), PAUSE_SECS]
    spoken[-1] = INTERRUPTED_AFTER_SECS
    return [*spoken, next(r for r in recordings if r.interrupts), PAUSE_SECS]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
