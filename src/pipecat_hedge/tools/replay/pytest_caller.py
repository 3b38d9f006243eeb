"""The fixture ``caller``, apart from the plugin: it takes pytest-asyncio to have it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from pipecat_hedge.tools.replay.call import Call

__all__ = ["caller"]


@pytest_asyncio.fixture
async def caller(_voice_call: Call) -> AsyncIterator[Call]:
    """A caller who is connected to the voice bot, and has heard its greeting.

    ``turn = await caller.say("recording.wav")`` speaks, and listens to the answer. The bot is
    started for the test, and ended with it.
    """
    async with _voice_call as call:
        yield call
