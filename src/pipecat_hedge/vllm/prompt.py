"""Prepares prompts for a vLLM's prefix cache: always in the same order, and sent ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ordered_tools", "prefill_request"]

_PROMPT_FIELDS = (
    *("chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs", "cache_salt"),
    "priority",
)
"""What a prefill keeps of ``extra_body``: what changes the prompt, and when it is read."""


def ordered_tools(tools: Sequence[Any], *, strict: bool) -> list[Any]:
    """Tools in the order of their names, whatever order the bot has them in.

    A chat template puts the tools in front of the conversation: in another order, the server would
    read all of it again.

    Args:
        tools: In the format of a chat completion.
        strict: Whether the server is to hold calls to their schemas.
    """
    ordered = sorted(tools, key=lambda tool: str(tool.get("function", {}).get("name", "")))
    if not strict:
        return ordered
    return [{**tool, "function": {**tool["function"], "strict": True}} for tool in ordered]


def prefill_request(params: Mapping[str, Any]) -> dict[str, Any]:
    """The request that has a prompt read, and one token written.

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
