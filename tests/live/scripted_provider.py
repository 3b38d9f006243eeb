"""Providers whose next answers a test writes down."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from pipecat.services.llm_service import LLMService

from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import simulated

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
End: TypeAlias = Literal["whole", "hangs", "keeps alive", "resets"]
FAULTS: dict[End, str] = {
    "hangs": "hang",
    "keeps alive": "keepalives,delay=0.2",
    "resets": "reset",
}


@dataclass(frozen=True)
class Reply:
    """How a provider treats one request.

    Parameters:
        end: ``whole`` answers; ``hangs`` never responds; ``keeps alive`` sends headers and comments
            only; ``resets`` closes the connection at once.
        first_secs: The time to the first token of the answer.
        thinks: Whether reasoning is sent until then.
        status: The status of an error; None is none.
    """

    end: End = "whole"
    first_secs: float = 0.1
    thinks: bool = False
    status: int | None = None

    @property
    def behaviour(self) -> str:
        """The simulator's name of it."""
        keys = {"headers": 0, "ttft": self.first_secs, "tps": 200, "answer": quote(ANSWER)}
        if self.thinks:
            keys |= {"ttft": 0, "tps": 20, "fault": f"reasoning,delay={self.first_secs}"}
        elif self.status is not None:
            keys |= {"ttft": 0, "fault": self.status}
        elif self.end != "whole":
            keys["fault"] = FAULTS[self.end]
        return "fixed@" + ",".join(f"{key}={value}" for key, value in keys.items())


HANGS, RESETS = Reply("hangs"), Reply("resets")


@dataclass
class Request:
    """A request as it came: the loop's time, the turn that it asks, and the body."""

    at: float
    turn: int
    body: dict[str, Any]


class ScriptedProvider(Simulator):
    """A provider on a port of its own.

    Attributes:
        name: Its name in the race.
        wire: ``openai`` or ``anthropic``.
        reply: The reply to every request, or a function of the request's body.
        once: The replies to the next requests, in order, before that.
        requests: What came so far.
    """

    def __init__(
        self,
        name: str,
        wire: str,
        reply: Reply | Callable[[dict[str, Any]], Reply] | None = None,
        once: Sequence[Reply] = (),
    ):
        super().__init__(seed=1)
        self.name, self.wire, self.reply, self.once = name, wire, reply or Reply(), [*once]
        self.requests: list[Request] = []

    def behaviour_of(self, body: dict[str, Any]) -> str:
        turns = re.findall(r"Question (\d+)", json.dumps(body))
        now = asyncio.get_running_loop().time()
        self.requests.append(Request(now, int(turns[-1]) if turns else 0, body))
        if self.once:
            return self.once.pop(0).behaviour
        return (self.reply if isinstance(self.reply, Reply) else self.reply(body)).behaviour

    def service(self) -> LLMService[Any]:
        """A new Pipecat service that asks this provider."""
        return simulated(self.wire, self, "m")

    def asked(self, turn: int) -> int:
        """The number of requests of a turn."""
        return sum(request.turn == turn for request in self.requests)


@asynccontextmanager
async def scripted_providers(*providers: ScriptedProvider) -> AsyncIterator[None]:
    """Have providers listen."""
    async with AsyncExitStack() as stack:
        for provider in providers:
            await stack.enter_async_context(provider)
        yield
