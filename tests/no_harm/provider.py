"""A simulated provider in a process of its own, with the latencies that the published ones lack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from pipecat_hedge.cli import main
from pipecat_hedge.providers import PROFILES, LatencyProfile
from pipecat_hedge.tools.simulator import SimulatorProcess

LONG_TAIL = LatencyProfile(
    "long-tail",
    ((0.0, 0.17), (0.5, 0.258), (0.95, 0.34), (0.98, 0.5), (0.985, 2.8), (0.999, 3.5)),
    50,
    "p50 0.26 s, p95 0.34 s, and one answer in fifty takes about 3 s",
)

_PROFILES = (
    LatencyProfile(
        "two-humped",
        ((0.0, 0.5), (0.75, 0.9), (0.7501, 3.5), (0.999, 6.5)),
        50,
        "a model that thinks before a quarter of its answers: 3.5 to 6.5 s, else 0.5 to 0.9 s",
    ),
    LatencyProfile(
        "steady",
        ((0.0, 0.3), (0.5, 0.38), (0.999, 0.5)),
        50,
        "no tail: 0.3 to 0.5 s; with slow=10, 3 to 5 s",
    ),
    LONG_TAIL,
)


class ProviderProcess(SimulatorProcess):
    """The simulator, which knows these latencies besides the usual ones.

    Args:
        seed: The n-th request to a model name gets the same draw for the same seed.
    """

    def __init__(self, *, seed: int = 0):
        super().__init__(seed=seed)
        self._command = [part.replace("pipecat_hedge.cli", __spec__.name) for part in self._command]

    def forget(self) -> None:
        """Restore the usual conditions, and delete the requests, of which none may be open."""
        self.set_conditions()
        assert self.ledger(wait_secs=5)["open"] == 0
        self.clear_ledger()


Providers: TypeAlias = tuple[ProviderProcess, ProviderProcess]


@contextmanager
def two_providers() -> Iterator[Providers]:
    """Start the first and the second provider, which have draws of their own."""
    with ProviderProcess(seed=1) as one, ProviderProcess(seed=2) as two:
        yield one, two


if __name__ == "__main__":
    PROFILES.update({profile.name: profile for profile in _PROFILES})
    sys.exit(main())
