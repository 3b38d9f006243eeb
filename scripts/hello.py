"""Asks 300 times for "Hello, world!", directly and through the proxy with 1, 2 and 3 requests each.

With ``ANTHROPIC_API_KEY`` set it asks the real API, otherwise simulated providers. It saves every
loser's answer and how far it deviates, and draws the distributions of the time to first token
(cumulative, from below), with the one that pairs of direct requests predict for two.
``--also NAME=COMMAND`` asks through a further proxy, which listens on ``PORT`` and asks
``ANTHROPIC_BASE_URL``. With the simulator it counts the tokens that were sent and not used.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anthropic import AsyncAnthropic
from jinja2 import Template
from scripts.other_proxy import other_proxy

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.simulator import SimulatorProcess

ASKED = "Hello, world!"
PROMPT = f"Say exactly '{ASKED}'"
MODEL = "claude-haiku-4-5"
FACTORS = (1, 2, 3)
COLOURS = {"direct": "#888", "1 request": "#4878cf", "2": "#d65f5f", "3": "#6acc65"}
COLOURS["predicted for 2"] = "#222"
OTHER_COLOUR = "#b47cc7"
AT_ONCE = 10


async def ask(client: AsyncAnthropic, model: str) -> float:
    """Ask once; the seconds to the first text."""
    began, first = time.monotonic(), None
    message = {"role": "user", "content": PROMPT}
    async with client.messages.stream(model=model, max_tokens=20, messages=[message]) as stream:  # pyright: ignore[reportArgumentType]
        async for _ in stream.text_stream:
            first = first or time.monotonic() - began
    return first or float("inf")


async def ask_often(url: str, key: str, model: str, count: int) -> list[float]:
    """Ask so often, ``AT_ONCE`` at a time; the seconds to each first text, sorted."""
    client, slots = AsyncAnthropic(api_key=key, base_url=url), asyncio.Semaphore(AT_ONCE)

    async def one() -> float:
        async with slots:
            return await ask(client, model)

    try:
        return sorted(await asyncio.gather(*(one() for _ in range(count))))
    finally:
        await client.close()


@asynccontextmanager
async def proxy(
    url: str, model: str, key_env: str | None, losers: str, log: Path
) -> AsyncIterator[str]:
    """A proxy with a model for each number of requests; its address."""
    names = "abc"
    models = {
        f"hello-{factor}": {
            "wire": "anthropic",
            "policy": f"race({factor}, losers={losers!r})",
            "upstreams": [
                {"name": name, "base_url": url, "model": model, "key_env": key_env}
                for name in names[:factor]
            ],
        }
        for factor in FACTORS
    }
    settings = {"listen": "127.0.0.1:0", "models": models, "drained_log": log}
    async with ProxyServer(ProxySettings.model_validate(settings), ProviderStats()) as server:
        yield f"http://127.0.0.1:{server.port}"


def quantile(sorted_secs: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted_secs[min(int(share * len(sorted_secs)), len(sorted_secs) - 1)]


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Draw the cumulative distributions."""
    most = max(quantile(secs, 0.995) for secs in found.values())
    lines = {
        name: " ".join(
            f"{60 + 620 * min(secs / most, 1):.1f},{320 - 280 * (n + 1) / len(each):.1f}"
            for n, secs in enumerate(each)
        )
        for name, each in found.items()
    }
    ticks = [most * n / 5 for n in range(6)]
    path.write_text(
        _PICTURE.render(lines=lines, colours=COLOURS, other=OTHER_COLOUR, ticks=ticks, most=most)
    )


