"""Runs the example bot with a vLLM server: as the second provider of a race, or alone.

`make vllm` installs vLLM if needed. VLLM_BASE_URL selects a running server instead. VLLM_API_KEY is
the key of server and bot.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.vllm.server import BRIEF, MADE, VLLMProcess, has_gpu, vllm_home

HOSTED = "gemma-4-31b-baseten"
"""The simulated hosted provider that precedes the vLLM."""

ENDS_WITHIN_SECS = 3


def main() -> int:
    """Run both until Ctrl-C; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="make vllm",
        description="run the example bot on a vLLM server: second in a race, or alone",
    )
    parser.add_argument(
        "--model",
        help="a model for vllm serve, such as Qwen/Qwen3-8B; without a GPU a tiny model of random "
        "weights, whose answers are random words",
    )
    parser.add_argument("--alone", action="store_true", help="the vLLM alone, without a race")
    parser.add_argument("--port", default="7860", help="of the bot's page (default 7860)")
    parser.add_argument(
        "--vllm-args", default="", help="further arguments of vllm serve, quoted as in a shell"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so the child processes end
    gpu = has_gpu()
    if gpu and not args.model and "VLLM_BASE_URL" not in os.environ:
        print("make vllm: name a model: make vllm MODEL=Qwen/Qwen3-8B", file=sys.stderr)
        return 2
    try:
        if "VLLM_BASE_URL" not in os.environ:
            home = {"VLLM_HOME": str(vllm_home()), "PYTHON": os.environ.get("PYTHON", "python3")}
            make_env = ["sh", str(Path(__file__).parent / "make_env.sh")]
            subprocess.run(make_env, env={**os.environ, **home}, check=True)
        with _server(args.model or "tiny", shlex.split(args.vllm_args)) as base_url:
            return _bot(base_url, args)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"make vllm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0  # stopped by the user


@contextlib.contextmanager
def _server(model: str, arguments: list[str]) -> Iterator[str]:
    """Yield the address of a server: the user's, or one that runs while entered."""
    if "VLLM_BASE_URL" in os.environ:
        yield os.environ["VLLM_BASE_URL"]
        return
    server = VLLMProcess(model, *(BRIEF if model in MADE else ()), *arguments)
    print(f"Starting vLLM with {model} (log: {server.log}). The first start takes a while.")
    sys.stdout.flush()
    began = time.monotonic()
    with server:
        print(f"vLLM at {server.base_url} after {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
        yield server.base_url


def _bot(base_url: str, args: argparse.Namespace) -> int:
    settings = {"VLLM_BASE_URL": base_url}
    if args.alone:
        settings["HEDGE_POLICY"] = "off"
    else:
        settings.setdefault("SIMULATED_MODELS", os.environ.get("SIMULATED_MODELS", HOSTED))
    command = [sys.executable, "-m", "examples.voice_bot", "--port", args.port]
    bot = subprocess.Popen(command, env={**os.environ, **settings})
    try:
        return bot.wait()
    finally:
        try:
            bot.wait(ENDS_WITHIN_SECS)  # Ctrl-C in a terminal also reaches it
        except subprocess.TimeoutExpired:
            bot.terminate()
            bot.wait()


if __name__ == "__main__":
    sys.exit(main())
