"""What to find out, and the policies that are compared to do so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["BLOCK", "BUDGETS", "LEAST_TURNS", "MOST_TURNS", "Costs", "Question", "compared"]

LEAST_TURNS, MOST_TURNS = 20_000, 100_000
BLOCK = 1000
"""Of a larger file, blocks of so many consecutive turns are replayed."""
BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.25)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request costs, where the files do not say.

    Parameters:
        prompt_tokens: Tokens of a prompt, or None.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens, or None.
    """

    prompt_tokens: float | None = None
    usd_per_mtok: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a figure is negative or none.
        """
        if self.prompt_tokens is not None and not 0 < self.prompt_tokens < math.inf:
            raise ConfigurationError(f"prompt_tokens must be positive, got {self.prompt_tokens}")
        if self.usd_per_mtok is not None and not all(
            0 <= price < math.inf for price in self.usd_per_mtok
        ):
            raise ConfigurationError(
                f"usd_per_mtok must be two prices, not negative, got {self.usd_per_mtok}"
            )


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out.

    Parameters:
        first: Who is asked first; None is who was.
        second: Who is hedged to; None is the other one measured, or the same one again.
        attempts: The most requests a turn may make.
        after_secs: Fixed delays to compare with; none is the p95.
        budgets: Budgets of the adaptive policy to compare.
        deadline_secs: When an answer should be there; None is as soon as possible.
        slo: What is promised, of the first token: adaptive policies are compared with and without
            it, and turns are counted that are in time; None promises nothing.
        min_saving_secs: What an extra request must save to be worth it, in seconds.
        costs: What a request costs.
        least_turns: A file of fewer turns than this is gone through several times.
        most_turns: More turns than this are sampled.
        seed: The same seed gives the same answer.
        policies: Which policies to compare, by name, in place of the usual ones; the first one is
            to make one request a turn.
    """

    first: str | None = None
    second: str | None = None
    attempts: int = 2
    after_secs: Sequence[float] = ()
    budgets: Sequence[float] = BUDGETS
    deadline_secs: float | None = None
    slo: Slo | None = None
    min_saving_secs: float = 0.15
    costs: Costs = Costs()
    least_turns: int = LEAST_TURNS
    most_turns: int = MOST_TURNS
    seed: int = 1
    policies: Sequence[tuple[str, HedgePolicy]] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a field cannot work; the message names it and the remedy.
        """
        if self.attempts < 2:
            raise ConfigurationError(f"attempts must be at least 2 to hedge, got {self.attempts}")
        if self.slo is not None and self.deadline_secs is not None:
            raise ConfigurationError(
                "deadline_secs and slo both say when an answer should be there: give one of them"
            )
        if self.slo is not None and self.slo.ttft_secs is None:
            raise ConfigurationError(
                "slo promises nothing of the first token, which is all that is replayed: "
                "write Slo(ttft_secs=0.8)"
            )
        if self.seed < 0:
            raise ConfigurationError(f"seed must not be negative, got {self.seed}")
        if self.least_turns < 1:
            raise ConfigurationError(f"least_turns must be at least 1, got {self.least_turns}")
        if self.most_turns < BLOCK:
            raise ConfigurationError(f"turns must be at least {BLOCK}, got {self.most_turns}")
        if any(policy.max_attempts > self.attempts for _, policy in self.policies):
            raise ConfigurationError(
                f"attempts is {self.attempts}, and one of the policies makes more: raise it"
            )
        if len(self.policies) == 1:
            raise ConfigurationError("policies must be two at least: one to compare with another")

    @property
    def due_secs(self) -> float | None:
        """When an answer should be there, by the deadline or the promise; None is no such time."""
        return self.deadline_secs if self.slo is None else self.slo.ttft_secs


def compared(
    question: Question, secs: npt.NDArray[np.float64], *, with_failures: bool
) -> list[tuple[str, HedgePolicy]]:
    """The policies that are compared, by name; the first one makes one request a turn.

    Args:
        question: What to find out.
        secs: The first provider's latencies; shape (n,).
        with_failures: Whether requests fail: then the second policy is to replace those alone.
    """
    if question.policies:
        return list(question.policies)
    attempts = question.attempts
    p95 = round(float(np.quantile(secs, 0.95)), 3)
    plain = [("no hedging", HedgePolicy.fallback(1, stall_secs=None))]
    if with_failures:
        fallback = HedgePolicy.fallback(attempts, stall_secs=None)
        plain.append((f"fallback({attempts})", fallback))
    plain.append((f"race({attempts})", HedgePolicy.race(attempts, stall_secs=None)))
    for delay in question.after_secs or (p95,):
        plain.append((f"after({delay:g} s)", HedgePolicy.after(delay, attempts, stall_secs=None)))
    plain.append(("SingleR(p99, 5 %)", HedgePolicy.single_r(0.99, 0.05, stall_secs=None)))
    adaptive = [
        HedgePolicy.adaptive(
            budget,
            attempts,
            target_ttft_secs=question.deadline_secs,
            min_saving_secs=question.min_saving_secs,
            stall_secs=None,
        )
        for budget in question.budgets
    ]
    if question.slo is not None:
        adaptive += [
            HedgePolicy.adaptive(
                budget,
                attempts,
                slo=question.slo,
                min_saving_secs=question.min_saving_secs,
                stall_secs=None,
            )
            for budget in question.budgets
        ]
    return [*plain, *((policy.name, policy) for policy in adaptive)]
