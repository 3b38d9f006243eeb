"""Hedged services on scripted providers, and what becomes of their turns."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import FunctionCallResultFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams, LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.testing import ScriptedLLMService, Step
from tests.support.line import Line

NEVER = float("inf")


def scripted(*script: Step, **kwargs: Any) -> ScriptedLLMService:
    """A service that answers every turn alike."""
    return ScriptedLLMService(script, **kwargs)


def racing(
    *llms: LLMService[Any] | Provider, policy: HedgePolicy | None = None, **options: Any
) -> HedgedLLMService:
    """The services as providers a, b, c and so on."""
    providers = [
        llm if isinstance(llm, Provider) else Provider(name, llm)
        for name, llm in zip("abcdef", llms, strict=False)
    ]
    return HedgedLLMService(providers, policy=policy or HedgePolicy.race(len(llms)), **options)


def said(text: str = "Hello?") -> LLMContext:
    """A conversation of one message."""
    return LLMContext([{"role": "user", "content": text}])


async def asked(
    llm: LLMService[Any],
    turns: int = 1,
    *,
    context: LLMContext | None = None,
    pause_secs: float = 0.0,
    **options: Any,
) -> Line:
    """The line after some turns and their reports. ``options`` are the line's."""
    async with Line(llm, **options) as line:
        for _ in range(turns):
            await line.ask(context=context)
            await asyncio.sleep(pause_secs)
        if isinstance(llm, HedgedLLMService):
            await line.report(turns)
    return line


class Tool:
    """A tool that notes the calls it gets."""

    def __init__(self) -> None:
        self.calls: list[FunctionCallParams] = []

    async def run(self, params: FunctionCallParams) -> None:
        self.calls.append(params)
        await params.result_callback("done")

    def offered(self) -> LLMContext:
        """A conversation that offers the tool as ``book``."""
        context, party = said("A table, please."), {"party": {"type": "string"}}
        schema = FunctionSchema("book", "Books.", party, ["party"], handler=self.run)
        context.set_tools([schema])  # pyright: ignore[reportArgumentType]
        return context

    async def asked(self, llm: LLMService[Any], context: LLMContext | None = None) -> Line:
        """The line after a turn that ran a tool. The service has it as ``book``."""
        if context is None:
            llm.register_function("book", self.run)
        async with Line(llm) as line:
            await line.ask(context=context)
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            if isinstance(llm, HedgedLLMService):
                await line.report()
        return line


class Raising(ScriptedLLMService):
    """Raises an exception in every turn and inference."""

    def __init__(self, exception: BaseException):
        super().__init__([])
        self._exception = exception

    async def _play(self, *_: Any, **__: Any) -> None:
        raise self._exception

    async def run_inference(self, *_: Any, **__: Any) -> str | None:
        raise self._exception


class Inferring(ScriptedLLMService):
    """Answers an inference after some seconds, and turns by its script."""

    def __init__(self, answer: str | None = "In short.", secs: float = 0.0, *script: Step):
        super().__init__(script)
        self._answer, self._secs = answer, secs
        self.options: list[dict[str, Any]] = []

    async def run_inference(self, context: LLMContext, *_: Any, **options: Any) -> str | None:
        self.options.append(options)
        self.contexts.append(context)
        await asyncio.sleep(self._secs)
        return self._answer


def too_many_requests(retry_after_secs: float) -> httpx.HTTPStatusError:
    """A rejection with a Retry-After."""
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    headers = {"retry-after": f"{retry_after_secs:g}"}
    response = httpx.Response(429, headers=headers, request=request)
    return httpx.HTTPStatusError("too many", request=request, response=response)
