"""Debian's Chromium, driven through Playwright, with a recording for a microphone."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from playwright.async_api import BrowserContext, async_playwright

from pipecat_hedge.tools.replay import RATE, Utterance

NAMES = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no Chromium: install it with `sudo apt-get install chromium`"

# Keeps what the page's connection receives: `heard` is the audio energy so far, every 50 ms.
_EAR = """
window.heard = [];
window.RTCPeerConnection = class extends RTCPeerConnection {
  constructor(...options) {
    super(...options);
    setInterval(async () => {
      for (const stats of (await this.getStats()).values()) {
        if (stats.type !== "inbound-rtp" || stats.kind !== "audio") continue;
        window.heard.push({ at: performance.now(), energy: stats.totalAudioEnergy });
      }
    }, 50);
  }
};
"""


def chromium() -> str | None:
    """Where Chromium is, or None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def write_microphone(path: Path, said: Sequence[Utterance | float]) -> Path:
    """Write what the microphone will hear.

    Args:
        path: Where to.
        said: Utterances, and the seconds of silence between them.

    Returns:
        The path.
    """
    parts = [
        part.samples if isinstance(part, Utterance) else np.zeros(round(part * RATE), np.int16)
        for part in said
    ]
    soundfile.write(path, np.concatenate(parts), RATE, subtype="PCM_16")
    return path


@asynccontextmanager
async def browsing(microphone: Path | None = None, **options: Any) -> AsyncIterator[BrowserContext]:
    """A Chromium without a window.

    Its microphone is opened by the page's call, and plays the recording once from then on. Its
    pages have `heard`, the audio energy that the call has received so far.

    Args:
        microphone: A recording, or None for Chromium's own beeps.
        **options: Of Playwright's `Browser.new_context`, such as `viewport`.
    """
    arguments = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        "--disable-features=WebRtcHideLocalIpsWithMdns",
        "--allow-loopback-in-peer-connection",
    ]
    if microphone is not None:
        arguments.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium does not run as root with one
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            context = await browser.new_context(**options)
            await context.add_init_script(_EAR)
            yield context
        finally:
            await browser.close()
