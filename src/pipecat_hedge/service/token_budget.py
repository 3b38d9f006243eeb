"""Bounds the tokens of a turn: a shorter prompt, in steps that keep prefix caches, and its answer.

A provider's prefix cache holds a prompt as far as it begins like an earlier one. Cutting no more
than needed would move the cut in every turn, and miss the cache. So the beginning is cut in steps
of ``STEP`` of the budget, on a grid that does not move while the conversation grows: the cut stays
for many turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContextMessage, LLMSpecificMessage
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.context.llm_context_summarization import LLMContextSummaryConfig

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TIERS, Tier
from pipecat_hedge.service.tokens import message_tokens

STEP = 0.25
"""The share of the budget that is cut at once. A larger step forgets more than is needed."""
_INSTRUCTIONS = ("system", "developer")
_SUMMARY = LLMContextSummaryConfig().summary_message_template.partition("{")[0]
"""How Pipecat's summary of older talk begins, unless it has a template of the user's own."""
_OPENAI = ("pipecat.services.openai", "pipecat.services.azure")
_OPENAI_NAME = "max_completion_tokens"
"""OpenAI's reasoning models require it; compatible servers know ``max_tokens``."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The most tokens of a turn.

    Parameters:
        prompt: Of the conversation, without the system instruction and tools; estimated from its
            length. The oldest turns are left out of the requests, but not Pipecat's summary and
            this turn's documents, and stay in the context. None is unlimited.
        answer: Of the answer, reasoning included. An answer that reaches it ends with its last
            whole sentence. None leaves each service's own limit.

    Raises:
        ConfigurationError: If a number is not positive.
    """

    prompt: int | None = None
    answer: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, value in (("prompt", self.prompt), ("answer", self.answer)):
            is_count = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not is_count or value < 1):
                raise ConfigurationError(
                    f"{name} of TokenBudget must be a number of tokens from 1, or None for no "
                    f"limit, got {value!r}"
                )


def budget_of(budget: TokenBudget | Mapping[Tier, TokenBudget] | None, tier: Tier) -> TokenBudget:
    """Return the budget of a tier; a tier without one has no limits.

    Raises:
        ConfigurationError: If ``token_budget`` is something else.
    """
    if budget is None or isinstance(budget, TokenBudget):
        return budget or TokenBudget()
    is_by_tier = isinstance(budget, Mapping) and all(  # pyright: ignore[reportUnnecessaryIsInstance]
        name in TIERS and isinstance(each, TokenBudget)  # pyright: ignore[reportUnnecessaryIsInstance]
        for name, each in budget.items()
    )
    if not is_by_tier:
        raise ConfigurationError(
            f"token_budget must be a TokenBudget, or one for each tier, got {budget!r}: write "
            'TokenBudget(prompt=6_000), or {"economy": TokenBudget(prompt=3_000)}'
        )
    return budget.get(tier, TokenBudget())


def trimmed(messages: Sequence[LLMContextMessage], most: int | None) -> list[LLMContextMessage]:
    """Return the messages without the oldest turns, if they exceed a budget.

    Instructions at the beginning, Pipecat's summary behind them and the last turn stay. A turn is
    left out whole, so that every tool call keeps its result. It begins with the caller's message,
    or with the instructions just before it, such as the documents for it.

    Args:
        messages: The conversation.
        most: The most tokens; None is unlimited.
    """
    tokens = [message_tokens(message) for message in messages] if most is not None else []
    if most is None or sum(tokens) <= most:
        return list(messages)
    roles = [role_of(message) for message in messages]
    head = next((n for n, role in enumerate(roles) if role not in _INSTRUCTIONS), len(messages))
    head += head < len(messages) and _is_summary(messages[head])
    turns = set[int]()
    for number in range(head, len(messages)):
        if roles[number] == "user":
            begins = number
            while begins > head and roles[begins - 1] in _INSTRUCTIONS:
                begins -= 1
            turns.add(begins)
    step, excess = max(int(STEP * most), 1), sum(tokens) - most
    at_least = -(-excess // step) * step  # what is cut, rounded up to the grid
    before, cut = 0, head
    for number in range(head, len(messages)):
        if number in turns and before >= at_least:
            cut = number
            break
        before += tokens[number]
    else:
        cut = max(turns, default=head)
    return [*messages[:head], *messages[cut:]]


def answer_limit(service: LLMService[Any], tokens: int) -> LLMSettings:
    """Return the settings that bound a service's answers, by its own parameter.

    Args:
        service: The service. A lower limit of its own stays.
        tokens: The most tokens of an answer.
    """
    settings: Any = service.settings
    own = {
        name: value
        for name in ("max_tokens", _OPENAI_NAME)
        if isinstance(value := getattr(settings, name, None), int)
    }
    default = _OPENAI_NAME if type(service).__module__.startswith(_OPENAI) else "max_tokens"
    name, value = next(iter(own.items()), (default, tokens))
    return type(settings)(**{name: min(value, tokens)})


def _is_summary(message: LLMContextMessage) -> bool:
    content: Any = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, str) and content.startswith(_SUMMARY)


def role_of(message: LLMContextMessage) -> str:
    """Return a message's role; empty if it has none."""
    content: Any = message.message if isinstance(message, LLMSpecificMessage) else message
    return str(content.get("role", "")) if isinstance(content, Mapping) else ""
