"""The bench of a server, and what it says of what goes wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.tools.bench import llm_bench
from tests.support.fake_vllm import FakeVLLM, fake_vllm

pytestmark = pytest.mark.live


@contextmanager
def serving(**what: Any) -> Iterator[FakeVLLM]:
    """A server beside a command that has an event loop of its own."""
    found: list[FakeVLLM] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with fake_vllm(**what) as fake:
            found.append(fake)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(10)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def bench(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    llm_bench.configure(parser)
    return llm_bench.run(parser.parse_args(arguments))


def test_the_figures_are_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By level and prefix; tokens are those that the server counts, not the pieces."""
    out = tmp_path / "figures.json"
    answer = [{"content": "We are open."}, {"content": " Do come by."}]
    with serving(deltas=answer) as fake:
        status = bench(fake.url, "--levels", "1,2", "--requests", "4", "--out", str(out))
    assert status == 0
    kept = json.loads(out.read_text())
    assert [(load["concurrency"], load["prefix"]) for load in kept] == [
        (1, "cold"),
        (2, "cold"),
        (1, "warm"),
        (2, "warm"),
    ]
    assert all(load["requests"] == 4 and load["per_token_p50"] > 0 for load in kept)
    printed = capsys.readouterr().out
    assert "TTFT p50" in printed
    assert f"kept in {out}" in printed


def test_requests_that_fail_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """How many, why, and by the exit status; what broke off in the middle is not answered."""
    with serving(error={"message": "out of memory"}) as fake:
        status = bench(fake.url, "--levels", "1", "--requests", "2")
    printed = capsys.readouterr().out
    assert status == 1
    assert "0, 2 failed" in printed
    assert "1 at once, cold: 2 x out of memory" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["localhost:8000"], "base_url is no HTTP address"),
        (["http://127.0.0.1:9"], "write http://127.0.0.1:9/v1"),
        (["http://127.0.0.1:9/v1"], "start the server"),
        (["http://127.0.0.1:9/v1", "--race", "gpt-4.1"], "start the server"),
        (["http://127.0.0.1:9/v1", "--levels", "0"], "--levels 0: write numbers"),
        (["http://127.0.0.1:9/v1", "--turns", "3"], "--turns must be at least 20"),
        (["http://127.0.0.1:9/v1", "--out", "/no/such/x.json"], "--out: there is no folder"),
    ],
)
def test_what_cannot_be_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy is told, before anything is measured."""
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own words, and what to correct."""
    with serving() as fake:
        assert bench(fake.url, "--model", "large") == 2
        assert bench(fake.url, "--model", "large", "--race", "gpt-4.1") == 2
    told = capsys.readouterr().err
    assert told.count("The model `large` does not exist.") == 2
    assert "--model" in told
