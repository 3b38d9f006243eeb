"""A fleet of one-call processes on one Redis, beside one long process; in virtual time.

    python -m scripts.fleet_calls [--calls 2000] [--budget 0.05] [--slow 3] [--no-fleet-budget]

Each call is a process of its own, with 20 turns some 6 s apart; 100 are alive at a time. It starts
a Redis, and prints what callers wait for, what is sent, and what it costs the Redis. The long
process has the same callers. With ``--slow`` all providers take so many times as long after ten
minutes; with ``--no-fleet-budget`` each process knows its own hedges only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.support.crowd import PROVIDERS, Crowd
from tests.support.redis_server import RedisServer

from pipecat_hedge import HedgePolicy, ProviderStats
from pipecat_hedge.fleet import EVERY_SECS, RedisStore
from pipecat_hedge.providers import Backend

TURNS, ALIVE = 20, 100
SLOW_FROM = 600.0
EPOCH = 1_800_000_000.0


class Calls(Crowd):
    """Calls, each with a process or all in one.

    Attributes:
        heeds: Whether processes take the fleet's turns and hedges into account.
    """

    heeds = True

    def __init__(self, policy: HedgePolicy, calls: int, url: str | None, slow: float = 1.0):
        super().__init__(policy, processes=0)
        self._rng_of_calls = random.Random(1)
        self._at(SLOW_FROM, lambda: self.slow.update(dict.fromkeys(PROVIDERS, slow)))
        self._backends = [Backend(name, "no published figures") for name in PROVIDERS]
        self._calls, self._url = calls, url
        self._runner = asyncio.Runner()
        self._long = ProviderStats()
        self._left: dict[int, int] = {}
        self.process_secs = 0.0
        self._began_at: dict[int, float] = {}
        for number in range(ALIVE):
            self._at(number * TURNS * self._think_secs / ALIVE, self._call)

    def close(self) -> None:
        """End the loop on which the processes exchange."""
        self._runner.close()

    def _call(self) -> None:
        if not self._calls:
            return
        self._calls -= 1
        stats = self._long
        if self._url is not None:
            stats = ProviderStats(RedisStore(self._url))
            assert stats.fleet is not None
            stats.fleet.clock = lambda: EPOCH + self.now
            if not self.heeds:
                setattr(stats.accounts, "heed", lambda sums: None)  # noqa: B010
            stats.fleet.want([backend.key for backend in self._backends])
            self._sync(stats, adds=False)
            self._later(stats)
        self._left[id(stats)] = self._left.get(id(stats), 0) + TURNS
        self._began_at[id(stats)] = self.now
        self._at(self.now + 1.0, partial(self._begin, stats))

    def _sync(self, stats: ProviderStats, **how: bool) -> None:
        assert stats.fleet is not None
        self._runner.run(self._exchange(stats, how))

    async def _exchange(self, stats: ProviderStats, how: dict[str, bool]) -> None:
        assert stats.fleet is not None
        assert await stats.fleet.sync(**how)

    def _again(self, stats: ProviderStats) -> None:
        if self._left.get(id(stats)):
            self._sync(stats)
            self._later(stats)

    def _later(self, stats: ProviderStats) -> None:
        secs = EVERY_SECS * self._rng_of_calls.uniform(0.8, 1.2)
        self._at(self.now + secs, partial(self._again, stats))

    def _next(self, stats: ProviderStats, at: float) -> None:
        self._left[id(stats)] -= 1
        if self._url is None:  # which caller has hung up does not matter
            ends = self._left[id(stats)] % TURNS == 0
            self._at(at, self._call if ends else partial(self._begin, stats))
        elif self._left[id(stats)]:
            self._at(at, partial(self._begin, stats))
        else:
            del self._left[id(stats)]
            self.process_secs += self.now - self._began_at.pop(id(stats))
            self._sync(stats, adds=True, reads=False)
            self._runner.run(self._leave(stats))
            self._at(at, self._call)

    async def _leave(self, stats: ProviderStats) -> None:
        assert stats.fleet is not None
        await stats.fleet._store.close()


def measured(calls: Calls) -> dict[str, Any]:
    """Run calls to their end, and return what came of them."""
    calls.run(float("inf"))
    extra = sum(reason == "hedge" for _, reason in calls.sent) / len(calls.began)
    late = [at for at, reason in calls.sent if reason == "hedge" and at >= SLOW_FROM]
    late_turns = sum(at >= SLOW_FROM for at in calls.began)
    return {
        "turns": len(calls.waits),
        **{f"p{100 * p:g}": round(calls.p(p, 0, float("inf")), 3) for p in (0.5, 0.95, 0.99)},
        "hedges per turn": round(extra, 4),
        "after ten minutes": round(len(late) / max(late_turns, 1), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--no-fleet-budget", action="store_true")
    options = parser.parse_args(arguments)
    policy = HedgePolicy.adaptive(options.budget)
    long = Calls(policy, options.calls, None, slow=options.slow)
    print("one long process:", measured(long))
    with RedisServer() as server:
        url = f"redis://127.0.0.1:{server.port}"
        calls = Calls(policy, options.calls, url, slow=options.slow)
        calls.heeds = not options.no_fleet_budget
        before: Any = server.control.info("all")
        print("a process a call:", measured(calls))
        after: Any = server.control.info("all")
        secs, rose = calls.process_secs, lambda name: after[name] - before[name]
        sent = rose("total_net_input_bytes") + rose("total_net_output_bytes")
        print(
            f"Redis: {rose('total_commands_processed') / secs:.2f} commands and "
            f"{sent / secs / 1000:.2f} KB per second and process, "
            f"{after['used_memory_dataset'] / 1e6:.1f} MB kept"
        )
        by_name = {
            name.removeprefix("cmdstat_"): counted["calls"]
            for name, counted in after.items()
            if name.startswith("cmdstat_")
        }
        print("commands:", dict(sorted(by_name.items(), key=lambda each: -each[1])[:8]))
        calls.close()


if __name__ == "__main__":
    main()
