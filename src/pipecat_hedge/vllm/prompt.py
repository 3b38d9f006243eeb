"""How a prompt is sent to a vLLM so that its cache finds it again, and sent ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["one_token", "ordered_tools"]

_READ = ("chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs", "cache_salt")
"""What of ``extra_body`` makes a difference to how a prompt is read."""


def ordered_tools(tools: Sequence[Any], *, strict: bool) -> list[Any]:
    """Tools in the order of their names, whatever order the bot has them in.

    A chat template puts the tools in front of the conversation, so that in another order they would
    have the server read all of it again.

    Args:
        tools: In the format of a chat completion.
        strict: Whether the server is to hold calls to their schemas.
    """
    ordered = sorted(tools, key=_name)
    if not strict:
        return ordered
    return [{**tool, "function": {**tool["function"], "strict": True}} for tool in ordered]


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def one_token(params: Mapping[str, Any]) -> dict[str, Any]:
    """The request that has a prompt read, and no more.

    Args:
        params: What a turn with this prompt would send.
    """
    messages = params["messages"]
    if not messages or messages[-1]["role"] != "user":  # templates want somebody to answer
        messages = [*messages, {"role": "user", "content": "Hello"}]
    extra = params.get("extra_body", {})
    wanted: dict[str, Any] = {
        "model": params["model"],
        "messages": messages,
        "stream": False,
        "max_tokens": 1,
        "extra_body": {k: extra[k] for k in (*_READ, "priority") if k in extra},
    }
    if isinstance(tools := params.get("tools"), list):
        wanted["tools"] = tools
        # All of them are read; a call that the bot wants to force is not.
        choice = params.get("tool_choice")
        wanted["tool_choice"] = "none" if isinstance(choice, str | dict) else choice
    return wanted
