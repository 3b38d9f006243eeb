"""Real vLLM servers; `make test-vllm` sees to it that they can be started."""

from __future__ import annotations

import os
from collections.abc import Iterator

import aiohttp
import pytest
from scripts.vllm.server import VLLMProcess

from pipecat_hedge.vllm_metrics import Counts, read_counts

if "TEST_VLLM" not in os.environ:  # make test-vllm sets it
    collect_ignore_glob = ["test_*.py"]  # pyright: ignore[reportConstantRedefinition]


@pytest.fixture(scope="session")
def vllm() -> Iterator[VLLMProcess]:
    """A server of the tiny model that several tests share."""
    with VLLMProcess("tiny", "--max-num-seqs", "16", *BLOCKS, name="tiny") as server:
        yield server


@pytest.fixture(scope="session")
def narrow_vllm() -> Iterator[VLLMProcess]:
    """One that answers two requests at once, and lets few wait."""
    narrow = ("--max-num-seqs", "2", "--max-num-queued-reqs", "12", *BLOCKS)
    with VLLMProcess("tiny", *narrow, name="tiny") as server:
        yield server


BLOCKS = ("--num-gpu-blocks-override", "512")
"""Memory enough for what is asked here."""


async def counts(server: VLLMProcess) -> Counts:
    """What a server counts now, asked directly."""
    url = server.base_url.removesuffix("/v1") + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        found = read_counts(await answer.text())
    assert found is not None
    return found
