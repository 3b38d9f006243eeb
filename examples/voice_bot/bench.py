"""Makes simulated providers slow, fail or work: the page's buttons."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import aiohttp
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from examples.voice_bot.choices import setting_in
from examples.voice_bot.services import SIMULATED_STT, SIMULATED_TTS
from pipecat_hedge.tools.simulator import FAULTS, SPEECH_FAULTS

__all__ = ["BEHAVIOURS", "Bench"]

BEHAVIOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "well": ("answers as usual", {}),
    "slow": ("takes five times as long", {"slow": 5}),
    "hang": ("accepts requests and never answers", {"fault": "hang", "rate": 1}),
    "529": ("rejects every request: overloaded", {"fault": "529", "rate": 1}),
    "cut": ("closes the connection in mid-sentence", {"fault": "cut", "rate": 1}),
}
"""What a simulated provider can do, with its meaning and the simulator's conditions."""

STT_BEHAVIOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "well": ("transcribes as usual", {}),
    **{
        name: (fault.summary, {"fault": name, "rate": 1})
        for name, fault in (SPEECH_FAULTS | {"cut": FAULTS["cut"]}).items()
    },
}
"""The same for a simulated recogniser."""


TTS_BEHAVIOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "well": ("speaks as usual", {}),
    "silent": ("takes sentences and says nothing", {"fault": "silent", "rate": 1}),
    "late": ("begins 7 s later", {"fault": "late", "delay": 7, "rate": 1}),
    "stall": ("stops after two words", {"fault": "stall", "after": 2, "rate": 1}),
    "silence_only": ("sends audio without speech", {"fault": "silence_only", "rate": 1}),
    "half_open": ("the connection is dead, and nobody notices", {"fault": "half_open", "rate": 1}),
    "1008": ("closes the connection", {"fault": "1008", "rate": 1}),
}
"""The same for a simulated voice."""


def _behaviours(provider: str) -> dict[str, tuple[str, dict[str, Any]]]:
    if provider in SIMULATED_TTS:
        return TTS_BEHAVIOURS
    return STT_BEHAVIOURS if provider in SIMULATED_STT else BEHAVIOURS


class Change(BaseModel):
    """What the page sends: a provider's name, and one of its behaviours."""

    provider: str
    behaviour: str


class Bench:
    """The simulated providers. How each behaves is kept by the simulator."""

    def __init__(self, models: Mapping[str, str]):
        """Create the bench.

        Args:
            models: The simulated model of each provider, by its name; empty if none is simulated.
        """
        self._models = models

    async def state(self) -> dict[str, Any]:
        """Return the page's message: the providers, each with its behaviours."""
        return {
            "providers": [
                {
                    "provider": name,
                    "behaviour": await self._behaviour(name),
                    "behaviours": [
                        {"name": key, "title": title}
                        for key, (title, _) in _behaviours(name).items()
                    ],
                }
                for name in self._models
            ],
        }

    async def change(self, change: Change) -> dict[str, Any]:
        """Change how a provider behaves, for all calls, and return the new state."""
        model = self._models.get(change.provider)
        if model is None or change.behaviour not in _behaviours(change.provider):
            raise HTTPException(404, "no such simulated provider or behaviour")
        await self._conditions(model, _behaviours(change.provider)[change.behaviour][1])
        return await self.state()

    def add_to(self, app: FastAPI) -> None:
        """Serve the state and its changes at `/simulated`."""
        app.add_api_route("/simulated", self.state, methods=["GET"], include_in_schema=False)
        app.add_api_route("/simulated", self.change, methods=["POST"], include_in_schema=False)

    async def _behaviour(self, provider: str) -> str | None:
        now = await self._conditions(self._models[provider])
        return next((key for key, (_, its) in _behaviours(provider).items() if its == now), None)

    async def _conditions(self, model: str, new: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a model's conditions in the simulator, or set new ones."""
        url = setting_in(os.environ, "SIMULATOR_URL").rstrip("/") + "/simulator/conditions"
        method, timeout = "GET" if new is None else "POST", aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, params={"model": model}, json=new) as answer,
            ):
                found: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise HTTPException(502, f"the simulator does not answer ({error})") from None
        if not answer.ok:
            raise HTTPException(502, str(found["error"]["message"]))
        return found
