"""Measures the cost of sharing statistics through Redis: memory, commands, bytes and time.

Starts a Redis server, lets eight processes' registries share their observations of three
providers, and prints Redis's counters. Run it with ``python -m scripts.fleet_cost``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import subprocess
import tempfile
import time
from typing import Any, cast

import redis

from pipecat_hedge.fleet import FleetSync, RedisStore
from pipecat_hedge.providers import PROFILES, Backend
from pipecat_hedge.service import ProviderStats

PROVIDERS = ("claude-haiku-4-5", "gpt-4.1", "gemma-4-31b-baseten")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=40, help="per process, 0.15 turns a second")
    parser.add_argument("--seconds", type=int, default=600, help="of the fleet's time")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        server = subprocess.Popen(
            ["redis-server", *(text for k, v in options.items() for text in (f"--{k}", str(v)))],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            next(line for line in server.stdout if "Ready to accept connections" in line)
            with redis.Redis(port=port, decode_responses=True) as control:
                asyncio.run(measure(control, port, args.processes, args.sessions, args.seconds))
        finally:
            server.kill()
            server.wait()


async def measure(
    control: redis.Redis, port: int, processes: int, sessions: int, seconds: int
) -> None:
    """Simulate the fleet as fast as possible: one exchange per process and second."""
    rng = random.Random(1)
    stores = [RedisStore(f"redis://127.0.0.1:{port}") for _ in range(processes)]
    fleet = [ProviderStats(store) for store in stores]
    for stats in fleet:
        stats.accounts.begin_turn(0.1)
        await _sync(stats, 0)
    before = _counted(control)
    cpu: list[float] = []
    for second in range(seconds):
        for stats in fleet:
            for turn in range(round(sessions * 0.15)):
                name = rng.choice(PROVIDERS)
                latency = stats.latency(Backend(name.split("-")[0], name))
                secs = PROFILES[name].quantile(rng.random())
                tokens = rng.choice([900, 9000])
                latency.record(secs, censored=turn % 12 == 0, prompt_tokens=tokens)
                latency.record_sentence(rng.uniform(0.05, 0.4), censored=False)
            began = time.thread_time()
            await _sync(stats, second)
            cpu.append(time.thread_time() - began)
    used = {name: value - before[name] for name, value in _counted(control).items()}
    a_second = {name: value / (processes * seconds) for name, value in used.items()}
    memory = {
        kind: sum(
            cast(int, control.memory_usage(key, samples=0))
            for key in control.scan_iter(f"*:{kind}:*")
        )
        for kind in ("latency", "processes")
    }
    p99 = statistics.quantiles(cpu, n=100)[98]
    figures = {
        "memory": f"{memory['latency'] / 1024 / processes:.1f} KiB per process and hour, and "
        f"{memory['processes'] / 1024:.1f} KiB for all processes",
        "commands": f"{a_second['calls']:.1f} per process and second, {a_second['usec']:.0f} µs",
        "bytes": f"{a_second['in'] / 1024:.1f} KiB sent, {a_second['out'] / 1024:.1f} KiB received "
        "per process and second",
        "processor time": f"{statistics.mean(cpu) * 1e3:.1f} ms per exchange, p99 {p99 * 1e3:.1f} "
        "ms, in steps",
    }
    print(f"{processes} processes, {sessions} sessions each, {len(PROVIDERS)} providers:")
    for name, value in figures.items():
        print(f"  {name:16}{value}")
    for store in stores:
        await store.close()


async def _sync(stats: ProviderStats, second: int) -> None:
    assert isinstance(stats.fleet, FleetSync)
    if not await stats.fleet.sync(latencies=second % stats.fleet.latencies_every == 0):
        raise SystemExit("the Redis that was started here does not answer")


def _counted(control: redis.Redis) -> dict[str, float]:
    figures = cast(dict[str, Any], control.info("all"))
    names = ("time", "hlen", "hrandfield", "hset", "expire")
    commands = [figures.get(f"cmdstat_{name}", {"calls": 0, "usec": 0}) for name in names]
    return {
        "calls": sum(each["calls"] for each in commands),
        "usec": sum(each["usec"] for each in commands),
        "in": figures["total_net_input_bytes"],
        "out": figures["total_net_output_bytes"],
    }


if __name__ == "__main__":
    main()
