"""Prepares prompts for vLLM's prefix cache: stable tool order, and prefill requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ordered_tools", "prefill_request"]

_PROMPT_FIELDS = (
    *("chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs", "cache_salt"),
    "priority",
)
"""Fields of ``extra_body`` that a prefill keeps: they change the prompt or its priority."""


def ordered_tools(tools: Sequence[Any], *, strict: bool) -> list[Any]:
    """Sort tools by name.

    A chat template puts the tools before the conversation: another order would miss the prefix
    cache.

    Args:
        tools: In chat completion format.
        strict: Whether the server enforces the tools' schemas.
    """
    ordered = sorted(tools, key=lambda tool: str(tool.get("function", {}).get("name", "")))
    if not strict:
        return ordered
    return [{**tool, "function": {**tool["function"], "strict": True}} for tool in ordered]


def prefill_request(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that prefills a prompt and generates one token.

    Args:
        params: The request of a turn with this prompt.
    """
    messages = params["messages"]
    if not messages or messages[-1]["role"] != "user":  # many templates require a user message
        messages = [*messages, {"role": "user", "content": "Hello"}]
    extra = params.get("extra_body", {})
    request: dict[str, Any] = {
        "model": params["model"],
        "messages": messages,
        "stream": False,
        "max_tokens": 1,
        "extra_body": {name: extra[name] for name in _PROMPT_FIELDS if name in extra},
    }
    if isinstance(tools := params.get("tools"), list):
        request["tools"] = tools
        # The tools are part of the prompt; a forced call is not.
        choice = params.get("tool_choice")
        request["tool_choice"] = "none" if isinstance(choice, str | dict) else choice
    return request
