"""Measures a vLLM as callers hear it: first token and first sentence, under load and in races.

    python -m scripts.vllm.latency                        # a tiny model: shows that it runs
    python -m scripts.vllm.latency --model Qwen/Qwen3-8B  # with a GPU
    python -m scripts.vllm.latency --base-url http://gpu:8000/v1

Parts: ``ladder`` (callers who ask at once, by a plain HTTP client, Pipecat's service for OpenAI and
``VLLMService`` by turns), ``first_turn`` (without and with ``warm``), ``race`` (with a simulated
hosted provider) and ``queue`` (one and a half callers a seat). ``first_sentence`` measures
speculative decoding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from scripts.vllm import callers
from scripts.vllm.callers import CLIENTS, MODES, Answer, Clients, Target
from scripts.vllm.server import MADE, VLLMProcess, has_gpu

PARTS = "ladder,first_turn,race,queue"
TURNS = 12
"""Of each caller in a race."""
QUEUE_SECS = 25.0
CARD = "nvidia-smi --query-gpu=name --format=csv,noheader"
AT = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def rows_of(part: str, prompt: int, count: int, answers: list[Answer]) -> list[dict[str, Any]]:
    """What the answers of each group took, in milliseconds.

    A row of the service says how much of its median TTFT a plain client has not (``share``).
    """
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.group, []).append(answer)
    rows: list[dict[str, Any]] = []
    plain: dict[str, float] = {}
    for group, found in groups.items():
        row: dict[str, Any] = {"part": part, "prompt": prompt, "callers": count, "group": group}
        for name in ("ttft", "sentence"):
            ms = sorted(1000 * getattr(answer, f"{name}_secs") for answer in found)
            row[f"{name}_ms"] = {
                key: round(ms[min(len(ms) - 1, int(share * len(ms)))], 1)
                for key, share in AT.items()
            }
        for name in ("prompt_tokens", "cached_tokens", "attempts"):
            row[name] = round(statistics.mean(getattr(answer, name) for answer in found), 3)
        row["n"] = len(found)
        row["local_won"] = sum(answer.winner == "local" for answer in found)
        client, _, cache = group.partition(", ")
        if part == "ladder" and client == "plain":
            plain[cache] = row["ttft_ms"]["p50"]
        elif part == "ladder":
            row["share"] = round(1 - plain[cache] / row["ttft_ms"]["p50"], 4)
        rows.append(row)
    return rows


HEADER = f"{'':11}prompt callers {'':20}     TTFT      p95      p99 sentence      p95     n cached"


def line_of(row: dict[str, Any]) -> str:
    """A row of the table."""
    ttft, sentence = row["ttft_ms"], row["sentence_ms"]
    times = [ttft["p50"], ttft["p95"], ttft["p99"], sentence["p50"], sentence["p95"]]
    more = f"its share {row['share']:.1%}" if "share" in row else ""
    if row["local_won"] or row["attempts"] > 1:
        more = f"{row['attempts']:.2f} attempts a turn, local won {row['local_won']}"
    return (
        f"{row['part']:10} {row['prompt']:6} {row['callers']:7} {row['group']:20}"
        + "".join(f"{ms:9.1f}" for ms in times)
        + f"{row['n']:6} {row['cached_tokens']:6.0f}  {more}"
    )


def ladder(clients: Clients, target: Target, words: int, count: int, rounds: int) -> list[Answer]:
    """The clients by turns, so that all meet the same server."""
    found: dict[str, list[Answer]] = {client: [] for client in CLIENTS}
    for number in range(rounds):
        for client in list(found)[:: -1 if number % 2 else 1]:
            found[client] += clients.run(
                callers.ladder, count, target=target, client=client, words=words
            )
    return [answer for client in found for answer in found[client]]


def measure(
    clients: Clients, target: Target, args: argparse.Namespace
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each part, as soon as they are there."""
    ratio = tokens_a_word(target)
    words = {tokens: int(tokens / ratio) for tokens in numbers(args.prompts)}
    counts = numbers(args.callers)
    least, few = min(words), min(16, max(counts))
    for tokens in words if "ladder" in args.parts else ():
        for count in counts:
            found = ladder(clients, target, words[tokens], count, max(args.rounds, 8 // count))
            yield rows_of("ladder", tokens, count, found)
    for tokens in words if "first_turn" in args.parts else ():
        options = {"target": target, "words": words[tokens], "rounds": args.rounds}
        yield rows_of("first_turn", tokens, 1, clients.run(callers.first_turns, 1, **options))
    for mode in MODES if "race" in args.parts else ():
        options = {"target": target, "words": words[least], "mode": mode, "turns": TURNS}
        yield rows_of("race", least, few, clients.run(callers.race, few, **options))
    if "queue" in args.parts:
        count = args.seats * 3 // 2
        options = {"target": target, "words": 200, "secs": QUEUE_SECS}
        found = clients.run(callers.full_server, count, **options)
        yield rows_of("queue", int(200 * ratio), count, sorted(found, key=lambda a: a.group))


# ---- the server and the command


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The answer's JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def tokens_a_word(target: Target) -> float:
    """How many tokens the words of the prompts have."""
    body = {"model": target.model, "prompt": callers.prose(1000)}
    return ask(f"{target.base_url.removesuffix('/v1')}/tokenize", body)["count"] / 1000


def numbers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Measure, print a table, and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="a model for vllm serve")
    parser.add_argument("--vllm-args", default="", help="of vllm serve, quoted as in a shell")
    parser.add_argument("--base-url", help="a running server instead, ends in /v1")
    parser.add_argument("--callers", help="default 1,4,16,64; of a made model without a GPU 1,4")
    parser.add_argument("--prompts", help="tokens, default 2000,6000, or 200,600")
    parser.add_argument("--seats", type=int, help="its --max-num-seqs, default the most callers")
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--extra-body", type=json.loads, default={}, help="JSON, in each request")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    args = parser.parse_args()
    small = args.model in MADE and not args.base_url and not has_gpu()
    args.callers = args.callers or ("1,4" if small else "1,4,16,64")
    args.prompts = args.prompts or ("200,600" if small else "2000,6000")
    args.seats = args.seats or max(numbers(args.callers))
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(Clients(args.processes))
        base_url = (
            args.base_url
            or stack.enter_context(
                VLLMProcess(
                    args.model, "--max-num-seqs", str(args.seats), *shlex.split(args.vllm_args)
                )
            ).base_url
        )
        served = ask(f"{base_url}/models")["data"][0]["id"]
        result: dict[str, Any] = {
            "card": subprocess.getoutput(CARD) if has_gpu() and not args.base_url else None,
            "vllm": ask(f"{base_url.removesuffix('/v1')}/version")["version"],
            "date": str(date.today()),
            "settings": {key: value for key, value in vars(args).items() if key != "out"},
            "rows": [],
        }
        print(HEADER)
        for rows in measure(clients, Target(base_url, served, args.extra_body), args):
            print("\n".join(map(line_of, rows)), flush=True)
            result["rows"] += rows
            if args.out:
                args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
