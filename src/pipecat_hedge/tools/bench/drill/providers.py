"""The providers of a drill: simulators, each a process with a bounded capacity.

How large: by Little's law a caller occupies a place for as long as an answer takes, so what is
needed in calm is the turns a second times the seconds of an answer. Each provider alone has half as
much again, so that it can carry everybody when the others are gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np

from pipecat_hedge.tools.bench.drill.plans import SetConditions
from pipecat_hedge.tools.bench.drill.records import Counts
from pipecat_hedge.tools.bench.drill.variants import ANSWER
from pipecat_hedge.tools.simulator.behaviour import parse_model
from pipecat_hedge.tools.simulator.process import SimulatorProcess
from pipecat_hedge.tools.simulator.timeline import tokenize

__all__ = ["MARGIN", "Providers", "places_needed"]

MARGIN = 1.5
SAMPLES = 20_000


def places_needed(model: str, sessions: int, think_secs: float) -> float:
    """How many requests are in flight in calm, on average, if this provider answers everybody.

    Args:
        model: The provider's model.
        sessions: The callers.
        think_secs: How long a caller thinks between two turns, on average.
    """
    behaviour = parse_model(model)
    wait_secs = float(behaviour.profile.samples(SAMPLES, seed=0).mean())
    pace = behaviour.tps or behaviour.profile.tokens_per_sec
    answer_secs = wait_secs + (len(tokenize(ANSWER)) - 1) / pace
    return sessions / (think_secs + answer_secs) * answer_secs


class Providers:
    """Starts, kills and counts them.

    ::

        with Providers(PROVIDERS, sessions=320, think_secs=6, seed=1) as providers:
            providers.kill(["first"])
    """

    def __init__(self, profiles: Mapping[str, str], *, sessions: int, think_secs: float, seed: int):
        """Decide how large they are.

        Args:
            profiles: Model by provider.
            sessions: How many callers there are.
            think_secs: How long a caller thinks between two turns, on average.
            seed: The same seed gives the same latencies.
        """
        self._profiles = profiles
        self._seed = seed
        needs = [places_needed(model, sessions, think_secs) for model in profiles.values()]
        self.needed = needs[0]
        self.capacity = math.ceil(MARGIN * max(needs))
        self._running: dict[str, SimulatorProcess] = {}
        self._ports: dict[str, int] = {}
        self._counts: dict[str, dict[int, int]] = {name: {} for name in profiles}

    def __enter__(self) -> Self:
        try:
            self.start(self._profiles)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def models(self) -> dict[str, tuple[str, str]]:
        """By provider, its ``base_url`` and its model."""
        return {name: (sim.openai_url, self._profiles[name]) for name, sim in self._running.items()}

    def pids(self) -> list[int]:
        """The processes that run."""
        return [sim.pid for sim in self._running.values()]

    def start(self, names: Mapping[str, str] | tuple[str, ...]) -> None:
        """Start providers, all in one instant, each on its port of before.

        Args:
            names: Which.
        """
        made = {
            name: SimulatorProcess(
                self._ports.get(name, 0), seed=self._seed + index, capacity=self.capacity
            )
            for index, name in enumerate(self._profiles)
            if name in names
        }
        with ThreadPoolExecutor(len(made)) as at_once:
            started = {name: at_once.submit(sim.__enter__) for name, sim in made.items()}
        for name, future in started.items():
            self._running[name] = future.result()
            self._ports[name] = int(self._running[name].url.rsplit(":", 1)[1])

    def kill(self, names: tuple[str, ...]) -> None:
        """Kill providers; what they have counted is kept.

        Args:
            names: Which.
        """
        for name in names:
            self._count(name)
            self._running[name].kill()
        for name in names:
            self._running.pop(name).__exit__(None, None, None)

    def set_conditions(self, act: SetConditions) -> None:
        """Have providers behave otherwise.

        Args:
            act: Which, and how.
        """
        told = dict(act.conditions)
        if act.of_need is not None:
            share = act.of_need * self.needed / len(act.providers)
            told["capacity"] = max(1, round(share))
        for name in act.providers:
            self._running[name].set_conditions(**told)

    def counts(self, began_at: float, secs: int) -> dict[str, Counts]:
        """How many requests each has counted in each second.

        Args:
            began_at: When the first second began, a whole one on the machine's clock.
            secs: How many seconds.
        """
        for name in self._running:
            self._count(name)
        told = {name: np.zeros(secs, np.int64) for name in self._profiles}
        for name, counts in self._counts.items():
            for second, count in counts.items():
                index = second - int(began_at)
                if 0 <= index < secs:
                    told[name][index] += count
        return told

    def _count(self, name: str) -> None:
        """Take over what a provider has counted, by the machine's seconds."""
        told = self._running[name].arrivals()
        for second, count in enumerate(told["counts"], told["first"]):
            self._counts[name][second] = count

    def _stop(self) -> None:
        for sim in self._running.values():
            sim.__exit__(None, None, None)
        self._running.clear()
