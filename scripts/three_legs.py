"""Voice to voice over WebRTC with trouble before, in and behind the model: bare and hedged.

    python -m scripts.three_legs [--rounds 3] [--share 0.1] [--out FOLDER]

Two example bots, one with Pipecat's services alone and one with all three hedged, have the same
simulated providers: a recogniser whose transcripts come 3 s late, a model with a tail, and a voice
that says nothing of a sentence, each in a share of the cases. Recordings call them by turns. Takes
some seven minutes a round of 32 turns each; nothing else may run beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from examples.voice_bot.services import SIMULATED_STT, SIMULATED_TTS
from examples.voice_bot.simulated_speech import recognize, speak

from pipecat_hedge.tools.simulator import Simulator

ROOT = Path(__file__).parents[1]
PORTS = {"bare": 7881, "hedged": 7882}
BOTS = {
    "bare": {"SIMULATED_STT": "deepgram", "SIMULATED_TTS": "cartesia", "HEDGE_POLICY": "off"},
    "hedged": {"SIMULATED_STT": "hedged", "SIMULATED_TTS": "hedged", "HEDGE_POLICY": "adaptive"},
}
COMMON = {
    "SIMULATED_MODELS": "gemma-4-31b-baseten claude-haiku-4-5",
    "TURN_DETECTION": "0.4",
    "PIPECAT_HEDGE_STATS": "off",
}


def start(kind: str, simulator_url: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a bot, and wait until it takes calls."""
    env = {**os.environ, **COMMON, **BOTS[kind], "SIMULATOR_URL": simulator_url}
    command = [sys.executable, "-m", "examples.voice_bot", "--port", str(PORTS[kind])]
    bot = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and bot.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[kind]}/simulated", timeout=2):
                return bot
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the {kind} bot did not start: see {log}")


def call(kind: str, out: Path) -> list[float | None]:
    """Have every recording call once; the seconds to each answer, None without one."""
    command = Path(sys.executable).with_name("pipecat-hedge")
    replay = [str(command), "replay", str(ROOT / "fixtures" / "audio")]
    target = ["--url", f"http://127.0.0.1:{PORTS[kind]}", "--report", str(out)]
    subprocess.run([*replay, *target, "--callers", "2"], stdout=subprocess.DEVNULL, check=False)
    found = json.loads((out / "replay.json").read_text())
    return [turn["voice_to_voice_secs"] for turn in found]


async def measure(rounds: int, share: float, out: Path) -> dict[str, list[float | None]]:
    """Call both bots by turns."""
    found: dict[str, list[float | None]] = {kind: [] for kind in BOTS}
    async with Simulator(transcripts=recognize, voice=speak) as simulator:
        recogniser, voice = SIMULATED_STT["simulated-deepgram"], SIMULATED_TTS["voice-1"]
        simulator.set_conditions(recogniser, fault="late", delay=3, rate=share)
        simulator.set_conditions(voice, fault="silent", rate=share)
        bots: list[subprocess.Popen[bytes]] = []
        try:
            for kind in BOTS:
                log = out / f"{kind}.log"
                bots.append(await asyncio.to_thread(start, kind, simulator.url, log))
            for number in range(rounds):
                for kind in sorted(BOTS, reverse=bool(number % 2)):
                    part = out / f"{kind}-{number}"
                    found[kind] += await asyncio.to_thread(call, kind, part)
                    print(f"round {number + 1}, {kind}: {len(found[kind])} turns", flush=True)
        finally:
            for bot in bots:
                bot.terminate()
    return found


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.1, help="of what is late or silent")
    parser.add_argument("--out", type=Path, help="keeps the reports of all calls")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="three-legs-"))
    out.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(args.rounds, args.share, out))
    print(f"\n{'':8}turns  answered    p50     p95     p99     max")
    for kind, turns in found.items():
        heard = sorted(secs for secs in turns if secs is not None)
        at = [heard[min(len(heard) - 1, int(share * len(heard)))] for share in (0.5, 0.95, 0.99)]
        row = "  ".join(f"{secs:5.2f} s" for secs in (*at, heard[-1]))
        print(f"{kind:8}{len(turns):5}  {len(heard):8}  {row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
