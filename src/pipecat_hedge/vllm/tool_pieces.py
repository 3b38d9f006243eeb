"""Tool calls put together from the pieces in which a chat completion streams them. Pure.

The problem: a stream tells its calls apart by ``index``, and the first piece of each carries its id
and name. So says the protocol; servers differ. Two calls come in one piece, both carry index 0, the
id comes after the name or never, the name is repeated in every piece. The naive loop, which begins
a new call where the index changes, then loses calls or runs one under another's arguments.

Ours goes by what cannot be the same for two calls, the strongest first: another id is another call;
another index is another call; and a name that comes when the arguments so far are complete begins
another call, too. A call whose id never came is given one, since the conversation refers to it by
that. Arguments that are not a JSON object are an error: run without them, a tool does something
else than was asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pipecat_hedge.race.errors import HedgeError

__all__ = ["MalformedToolCall", "ToolCall", "ToolPieces"]


class MalformedToolCall(HedgeError):
    """A tool call that came without its name, or without complete arguments."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call.

    Parameters:
        id: What its result will refer to.
        name: The tool.
        arguments: A JSON object, as text.
    """

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str | None
    name: str = ""
    arguments: str = ""

    def is_complete(self) -> bool:
        return bool(self.name) and _object_in(self.arguments) is not None


class ToolPieces:
    """Collects one answer's pieces.

    Example::

        pieces = ToolPieces()
        pieces.feed(index=0, id="a", name="book", arguments='{"day": ')
        pieces.feed(index=0, id=None, name=None, arguments='"Sunday"}')
        pieces.finish(new_id)  # (ToolCall(id="a", name="book", arguments='{"day": "Sunday"}'),)
    """

    def __init__(self) -> None:
        """Begin an answer."""
        self._calls: list[_Call] = []

    def feed(
        self, *, index: int | None, id: str | None, name: str | None, arguments: str | None
    ) -> None:
        """Take a piece.

        Args:
            index: Which call it says that it belongs to; None if it does not say.
            id: The call's id, or None.
            name: The tool's name, or a piece of it; or None.
            arguments: A piece of the arguments, or None.
        """
        call = self._call_of(index, id, name)
        if id:
            call.id = id
        if name and name != call.name and not call.arguments:
            call.name += name
        if arguments:
            call.arguments += arguments

    def _call_of(self, index: int | None, id: str | None, name: str | None) -> _Call:
        if id:
            for call in self._calls:
                if call.id == id:
                    return call
        same = [call for call in self._calls if index is None or call.index == index]
        latest = same[-1] if same else None
        if (
            latest is None
            or (id and latest.id)
            or (name and latest.arguments and latest.is_complete())
        ):
            latest = _Call(index, None)
            self._calls.append(latest)
        return latest

    def finish(self, new_id: Callable[[], str]) -> tuple[ToolCall, ...]:
        """End the answer.

        Args:
            new_id: Makes an id for a call whose own never came; unique in the conversation.

        Returns:
            The calls, in the order in which they began.

        Raises:
            MalformedToolCall: If one has no name, or its arguments are not a JSON object.
        """
        found: list[ToolCall] = []
        for call in self._calls:
            if not call.name:
                raise MalformedToolCall("a tool call came without the tool's name")
            arguments = call.arguments.strip() or "{}"
            if _object_in(arguments) is None:
                raise MalformedToolCall(
                    f"the call of {call.name} came with arguments that are not a JSON object, "
                    "as when an answer is cut off: raise max_tokens if it has reached that"
                )
            found.append(ToolCall(call.id or new_id(), call.name, arguments))
        return tuple(found)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
