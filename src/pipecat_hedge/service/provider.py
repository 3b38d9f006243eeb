"""A named provider of the race: one or several instances of a service, and its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pipecat.services.llm_service import LLMService, WebsocketLLMService
from pipecat.services.websocket_service import WebsocketService

from pipecat_hedge.policy.arguments import require
from pipecat_hedge.providers.circuit_breaker import CircuitBreakerSettings
from pipecat_hedge.race.errors import ConfigurationError


class Provider:
    """A named provider.

    Example::

        Provider("claude", AnthropicLLMService(api_key=...), usd_per_mtok=(3.0, 15.0))
        Provider("local", [VLLMService(...), VLLMService(...)])  # up to two requests per turn

    Attributes:
        name: Its name in reports.
        services: Its instances; each carries one attempt at a time.
        usd_per_mtok: Its price in US dollars per million ``(input, output)`` tokens, or None.
        stall_secs: Its own stall time, or ``"policy"`` for the policy's.
        timeout_secs: The silence after which its attempts fail; None leaves that to its client.
        breaker: When its circuit breaker opens. None keeps the settings of an earlier ``Provider``
            of this name, or the defaults.
        region: Where it is served, or None.
        residency: The jurisdiction that its data stays in, or None.
        short_tool_ids: Whether ids of tool calls must be nine letters or digits; None is if it is
            known as Mistral's.
    """

    def __init__(
        self,
        name: str,
        services: LLMService[Any] | Sequence[LLMService[Any]],
        *,
        usd_per_mtok: tuple[float, float] | None = None,
        stall_secs: float | Literal["policy"] | None = "policy",
        timeout_secs: float | None = None,
        breaker: CircuitBreakerSettings | None = None,
        region: str | None = None,
        residency: str | None = None,
        short_tool_ids: bool | None = None,
    ):
        """Name a provider.

        Args:
            name: Its name in reports; unique among the providers of a race.
            services: A service, or several instances that use the same backend.
            usd_per_mtok: Its price in US dollars per million ``(input, output)`` tokens.
            stall_secs: Its own stall time instead of the policy's, in seconds; None is never. A
                local server that is slow on long prompts needs a longer one.
            timeout_secs: The silence, in seconds, after which an attempt fails and is closed,
                though it might still answer. None leaves that to the service's client, as without a
                race (OpenAI's and Anthropic's wait 600 s). Independently, another provider gets a
                request after ``stall_secs``.
            breaker: When its circuit breaker opens, and for how long. The breaker is shared by all
                services of the process with a provider of this name; the latest settings count.
            region: Where it is served, such as ``eu-west``. Hedges prefer another region than the
                first provider's, whose queues are independent.
            residency: The jurisdiction that its data stays in, such as ``eu``; see the
                ``residency`` of ``HedgedLLMService``.
            short_tool_ids: Whether it accepts ids of tool calls only if they are nine letters or
                digits, as Mistral does; those of other providers become such in its requests. None
                recognises Mistral by the service's class, address and model.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"name must be a non-empty string, got {name!r}: write 'claude'"
            )
        if " | " in name:  # which separates it from the model in keys
            raise ConfigurationError(f"name must not contain ' | ', got {name!r}")
        if not isinstance(services, (LLMService, list, tuple)):
            _check_service(f"services of provider {name!r}", services)
        members = [services] if isinstance(services, LLMService) else list(services)
        if not members:
            raise ConfigurationError(
                f"services of provider {name!r} is empty: give it at least one LLM service"
            )
        for service in members:
            _check_service(f"services of provider {name!r}", service)
        self.name = name
        self.services: tuple[LLMService[Any], ...] = tuple(members)
        self.usd_per_mtok = _check_price(name, usd_per_mtok)
        self.stall_secs: float | Literal["policy"] | None = (
            "policy" if stall_secs == "policy" else _check_secs("stall_secs", name, stall_secs)
        )
        self.timeout_secs = _check_secs("timeout_secs", name, timeout_secs)
        remedy = "write CircuitBreakerSettings(failures=3)"
        require(f"breaker of provider {name!r}", breaker, CircuitBreakerSettings, remedy)
        self.breaker = breaker
        remedy = 'write a label, such as "eu-west"'
        require(f"region of provider {name!r}", region, str, remedy)
        require(f"residency of provider {name!r}", residency, str, remedy)
        self.region, self.residency = region, residency
        remedy = "write True, False, or None to recognise Mistral"
        require(f"short_tool_ids of provider {name!r}", short_tool_ids, bool, remedy)
        self.short_tool_ids = short_tool_ids

    def __repr__(self) -> str:
        return f"Provider({self.name!r}, {len(self.services)} instance(s))"


