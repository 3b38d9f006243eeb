"""What a real vLLM rejects, and how the service explains it."""

from __future__ import annotations

import re

import pytest
from pipecat.utils.errors import ErrorCategory
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import VLLMService
from tests.support.line import Line

pytestmark = pytest.mark.vllm


async def test_a_prompt_that_is_too_long(vllm: VLLMProcess) -> None:
    """The error has both lengths, and the service stays usable: the next prompt may be shorter."""
    llm = VLLMService(base_url=vllm.base_url)
    async with Line(llm) as line:
        await line.ask("open the door " * 12_000)
        assert llm.is_usable
        await line.ask("Hello?")
    found = line.errors[0].error
    assert re.search(r"the prompt has (at least )?3\d{4} input tokens", found)
    assert "the server's limit is 32768 tokens" in found
    assert line.errors[0].category is ErrorCategory.APPLICATION
    assert line.text


async def test_an_address_beside_the_api(vllm: VLLMProcess) -> None:
    """The error says what base_url has to be."""
    llm = VLLMService(
        base_url=vllm.base_url.replace("/v1", "/api/v1"),
        settings=VLLMService.Settings(model="tiny"),
    )
    async with Line(llm) as line:
        await line.ask()
    assert "base_url must be the address" in line.errors[0].error