_PICTURE = Template(
    """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 380" width="720" height="380" \
font-family="sans-serif" font-size="13">
<rect width="720" height="380" fill="#fff"/>
{%- for share in (0, 0.5, 0.9, 1) %}
<line x1="60" x2="680" y1="{{ 320 - 280 * share }}" y2="{{ 320 - 280 * share }}" stroke="#ddd"/>
<text x="52" y="{{ 324 - 280 * share }}" text-anchor="end">{{ (100 * share) | int }} %</text>
{%- endfor %}
{%- for secs in ticks %}
<text x="{{ 60 + 620 * secs / most }}" y="340" text-anchor="middle">{{ '%.1f' % secs }} s</text>
{%- endfor %}
{%- for name, points in lines.items() %}
<polyline points="{{ points }}" fill="none" stroke="{{ colours.get(name, other) }}" \
stroke-width="2"{{ ' stroke-dasharray="5 4"' if 'predicted' in name }}/>
<text x="{{ 70 + 130 * loop.index0 }}" y="368" fill="{{ colours.get(name, other) }}">\
{{ name }}</text>
{%- endfor %}
</svg>
"""
)


def losers(log: Path) -> list[tuple[float, str]]:
    """The losers' answers with their deviation: 0 is the same, 1 has nothing in common."""
    lines = log.read_text().splitlines() if log.exists() else []
    texts = [json.loads(line)["text"].strip() for line in lines]
    return [(1 - difflib.SequenceMatcher(None, ASKED, text).ratio(), text) for text in texts]


def tokens(sim: SimulatorProcess) -> int:
    """The tokens that were sent since the last call, once every request has ended."""
    found = sim.ledger(wait_secs=60.0)
    sim.clear_ledger()
    return sum(each["tokens_sent"] for each in found["requests"])


async def main() -> None:
    """Ask, print a table, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="requests of each kind")
    parser.add_argument("--out", type=Path, default=Path("out/hello"))
    parser.add_argument("--losers", choices=["drain", "cancel"], default="drain")
    parser.add_argument("--answer", default=ASKED, help="what the simulator answers")
    parser.add_argument("--also", metavar="NAME=COMMAND", action="append", default=[])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "losers.jsonl"
    log.unlink(missing_ok=True)
    key = os.environ.get("ANTHROPIC_API_KEY")
    with SimulatorProcess(seed=1) as sim:
        url = "https://api.anthropic.com" if key else sim.anthropic_url
        model = MODEL if key else f"{MODEL}?answer={args.answer.replace(' ', '%20')}"
        found = {"direct": await ask_often(url, key or "any", model, args.count)}
        sent = {"direct": tokens(sim)}
        for name, _, command in (each.partition("=") for each in args.also):
            with other_proxy(command, url) as (address, _):
                found[name] = await ask_often(address, key or "any", model, args.count)
                sent[name] = await asyncio.to_thread(tokens, sim)
        key_env = "ANTHROPIC_API_KEY" if key else None
        async with proxy(url, model, key_env, args.losers, log) as through:
            for factor in FACTORS:
                name = "1 request" if factor == 1 else str(factor)
                found[name] = await ask_often(through, "any", f"hello-{factor}", args.count)
                sent[name] = await asyncio.to_thread(tokens, sim)
            await asyncio.sleep(2.0)  # the last losers
    rng, direct = random.Random(1), found["direct"]
    found["predicted for 2"] = sorted(min(rng.sample(direct, 2)) for _ in range(10 * args.count))
    print(f"{'real API' if key else 'simulated'}: time to first token of {args.count} requests")
    for name, secs in found.items():
        shown = "  ".join(f"{quantile(secs, q):6.2f}" for q in (0.5, 0.9, 0.99, 1.0))
        more = f"  {sent[name]} tokens sent" if sent.get(name) else ""
        print(f"{name:16} p50, p90, p99, max: {shown} s{more}")
    answers = losers(log)
    other = sum(deviation > 0 for deviation, _ in answers)
    worst = max(answers, default=(0.0, ""))
    print(
        f"{len(answers)} losers: {other} answered otherwise, the worst {worst[0]:.0%}: {worst[1]!r}"
    )
    (args.out / "deviations.json").write_text(json.dumps(answers, indent=0))
    draw(found, args.out / "hello.svg")
    print(f"picture: {args.out / 'hello.svg'}; losers: {log}, {args.out / 'deviations.json'}")


if __name__ == "__main__":
    asyncio.run(main())