def as_providers(llms: Sequence[Provider | LLMService[Any]]) -> tuple[Provider, ...]:
    """Check ``llms`` and name its bare services.

    A bare service is named after its kind and model, such as ``openai:gpt-4.1``, so that its
    statistics apply to every session; further ones of the same name get ``#2``, ``#3``.

    Args:
        llms: The user's services and providers.

    Raises:
        ConfigurationError: If there is none, an element is not an LLM service that can be raced,
            two providers share a name, or the same instance is listed twice.
    """
    if isinstance(llms, (Provider, LLMService)) or not isinstance(llms, Sequence):
        raise ConfigurationError(f"llms must be a list of LLM services, got {type(llms).__name__}")
    if not llms:
        raise ConfigurationError("llms is empty: give at least one LLM service, better two")
    providers: list[Provider] = []
    taken = {llm.name for llm in llms if isinstance(llm, Provider)}
    if len(taken) < sum(isinstance(llm, Provider) for llm in llms):
        raise ConfigurationError(
            "llms names two providers alike: give each Provider a name of its own, or one "
            'Provider several instances, as Provider("claude", [service, service])'
        )
    for index, llm in enumerate(llms):
        if isinstance(llm, Provider):
            providers.append(llm)
            continue
        _check_service(f"llms[{index}]", llm)
        name = _unique(_default_name(llm), taken)
        taken.add(name)
        providers.append(Provider(name, llm))
    seen: set[int] = set()
    for service in (s for p in providers for s in p.services):
        if id(service) in seen:
            raise ConfigurationError(
                f"llms contains {service} twice: one instance carries one request at a time, so "
                "construct the service again for each place"
            )
        seen.add(id(service))
        if service.next is not None or service.previous is not None:
            raise ConfigurationError(
                f"llms contains {service}, which is already in a pipeline or in another race: "
                "construct a service of its own for each"
            )
    return tuple(providers)


def _check_service(field: str, service: object) -> None:
    if isinstance(service, type):
        raise ConfigurationError(
            f"{field} is the class {service.__name__}, not a service: construct it first"
        )
    if not isinstance(service, LLMService):
        raise ConfigurationError(
            f"{field} must be a Pipecat LLM service, got {type(service).__name__}: a switcher or "
            "pipeline cannot be raced, give the services in it one by one"
        )
    if isinstance(service, (WebsocketLLMService, WebsocketService)):
        raise ConfigurationError(
            f"{field}, {type(service).__name__}, keeps a connection and conversation of its own, "
            "so two requests cannot race over it: use the provider's HTTP service "
            "(for OpenAI Responses: OpenAIResponsesHttpLLMService)"
        )
    if service.service_metadata_frame().is_realtime_service:
        raise ConfigurationError(
            f"{field}, {type(service).__name__}, is a speech-to-speech service, which answers in "
            "audio over a session of its own and cannot be raced: use a text LLM service"
        )


def _check_price(name: str, price: Any) -> tuple[float, float] | None:
    if price is None:
        return None
    ok = isinstance(price, (tuple, list)) and len(price) == 2
    if not ok or not all(map(_is_price, price)):
        raise ConfigurationError(
            f"usd_per_mtok of provider {name!r} must be (input, output) in US dollars per million "
            f"tokens, neither negative, got {price!r}: write usd_per_mtok=(3.0, 15.0)"
        )
    return (float(price[0]), float(price[1]))


def _is_price(price: Any) -> bool:
    is_number = isinstance(price, (int, float)) and not isinstance(price, bool)
    return is_number and 0 <= price < math.inf


def _check_secs(field: str, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigurationError(
            f"{field} of provider {name!r} must be a positive number of seconds, or None for "
            f"never, got {value!r}"
        )
    return float(value)


def _default_name(service: LLMService[Any]) -> str:
    kind = type(service).__name__.removesuffix("Service").removesuffix("LLM").lower()
    model = service.settings.model
    return f"{kind}:{model}" if isinstance(model, str) and model else kind


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"
