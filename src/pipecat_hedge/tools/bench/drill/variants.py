"""What stands in the callers' pipelines: the bare service, one that retries, the hedged one.

Every request of a worker goes through one HTTP client, as the pools of a real process do, and is
counted there: a provider that refuses connections counts nothing itself, and an SDK that retries
tells nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits

from pipecat_hedge.policy.hedge_policy import HedgePolicy, Order
from pipecat_hedge.service.admission import AdmissionMode
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_stats import ProviderStats

__all__ = ["ANSWER", "FALLBACK", "VARIANTS", "Builder", "Variant"]

ANSWER = "We are open until nine."
FALLBACK = "One moment please."
TRIES, RETRY_TIMEOUT_SECS = 3, 5.0
ATTEMPTS = 3
MOST_CONNECTIONS = 1000

Kind: TypeAlias = Literal["bare", "retry", "hedged"]


@dataclass(frozen=True, slots=True)
class Variant:
    """What stands in a pipeline.

    Parameters:
        name: What tables call it.
        kind: ``bare`` asks the first provider once, ``retry`` has the SDK ask it up to three times
            and wait 5 s for each, ``hedged`` races all of them.
        budget: Extra requests a turn, of the hedged one.
        order: Whom it asks first: as given, or another while the first is slow.
        admission: Whether it turns callers away for whom there is no room.
    """

    name: str
    kind: Kind
    budget: float = 0.1
    order: Order = "learned"
    admission: AdmissionMode = "open"


VARIANTS = {
    variant.name: variant
    for variant in (Variant("bare", "bare"), Variant("retry", "retry"), Variant("hedged", "hedged"))
}


class Builder:
    """Makes one worker's services, which share an HTTP client and what is learned."""

    def __init__(
        self,
        variant: Variant,
        models: Mapping[str, tuple[str, str]],
        sent: Callable[[str], None],
        stats: ProviderStats,
    ):
        """Open the HTTP client; call it on the loop.

        Args:
            variant: What to make.
            models: By provider, its ``base_url`` and its model.
            sent: Told of each request, with the provider's name.
            stats: What the hedged services learn.
        """
        self._variant = variant
        self._models = models
        self._stats = stats
        by_port = {int(url.split(":")[2].split("/")[0]): name for name, (url, _) in models.items()}

        async def count(request: Any) -> None:
            if request.method == "POST":
                sent(by_port[request.url.port])

        limits = connection_limits(
            max_keepalive_connections=MOST_CONNECTIONS,
            max_connections=MOST_CONNECTIONS,
            keepalive_expiry=None,
        )
        http = DefaultAsyncHttpxClient(limits=limits, event_hooks={"request": [count]})
        options: dict[str, Any] = {"max_retries": 0}
        if variant.kind == "retry":
            options = {"max_retries": TRIES - 1, "timeout": RETRY_TIMEOUT_SECS}
        self._clients = {
            name: AsyncOpenAI(api_key="any", base_url=url, http_client=http, **options)
            for name, (url, _) in models.items()
        }

    def service(self, *, is_premium: bool) -> LLMService[Any]:
        """One session's service.

        Args:
            is_premium: Whether the session is one of the premium ones.
        """
        if self._variant.kind != "hedged":
            return self._openai(next(iter(self._clients)))
        policy = HedgePolicy.adaptive(
            self._variant.budget,
            order=self._variant.order,
            max_attempts=ATTEMPTS,
            fallback_text=FALLBACK,
        )
        return HedgedLLMService(
            [Provider(name, self._openai(name)) for name in self._clients],
            policy=policy,
            stats=self._stats,
            admission=self._variant.admission,
            tier="premium" if is_premium else "standard",
        )

    def _openai(self, provider: str) -> OpenAILLMService:
        model = self._models[provider][1]
        model += f"{'&' if '?' in model else '?'}answer={quote(ANSWER)}"
        settings = OpenAILLMService.Settings(model=model)
        return _Sharing(client=self._clients[provider], api_key="any", settings=settings)


class _Sharing(OpenAILLMService):
    """Takes a client that is made elsewhere."""

    def __init__(self, *, client: AsyncOpenAI, **kwargs: Any):
        self._given = client
        super().__init__(**kwargs)

    def create_client(self, *_: Any, **__: Any) -> AsyncOpenAI:
        return self._given
