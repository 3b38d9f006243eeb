"""The providers that every peer asks: `python -m benchmarks.provider`, until it is terminated.

It is the simulator, but the turn that asks decides: the n-th request of a turn to a provider waits
equally long for every peer, whenever it comes and however often the peer asks.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any
from urllib.parse import quote

from benchmarks.sections import (
    ANSWER,
    ARGUMENTS,
    FAULTS,
    PROFILE,
    SPOKEN,
    TOOL,
    VOICES,
    Section,
    turn_of,
)
from pipecat_hedge.providers import PROFILES
from pipecat_hedge.tools.simulator import Simulator

QUICK_SECS, FAULTY_SECS = 0.05, 0.4
"""Time to first token while overhead is measured, and in sections with a fault."""
SAYS = f"answer={quote(ANSWER)}"
CALLS = f"tool={TOOL}&args={quote(json.dumps(ARGUMENTS))}"


class Providers(Simulator):
    """The simulator; it counts the requests of each turn to each provider."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._asked: Counter[tuple[str, int, str]] = Counter()

    def behaviour_of(self, body: dict[str, Any]) -> str:
        """What the turn's next request to this provider gets."""
        model = super().behaviour_of(body)
        turn = turn_of(str(body.get("messages") or body.get("input")))
        if turn is None:
            return model
        provider = model[-1]
        nth = self._asked[*turn, provider]
        self._asked[*turn, provider] += 1
        return behaviour(*turn, provider, nth)


def behaviour(section: str, turn: int, provider: str, nth: int) -> str:
    """The n-th request of a turn to a provider, as a model's name of the simulator."""
    secs = QUICK_SECS if section in ("warm", "one", "fifty") else FAULTY_SECS
    if section == "calm":
        secs = PROFILES[PROFILE].sample(random.Random(f"{turn} {provider} {nth}"))
    played = Section(section, 1, 1)
    tokens_a_sec = {"warm": 1000, "one": 1000, "fifty": 10}.get(section, 80)
    keys = [f"fixed?ttft={secs:.4f}&tps={tokens_a_sec}&region={section}.{turn}.{provider}"]
    if section not in VOICES:
        keys.append(CALLS if played.has_tools else SAYS)
    once = section.endswith("once")
    if provider == "a" and played.is_faulty(turn) and not (once and nth):
        keys.append(f"fault={FAULTS.get(section, 'silent')}")
    return "&".join(keys)


async def main() -> None:
    """Serve, and print the address."""
    async with Providers(transcripts=[SPOKEN]) as providers:
        print(providers.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
