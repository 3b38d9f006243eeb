"""A vLLM server of one's own, as a Pipecat LLM service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from loguru import logger
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    OpenAIError,
)
from pipecat.adapters.llm.services.open_ai_adapter import OpenAILLMInvocationParams
from pipecat.frames.frames import CancelFrame, EndFrame, StartFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.base_llm import OpenAILLMSettings
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.http import connection_limits
from pipecat.utils.types import assert_given, is_given

from pipecat_hedge.limits.priority import WORK_CLASSES, work, working_as
from pipecat_hedge.limits.server_load import ServerLoad
from pipecat_hedge.policy.arguments import refuse_unknown
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.race.usable import InlineThought
from pipecat_hedge.service.conversation import context_of
from pipecat_hedge.service.provider_client import Leave
from pipecat_hedge.vllm.errors import (
    VLLMError,
    explain,
    failed_in_mid_answer,
    nothing_answers,
    wrong_key,
)
from pipecat_hedge.vllm.prompt import one_token, ordered_tools
from pipecat_hedge.vllm.server import ServerUnreachable, VLLMServer, check_base_url
from pipecat_hedge.vllm.stream import ChatStream

__all__ = ["VLLMService", "VLLMSettings"]

KEEP_ALIVE_SECS = 4.0
"""vLLM closes a connection that has been idle for 5 s (``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``)."""
_NEW = {"model": "model=...", "params": "temperature=..., max_tokens=..."}
_T = TypeVar("_T")


@dataclass
class VLLMSettings(OpenAILLMSettings):
    """Settings of a ``VLLMService``.

    Parameters:
        model: What to ask for, as the server names it. Not given, or None: the first that it
            serves.
    """


class VLLMService(OpenAILLMService):
    """Asks a vLLM server, alone in a pipeline or as a provider of a race.

    What it adds to an OpenAI service with another ``base_url``: it finds out what the server
    serves, keeps reasoning out of the speech, gets tool calls right, sends the prompt ahead,
    tells the server which requests matter most, knows how busy it is, and says what to do when it
    does not answer.

    Example::

        VLLMService(base_url="http://localhost:8000/v1")

    Requests carry ``priority``, lower for what is more urgent: a turn's first request, the answer
    to a tool's result, a replacement, a hedge, a prompt sent ahead, a one-shot inference. A server
    heeds it when it was started with ``--scheduling-policy priority``.
    """

    Settings = VLLMSettings

    supports_developer_role = False  # chat templates know system, user, assistant and tool

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        priority: int | None = 0,
        warm: bool = True,
        strict_tools: bool = False,
        settings: VLLMSettings | None = None,
        **kwargs: Any,
    ):
        """Name the server.

        Args:
            base_url: Where its OpenAI-compatible API is; ends in ``/v1``.
            api_key: The key that it was started with, if any.
            priority: That of a turn's first request; what is less urgent adds 1 to 5. Give callers
                who may wait a larger one. None sends none at all.
            warm: Whether the prompt is sent ahead when a session starts, so that the server has
                read it before the caller's first turn. In a race the race decides.
            strict_tools: Whether the server is to hold calls to their tools' schemas while it
                writes them. It refuses schemas whose features its grammar does not know.
            settings: The model and how to sample; may change in a session.
            **kwargs: Further arguments of ``OpenAILLMService``.

        Raises:
            ConfigurationError: If an argument cannot work; the message says which, and the remedy.
        """
        refuse_unknown(kwargs, owner=VLLMService, base=OpenAILLMService)
        for old in ("model", "params"):
            if old in kwargs:
                raise ConfigurationError(f"{old}: write settings=VLLMService.Settings({_NEW[old]})")
        check_base_url(base_url)
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"priority must be a whole number, lower for what is more urgent, or None to send "
                f"none, got {priority!r}"
            )
        defaults = VLLMSettings(model=None)
        if settings is not None:
            defaults.apply_update(settings)
        # A key is sent in any case, and must not be the one in OPENAI_API_KEY.
        super().__init__(base_url=base_url, api_key=api_key or "EMPTY", settings=defaults, **kwargs)
        self._base_url = base_url
        self._server_key = api_key
        self._priority = priority
        self._warms = warm
        self._strict_tools = strict_tools
        self._holds: VLLMServer | None = None
        self._background = TaskScope()
        self._found_model: str | None = None

    def create_client(
        self, api_key: Any = None, base_url: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncOpenAI:
        """Make the client; see ``BaseOpenAILLMService``.

        It reports a failure at once, and lets go of a connection before vLLM does: a request that
        is sent over one just as it is closed is lost.
        """
        limits = connection_limits(
            max_keepalive_connections=100, max_connections=1000, keepalive_expiry=KEEP_ALIVE_SECS
        )
        return AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            default_headers=kwargs.get("default_headers"),
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(limits=limits),
        )

    # ---- life cycle

    async def start(self, frame: StartFrame) -> None:
        """Look at the server from now on, and send the prompt ahead.

        Args:
            frame: The start frame.
        """
        await super().start(frame)
        if self._holds is None:
            self._holds = VLLMServer.shared(self._base_url, self._server_key)
            self._holds.hold()
        self._background.start(self._begin(), name=f"{self}: prepares")

    async def stop(self, frame: EndFrame) -> None:
        """Let go of the server.

        Args:
            frame: The end frame.
        """
        await super().stop(frame)
        await self._let_go()

    async def cancel(self, frame: CancelFrame) -> None:
        """Let go of the server.

        Args:
            frame: The cancel frame.
        """
        await super().cancel(frame)
        await self._let_go()

    async def cleanup(self) -> None:
        """Let go of the server, and close the connections to it."""
        await self._let_go()
        await super().cleanup()
        await self._client.close()

    async def _let_go(self) -> None:
        await self._background.close()
        held, self._holds = self._holds, None
        if held is not None:
            await held.release()

    async def _begin(self) -> None:
        context = context_of(self) if self._warms else None
        try:
            if context is None:
                await self._find_model()
            else:
                await self.warm(context)
        except Exception as error:  # the first turn will say so
            logger.debug(f"{self}: could not prepare: {type(error).__name__}")

    # ---- what it knows of the server

    @property
    def server_load(self) -> ServerLoad | None:
        """How busy the server is; None if nothing recent is known."""
        return None if self._holds is None else self._holds.load

    def _server(self) -> VLLMServer:
        return self._holds or VLLMServer.shared(self._base_url, self._server_key)

    async def _find_model(self, *, again: bool = False) -> None:
        if self._asked_model:
            return
        server = self._server()
        try:
            models = await server.models(again=again)
        except ServerUnreachable as error:
            if error.status in (401, 403):
                raise wrong_key(server) from error
            raise nothing_answers(server, str(error)) from error
        if not models:
            raise nothing_answers(server, "it serves no model")
        self._settings.model = self._found_model = models[0].name
        self._sync_model_name_to_metrics()
        logger.debug(f"{self}: asks for {models[0].name}")

    # ---- requests

    def build_chat_completion_params(
        self, params_from_context: OpenAILLMInvocationParams
    ) -> dict[str, Any]:
        """Build a request; see ``BaseOpenAILLMService``. Tools come in the order of their names."""
        params = super().build_chat_completion_params(params_from_context)
        if isinstance(tools := params.get("tools"), list):
            params["tools"] = ordered_tools(tools, strict=self._strict_tools)
        if self._priority is not None:
            rank = WORK_CLASSES.index(work())
            self._merge_extra_body(params, {"priority": self._priority + rank})
        return params

    async def get_chat_completions(self, context: LLMContext) -> Any:
        """Ask for an answer; see ``BaseOpenAILLMService``.

        Raises:
            VLLMError: If the server does not answer, and it is known what to do about it.
        """
        await self._background.close()  # what the server has read of the prompt by now, it keeps
        with ExitStack() as counted:
            counted.enter_context(self._server().asking())
            chunks = await self._ask(lambda: super(VLLMService, self).get_chat_completions(context))
            return ChatStream(
                chunks,
                self.push_frame,
                self._server().first_token_came,
                self.stop_ttfat_metrics,
                counted.pop_all().close,
                self._failed_in_mid_answer,
            )

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Ask for a whole answer outside the pipeline; see ``BaseOpenAILLMService``.

        Raises:
            VLLMError: If the server does not answer, and it is known what to do about it.
        """
        infer = super().run_inference
        with self._server().asking(), working_as("background"):
            answer = await self._ask(
                lambda: infer(context, max_tokens, system_instruction, response_schema)
            )
        if answer is None:
            return None
        inline = InlineThought()
        return inline.feed(answer)[1] + inline.finish()

    async def warm(self, context: LLMContext, leave: Leave = nullcontext) -> None:
        """Have the server read the beginning of a conversation, so that its cache holds it.

        Sends what a first turn would send, and asks for one token, behind all other work. Does
        nothing more than find the model where there is nothing to read yet.

        Args:
            context: The conversation so far: system prompt and tools, mostly.
            leave: Entered around what is sent; not where another instance sends the same.

        Raises:
            Rejected: By ``leave``, if there is none.
            VLLMError: If the server does not answer, and it is known what to do about it.
        """
        await self._find_model()
        adapter = self.get_llm_adapter()
        instruction = assert_given(self._settings.system_instruction)
        from_context = await adapter.get_llm_invocation_params(
            context, system_instruction=instruction, convert_developer_to_user=True
        )
        if not from_context["messages"] and not isinstance(from_context["tools"], list):
            return
        prompt = str((self._asked_model, from_context["messages"], from_context["tools"]))

        async def read() -> None:
            async with leave():
                with self._server().asking(), working_as("warm_up"):
                    await self._ask(
                        lambda: self._client.chat.completions.create(
                            **one_token(self.build_chat_completion_params(from_context))
                        )
                    )

        await self._server().read_ahead(prompt, read)

    async def _ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request, and say what it means if it is refused."""
        try:
            await self._find_model()
            try:
                return await request()
            except NotFoundError:
                if not await self._has_moved_on():
                    raise
                return await request()
        except (OpenAIError, VLLMError) as error:
            explained = await explain(error, self._server(), self._asked_model)
            if getattr(explained, "category", None) is ErrorCategory.CONNECTIVITY:
                self._server().mark_gone("does not answer")
            if explained is not error:
                raise explained from error
            raise

    def _failed_in_mid_answer(self, error: APIError) -> Exception:
        if isinstance(error, APIStatusError | APIConnectionError):
            return error
        self._server().mark_gone("has failed in mid-answer")
        return failed_in_mid_answer(self._server(), error)

    async def _has_moved_on(self) -> bool:
        """Whether the server serves another model than it did, which nobody asked for by name."""
        before = self._asked_model
        if before is None or before != self._found_model:
            return False
        self._settings.model = self._found_model = None
        try:
            await self._find_model(again=True)
        except VLLMError:
            return False
        logger.warning(f"{self}: {before} is gone, the server serves {self._found_model} now")
        return self._found_model != before

    @property
    def _asked_model(self) -> str | None:
        model = self._settings.model
        return model if is_given(model) else None

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        if isinstance(exception, VLLMError):
            return exception.category
        return super()._classify_error(exception)
