"""Puts providers last that rejected requests. Pure.

A rejection is often about the prompt, which may be too long for one provider, or filtered by
another. So the provider comes last in the next turn only. After a second rejection in a row, or one
for key, permission or model, it comes last until it has answered. Last is not out: it is asked when
the others have failed or are silent. Rejections for load are ``providers/concurrency_limit.py``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipecat_hedge.providers.latency import TRIAL_EVERY_SECS
from pipecat_hedge.race.errors import AttemptError


@dataclass(frozen=True, slots=True)
class _Rejection:
    turn: int
    lasts: bool
    at: float


class Rejections:
    """The rejections of one session, by provider; turns and inferences each have their own."""

    def __init__(self) -> None:
        """Start without rejections."""
        self._by_provider: dict[str, _Rejection] = {}
        self._turn = 0

    def begin_turn(self) -> frozenset[str]:
        """Begin a turn and return the providers that come last in it."""
        last = self.last
        self._turn += 1
        return last

    @property
    def last(self) -> frozenset[str]:
        """The providers that come last in the next turn."""
        turn = self._turn
        return frozenset(n for n, r in self._by_provider.items() if r.lasts or r.turn == turn)

    def to_try(self, now: float) -> str:
        """A provider that comes last until it answers and may be tried again; empty if none."""
        due = (
            n for n, r in self._by_provider.items() if r.lasts and now >= r.at + TRIAL_EVERY_SECS
        )
        return next(due, "")

    def end_turn(
        self, errors: Iterable[tuple[str, AttemptError]], answered: Iterable[str], now: float
    ) -> list[tuple[str, AttemptError]]:
        """Record a turn.

        Args:
            errors: Each failed attempt's provider and error.
            answered: The providers that have begun to answer.
            now: The time, in seconds.

        Returns:
            The errors from which on a provider comes last until it answers.
        """
        for provider in answered:
            self._by_provider.pop(provider, None)
        lasting: list[tuple[str, AttemptError]] = []
        for provider, error in errors:
            if not error.permanent:
                continue
            before = self._by_provider.get(provider)
            is_second = before is not None and before.turn < self._turn
            lasts = is_second or not error.is_of_prompt
            self._by_provider[provider] = _Rejection(self._turn, lasts, now)
            if lasts and not (before is not None and before.lasts):
                lasting.append((provider, error))
        return lasting

    def forget(self, provider: str | None = None) -> None:
        """Forget a provider's rejections, because its settings have changed; None forgets all."""
        if provider is None:
            self._by_provider.clear()
        else:
            self._by_provider.pop(provider, None)
