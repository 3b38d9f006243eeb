"""``VLLMService``: a self-hosted vLLM server as a Pipecat LLM service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from loguru import logger
from openai import APIConnectionError, AsyncOpenAI, NotFoundError, OpenAIError
from pipecat.adapters.llm.services.open_ai_adapter import OpenAILLMInvocationParams
from pipecat.frames.frames import StartFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.base_llm import OpenAILLMSettings
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.types import assert_given, is_given

from pipecat_hedge.policy.arguments import require, require_flag, require_known
from pipecat_hedge.providers.priority import WORK_CLASSES, work, working_as
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import ServerLoad
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.race.usable import InlineThought
from pipecat_hedge.service.pipeline_search import context_of
from pipecat_hedge.service.provider_client import AcquirePermit
from pipecat_hedge.vllm.errors import VLLMError, closed_while_idle, explain, not_served
from pipecat_hedge.vllm.server import VLLMServer, check_base_url
from pipecat_hedge.vllm.stream import ChatStream

_SETTINGS = {"model": "model=...", "params": "temperature=..., max_tokens=..."}
_PROMPT_FIELDS = (
    *("chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs", "cache_salt"),
    "priority",
)
"""Fields of ``extra_body`` that a prefill keeps: they change the prompt or its priority."""
_T = TypeVar("_T")


@dataclass
class VLLMSettings(OpenAILLMSettings):
    """Settings of a ``VLLMService``.

    Parameters:
        model: The served model's name. Not given, or None: the first model that is served.
    """


class VLLMService(OpenAILLMService):
    """Sends requests to a vLLM server, alone in a pipeline or as a provider of a race.

    Beyond an OpenAI service with another ``base_url`` it finds the model, keeps reasoning out of
    the speech, assembles tool calls, prefills the prompt, knows the server's load, and names a
    remedy when the server fails.

    Example::

        VLLMService(base_url="http://localhost:8000/v1")

    Requests carry ``priority``, lower is more urgent: a turn's first request, the answer to a
    tool's result, a replacement, a hedge, a prefill, a one-shot inference. A server uses it when
    started with ``--scheduling-policy priority``.
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
        """Configure the service; nothing is sent yet.

        Args:
            base_url: The address of the OpenAI-compatible API; ends in ``/v1``.
            api_key: The key that the server was started with, if any.
            priority: The priority of a turn's first request; less urgent requests add 1 to 5. Use a
                larger value for callers who may wait. None sends no priority.
            warm: Whether the prompt is prefilled when a session starts, before the caller's first
                turn. In a race the hedged service decides.
            strict_tools: Whether the server enforces the tools' schemas while it generates. It
                rejects schemas with features that its grammar does not support.
            settings: The model and sampling parameters; may change in a session.
            **kwargs: Further arguments of ``OpenAILLMService``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require_known(kwargs, owner=VLLMService, base=OpenAILLMService)
        for old in _SETTINGS.keys() & kwargs.keys():
            raise ConfigurationError(
                f"{old}: write settings=VLLMService.Settings({_SETTINGS[old]})"
            )
        check_base_url(base_url)
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"priority must be a whole number (lower is more urgent), or None to send none, "
                f"got {priority!r}"
            )
        require("settings", settings, OpenAILLMSettings, "write VLLMService.Settings(...)")
        require("api_key", api_key, str, "give the key of the server, or None")
        require_flag("warm", warm)
        require_flag("strict_tools", strict_tools)
        defaults = VLLMSettings(model=None)
        if settings is not None:
            defaults.apply_update(settings)
        # Without a key the client would send OPENAI_API_KEY.
        super().__init__(base_url=base_url, api_key=api_key or "EMPTY", settings=defaults, **kwargs)
        self._base_url = base_url
        self._server_key = api_key
        self._priority = priority
        self._warms = warm
        self._strict_tools = strict_tools
        self._held: VLLMServer | None = None
        self._background = TaskScope()
        self._found_model: str | None = None

    def create_client(self, *args: Any, **kwargs: Any) -> AsyncOpenAI:
        """Create a client without retries; see ``BaseOpenAILLMService``."""
        return super().create_client(*args, **kwargs).with_options(max_retries=0)

    # ---- life cycle

    async def start(self, frame: StartFrame) -> None:
        """Start to poll the server, check the model, and prefill the prompt."""
        await super().start(frame)
        if self._held is None:
            self._held = VLLMServer.shared(self._base_url, self._server_key)
            self._held.hold()
        self._background.start(self._prepare(), name=f"{self}: prepare")

    async def cleanup(self) -> None:
        """Stop polling the server, and close the connections to it."""
        await self._background.close()
        held, self._held = self._held, None
        if held is not None:
            await held.release()
        await super().cleanup()
        await self._client.close()

    async def _prepare(self) -> None:
        context = context_of(self) if self._warms else None
        try:
            with suppress(VLLMError):  # logged, with its remedy
                await self._check_model()
            if context is not None:
                await self.warm(context)
        except Exception as error:  # the first turn reports it
            logger.debug(f"{self}: preparation failed: {type(error).__name__}")

    # ---- the server and its model

    @property
    def server_load(self) -> ServerLoad | None:
        """The server's load; None without a recent reading."""
        return None if self._held is None else self._held.load

    @property
    def _server(self) -> VLLMServer:
        return self._held or VLLMServer.shared(self._base_url, self._server_key)

    @property
    def _model(self) -> str | None:
        model = self._settings.model
        return model if is_given(model) else None

    async def _find_model(self, *, again: bool = False) -> None:
        """Use the first served model if none is configured."""
        if self._model:
            return
        models = await self._server.models(again=again)
        self._settings.model = self._found_model = models[0]
        self._sync_model_name_to_metrics()
        logger.debug(f"{self}: uses {models[0]}")

    async def _check_model(self) -> None:
        """Find the model, and report a configured one that is not served."""
        await self._find_model()
        served = await self._server.models()
        if self._model not in served:
            served = await self._server.models(again=True)
        is_missing = self._model not in served
        problem = not_served(self._base_url, self._model, served) if is_missing else None
        self._server.report(f"serves {self._model} now", problem)

    async def _model_changed(self) -> bool:
        """Whether the server now serves another model, if none is configured."""
        before = self._model
        if before is None or before != self._found_model:
            return False
        self._settings.model = self._found_model = None
        try:
            await self._find_model(again=True)
        except VLLMError:
            return False
        logger.warning(f"{self}: {before} is gone, the server now serves {self._found_model}")
        return self._found_model != before

    # ---- requests

    def build_chat_completion_params(
        self, params_from_context: OpenAILLMInvocationParams
    ) -> dict[str, Any]:
        """Build a request; see ``BaseOpenAILLMService``.

        Tools are sorted by name: a chat template puts them before the conversation, and another
        order would miss the prefix cache.
        """
        params = super().build_chat_completion_params(params_from_context)
        if isinstance(tools := params.get("tools"), list):
            if self._strict_tools:
                tools = [{**t, "function": {**t["function"], "strict": True}} for t in tools]
            params["tools"] = sorted(tools, key=lambda t: t.get("function", {}).get("name", ""))
        if self._priority is not None:
            rank = WORK_CLASSES.index(work())
            self._merge_extra_body(params, {"priority": self._priority + rank})
        return params

    async def get_chat_completions(self, context: LLMContext) -> Any:
        """Request an answer; see ``BaseOpenAILLMService``.

        Raises:
            VLLMError: If the server does not answer; the message names the remedy.
        """
        await self._background.close()  # the server keeps the part that it has prefilled
        with ExitStack() as in_flight:
            in_flight.enter_context(self._server.count_request())
            chunks = await self._send(
                lambda: super(VLLMService, self).get_chat_completions(context)
            )
            return ChatStream(chunks, self, self._server, in_flight.pop_all())

    async def run_inference(self, context: LLMContext, *args: Any, **kwargs: Any) -> str | None:
        """Request a complete answer outside the pipeline; see ``BaseOpenAILLMService``.

        Raises:
            VLLMError: If the server does not answer; the message names the remedy.
        """
        infer = super().run_inference
        with self._server.count_request(), working_as("background"):
            answer = await self._send(lambda: infer(context, *args, **kwargs))
        inline = InlineThought()
        return answer and inline.feed(answer)[1] + inline.finish()

    async def warm(self, context: LLMContext, acquire_permit: AcquirePermit = nullcontext) -> None:
        """Prefill the beginning of a conversation, so that the server's cache holds it.

        Sends a first turn's request for one token, at low priority. Without messages and tools it
        only finds the model.

        Args:
            context: The conversation so far, usually the system prompt and tools.
            acquire_permit: Entered around the request, unless another instance sends the same
                prompt.

        Raises:
            NotSent: If ``acquire_permit`` raises it.
            VLLMError: If the server does not answer; the message names the remedy.
        """
        await self._find_model()
        from_context = await self.get_llm_adapter().get_llm_invocation_params(
            context,
            system_instruction=assert_given(self._settings.system_instruction),
            convert_developer_to_user=True,
        )
        if not from_context["messages"] and not isinstance(from_context["tools"], list):
            return

        async def read() -> None:
            async with acquire_permit():
                with self._server.count_request(), working_as("warm_up"):
                    await self._send(
                        lambda: self._client.chat.completions.create(
                            **_prefill_request(self.build_chat_completion_params(from_context))
                        )
                    )

        prompt = str((self._model, from_context["messages"], from_context["tools"]))
        await self._server.read_once(prompt, read)

    async def _send(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request, and explain a failure.

        It is sent once more if the server had just closed an idle connection (vLLM does so after 5
        s), or now serves another model.
        """
        try:
            await self._find_model()
            try:
                return await request()
            except APIConnectionError as error:
                if not closed_while_idle(error):
                    raise
            except NotFoundError:
                if not await self._model_changed():
                    raise
            return await request()
        except OpenAIError as error:
            explained = await self._explain(error)
            if explained is error:
                raise
            raise explained from error

    async def _explain(self, error: OpenAIError) -> Exception:
        served: tuple[str, ...] = ()
        if isinstance(error, NotFoundError):
            with suppress(VLLMError):
                served = await self._server.models(again=True)
        explained = explain(error, self._base_url, self._model, served)
        if isinstance(error, NotFoundError):
            self._server.report(f"serves {self._model} now", str(explained))
        if isinstance(explained, VLLMError) and explained.category is ErrorCategory.CONNECTIVITY:
            self._server.mark_down("no answer", str(explained))
        return explained

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        if isinstance(exception, VLLMError):
            return exception.category
        return super()._classify_error(exception)


def _prefill_request(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that prefills the prompt of a turn's request and generates one token."""
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
