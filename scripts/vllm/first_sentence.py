"""Measures the time to the first sentence, with and without speculative decoding.

A sentence is ``TOKENS`` tokens. The server is started twice; each number of callers asks ``ROUNDS``
times each, with prompts of their own that repeat a phrase, as an order that is read back does.
At temperature 0 a model of random weights repeats itself and every guess is right: the most to
gain. At temperature 1 it repeats nothing and little is guessed: what the setting itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from statistics import median

import aiohttp
from scripts.vllm.server import VLLMProcess

TOKENS = 12
"""The tokens of a sentence: some ten words."""
ROUNDS = 5
CALLERS = (1, 4, 16, 64)
NGRAM = (
    '{"method": "ngram", "num_speculative_tokens": 4,'
    ' "prompt_lookup_min": 2, "prompt_lookup_max": 5}'
)
WORDS = ("table", "four", "seven", "Friday", "evening", "window", "name", "Miller", "phone", "two")


async def sentence(
    session: aiohttp.ClientSession, url: str, rng: random.Random, temperature: float
) -> list[float]:
    """Ask once; the seconds to the first token and to the sentence's end."""
    phrase = " ".join(rng.sample(WORDS, 8))
    request = {
        "model": "measured",
        "prompt": f"Repeat this order: {phrase}. {phrase}. {phrase}.",
        "max_tokens": TOKENS,
        "temperature": temperature,
        "ignore_eos": True,
        "stream": True,
    }
    began, first = time.monotonic(), 0.0
    async with session.post(f"{url}/completions", json=request) as answer:
        answer.raise_for_status()
        async for _ in answer.content:
            first = first or time.monotonic() - began
    return [first, time.monotonic() - began]


async def accepted(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """The guessed tokens so far, and those of them that were right."""
    async with session.get(f"{url.removesuffix('/v1')}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    names = (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    )
    drafted, right = (sum(float(x.split()[-1]) for x in lines if x.startswith(n)) for n in names)
    return drafted, right


async def measure(url: str, temperature: float = 0) -> list[str]:
    """A row for each number of callers."""
    rows: list[str] = []
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits) as session:
        rng = random.Random(1)
        await asyncio.gather(
            *(sentence(session, url, rng, temperature) for _ in range(4))
        )  # warms up
        for callers in CALLERS:
            before = await accepted(session, url)
            found: list[list[float]] = []
            for _ in range(ROUNDS):
                asked = (sentence(session, url, rng, temperature) for _ in range(callers))
                found += await asyncio.gather(*asked)
            drafted, right = (
                b - a for a, b in zip(before, await accepted(session, url), strict=True)
            )
            token, end = (median(times) for times in zip(*found, strict=True))
            share = f"{right / drafted:.0%}" if drafted else "-"
            rows.append(f"{callers:7} {1000 * token:8.0f} ms {1000 * end:8.0f} ms {share:>9}")
    return rows


def main() -> None:
    """Start the server without and with speculation, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small", help="a model for vllm serve")
    parser.add_argument("--speculative-config", default=NGRAM, metavar="JSON")
    args = parser.parse_args()
    for name, options in (
        ("without", ()),
        ("with", ("--speculative-config", args.speculative_config)),
    ):
        with VLLMProcess(args.model, *options, name="measured") as server:
            for temperature in (0, 1):
                print(f"{name} speculation, temperature {temperature}")
                print("callers  1st token   sentence  accepted")
                print("\n".join(asyncio.run(measure(server.base_url, temperature))), flush=True)


if __name__ == "__main__":
    main()
