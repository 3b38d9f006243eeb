"""Makes simulated providers slow, fail or work: the page's buttons."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import aiohttp
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from examples.voice_bot.choices import setting_in

__all__ = ["BEHAVIOURS", "Bench"]

BEHAVIOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "well": ("answers as usual", {}),
    "slow": ("takes five times as long", {"slow": 5}),
    "hang": ("accepts requests and never answers", {"fault": "hang"}),
    "529": ("rejects every request: overloaded", {"fault": "529"}),
    "cut": ("closes the connection in mid-sentence", {"fault": "cut"}),
}
"""What a simulated provider can be told to do, with its meaning and the simulator's conditions."""


class Change(BaseModel):
    """What the page sends: a provider's name, and one of ``BEHAVIOURS``."""

    provider: str
    behaviour: str


class Bench:
    """The simulated providers and how each behaves now."""

    def __init__(self, models: Mapping[str, str]):
        """Start with providers that work.

        Args:
            models: The simulated model of each provider, by its name; empty if none is simulated.
        """
        self._models = models
        self._behaviours = dict.fromkeys(models, "well")

    def state(self) -> dict[str, Any]:
        """Return the page's message: the providers, and all behaviours."""
        return {
            "providers": [
                {"provider": name, "behaviour": behaviour}
                for name, behaviour in self._behaviours.items()
            ],
            "behaviours": [
                {"name": name, "title": title} for name, (title, _) in BEHAVIOURS.items()
            ],
        }

    async def change(self, change: Change) -> dict[str, Any]:
        """Change how a provider behaves, for all calls, and return the new state."""
        model = self._models.get(change.provider)
        if model is None or change.behaviour not in BEHAVIOURS:
            raise HTTPException(404, "no such simulated provider or behaviour")
        url = setting_in(os.environ, "SIMULATOR_URL").rstrip("/") + "/simulator/conditions"
        conditions = BEHAVIOURS[change.behaviour][1]
        try:
            async with (
                aiohttp.ClientSession(raise_for_status=True) as session,
                session.post(url, params={"model": model}, json=conditions),
            ):
                pass
        except aiohttp.ClientError as error:
            raise HTTPException(502, f"the simulator cannot be changed: {error}") from None
        for name, other in self._models.items():
            if other == model:
                self._behaviours[name] = change.behaviour
        return self.state()

    def add_to(self, app: FastAPI) -> None:
        """Serve the state and its changes at `/simulated`."""
        app.add_api_route("/simulated", self.state, methods=["GET"], include_in_schema=False)
        app.add_api_route("/simulated", self.change, methods=["POST"], include_in_schema=False)
