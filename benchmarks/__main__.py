"""Plays the same turns to every peer, and writes the table: `python -m benchmarks`.

One peer after the other; the turns with faults are played when the next peer has begun, since they
mostly wait. Every turn is a line in out/benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import page, proxies
from benchmarks.peers import ENVIRONMENTS, PEERS, VERSIONS, Peer
from benchmarks.sections import Section

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks/.envs"
OUT = ROOT / "out/benchmarks"
QUIET = {
    "PIPECAT_HEDGE_STATS": "off",  # nothing is learned from an earlier run
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would be loaded from the internet
}


def make_environment(name: str) -> str:
    """Create an environment, or use it as it is; its version, or "" if it cannot be installed."""
    folder, wanted = FOLDER / name, " ".join(ENVIRONMENTS[name])
    python, stamp = folder / "bin/python", folder / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing into {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*install, *ENVIRONMENTS[name]], cwd=ROOT, capture_output=True)
        if done.returncode:
            print(f"{name} is left out: {done.stderr.decode().strip().splitlines()[-1]}")
            return ""
        stamp.write_text(wanted)
    asked = f"import importlib.metadata as m; print(m.version({VERSIONS.get(name, name)!r}))"
    found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    return found.stdout.strip()


class Turn:
    """One peer's time alone on the machine; it may end before the block does."""

    def __init__(self, lock: asyncio.Lock):
        self._lock, self._is_held = lock, False

    async def __aenter__(self) -> Turn:
        self._is_held = await self._lock.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the next peer begin."""
        if self._is_held:
            self._is_held = False
            self._lock.release()


async def play(
    peer: Peer, played: Sequence[Section], bin_folder: Path, measuring: asyncio.Lock
) -> dict[str, Any]:
    """Play the sections to a peer: its turns, its processor time, and what its providers saw."""
    env = os.environ | QUIET | {"PYTHONPATH": str(ROOT)}
    result: dict[str, Any] = {"name": peer.name, "turns": [], "cpu_secs": {}}
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(Turn(measuring))
        provider = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.provider", cwd=ROOT, stdout=subprocess.PIPE
        )
        stack.push_async_callback(_end, provider)
        assert provider.stdout is not None
        root = (await provider.stdout.readline()).decode().strip()
        url, session = f"{root}/v1", 0
        if peer.proxy:
            proxy = proxies.running(peer.proxy, FOLDER, url)
            url, session = await asyncio.to_thread(stack.enter_context, proxy)
        arguments = [peer.kind, url, json.dumps([asdict(section) for section in played])]
        process = await asyncio.create_subprocess_exec(
            bin_folder / "python",
            *("-m", peer.module, *arguments),
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        stack.push_async_callback(_end, process)
        assert process.stdout is not None
        began_secs, before = dict[str, float](), _processors()
        async for raw in process.stdout:
            line = json.loads(raw)
            if "section" in line:
                result["turns"].append(line)
            elif section := line.get("begins"):
                began_secs[section] = proxies.cpu_secs(session) if session else 0.0
            elif section := line.get("ends"):
                of_proxy = proxies.cpu_secs(session) - began_secs[section] if session else None
                result["cpu_secs"][section] = of_proxy or line["cpu_secs"]
            elif "nearly_idle" in line:
                used, idle = (b - a for a, b in zip(before, _processors(), strict=True))
                result["busy"] = used / (used + idle)
                alone.end()
        if await process.wait():
            result["error"] = f"its process ended with {process.returncode}"
        result["requests"] = await asyncio.to_thread(_ledger, root)
    name = "".join(c if c.isalnum() else "-" for c in peer.name)
    (OUT / f"{name}.jsonl").write_text("".join(f"{json.dumps(t)}\n" for t in result["turns"]))
    print(f"{peer.name}: {len(result['turns'])} turns", flush=True)
    return result


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


def _processors() -> tuple[int, int]:
    """The machine's processor time in use, and idle, so far."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def _ledger(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/ledger?wait=2", timeout=30) as response:
        return json.load(response)["requests"]


async def play_all(
    peers: Sequence[Peer], turns: int, folders: dict[str, Path]
) -> list[dict[str, Any]]:
    """Play to all peers, in their order."""
    measuring = asyncio.Lock()

    async def play_one(peer: Peer) -> dict[str, Any]:
        try:
            return await play(peer, peer.played(turns), folders[peer.environment], measuring)
        except Exception as error:  # the others are measured nevertheless
            traceback.print_exc()
            return {"name": peer.name, "error": f"{type(error).__name__}: {error}"}

    return await asyncio.gather(*map(play_one, peers))


def main() -> int:
    """Make the environments, play, and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000, help="of a usual day (default 1000)")
    parser.add_argument("--only", default="", help="peers whose names have this in them")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/benchmarks.md")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    wanted = [peer for peer in PEERS if args.only.lower() in peer.name.lower()]
    names = dict.fromkeys(name for peer in wanted for name in peer.environments)
    versions = {name: make_environment(name) for name in names}
    peers = [peer for peer in wanted if all(versions[name] for name in peer.environments)]
    folders = {name: FOLDER / name / "bin" for name in names}
    results = asyncio.run(play_all(peers, args.turns, folders))
    (OUT / "results.json").write_text(json.dumps({"versions": versions, "results": results}))
    page.write(args.page, wanted, versions, results)
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
