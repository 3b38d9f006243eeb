"""Real vLLM servers; `make test-vllm` sees to it that they can be started."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from scripts.vllm.server import VLLMProcess

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
