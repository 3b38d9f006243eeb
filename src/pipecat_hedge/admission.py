"""One turn's permits: who may be asked now, who has to wait, and what came of each request.

Law: a turn that is over holds no permit and no claim to a probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence

from pipecat_hedge.ending import DROPPED, Ending
from pipecat_hedge.health import Health
from pipecat_hedge.members import Entry, LineUp
from pipecat_hedge.permits import Sheds, permit_for
from pipecat_hedge.policies.rate_limit_news import RateLimitNews
from pipecat_hedge.provider_health import Permit
from pipecat_hedge.work import Tier, WorkClass

__all__ = ["Admission"]

LEAST_SECS = 1.0
"""How long a request may wait for a permit, however late in the turn it is made."""


class Admission:
    """Gets and gives back the permits of one turn.

    Attributes:
        tier: Whose turn it is.
        queued_secs: How long its first request waited for a permit; 0.0 if there was one at once.
    """

    def __init__(
        self,
        health: Health,
        line_up: LineUp,
        tier: Tier,
        sheds: Sheds,
        wait_secs: float,
    ):
        """Begin a turn.

        Args:
            health: The process's registry.
            line_up: Who may be asked.
            tier: Whose turn it is.
            sheds: Whether the process is too busy.
            wait_secs: How long the turn may wait for permits in all; but a request that is made
                late in the turn may wait for ``LEAST_SECS``.
        """
        self._wait_secs = wait_secs
        self._health = health
        self.tier: Tier = tier
        self._sheds = sheds
        self._until = asyncio.get_running_loop().time() + wait_secs
        self._keys = line_up.keys
        self._claimed = None if line_up.probe is None else line_up.probe.provider.name
        self._first: Permit | None = None
        self._nobody = line_up.reason
        self.queued_secs = 0.0

    async def admit(self, order: Sequence[Entry], work: WorkClass) -> str | None:
        """Get the turn's first permit, and with it whom to ask first.

        Args:
            order: Whom to ask, in order; empty if nobody may be asked.
            work: What for.

        Returns:
            The provider's name; None if there is nobody, see ``reason``.

        Raises:
            Shed: If there is no room in time.
        """
        if not order:
            return None
        names = {self._keys[entry.provider.name]: entry.provider.name for entry in order}
        healthy = [key for key, name in names.items() if name != self._claimed]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            permit = self._first = await self._get(healthy or list(names), work)
        except BaseException:  # the caller may have hung up
            self.queued_secs = loop.time() - began
            raise
        self.queued_secs = permit.waited_secs
        return names[permit.key]

    @property
    def tried(self) -> str | None:
        """Who is to be tried after having been left alone, and has not been yet; or None."""
        return self._claimed

    @property
    def reason(self) -> str:
        """Why nobody may be asked, where that is so."""
        return self._nobody

    async def permit(self, provider: str, work: WorkClass) -> Permit:
        """Get leave for a request that the race has launched.

        Args:
            provider: Whom it goes to.
            work: What for.

        Raises:
            Shed: If there is no room in time.
        """
        key = self._keys[provider]
        if (first := self._first) is not None and first.key == key:
            self._first = None
            return first
        return await self._get([key], work)

    def refusals(self, providers: Iterable[str], work: WorkClass) -> dict[str, str]:
        """To whom a request would have to wait now, by the provider's name, and why.

        Args:
            providers: Whom it could go to.
            work: What for.
        """
        if (reason := self._sheds(work, self.tier)) is not None:
            return dict.fromkeys(providers, f"is not asked: {reason}")
        names = {self._keys[name]: name for name in providers if name != self._claimed}
        now = asyncio.get_running_loop().time()
        told = self._health.refusals(names, work, self.tier, now)
        return {names[key]: reason for key, reason in told.items()} if told else told

    def is_unheard(self, provider: str) -> bool:
        """Whether a provider has not been heard lately, because others were always faster."""
        return self._health.is_unheard(self._keys[provider])

    def hear(self, permit: Permit, news: RateLimitNews, at: float, prompt_tokens: int) -> None:
        """Take a provider's word for what its rate limit leaves.

        Args:
            permit: Leave for the request that it answered.
            news: What it said.
            at: When, in the loop's time.
            prompt_tokens: The size of the prompts to come.
        """
        if (more := news.more(prompt_tokens)) is not None:
            until = at + more[1]
            self._health.allow(permit.key, more[0], until, sent_at=permit.taken_at)

    def rest(self, permit: Permit, secs: float) -> None:
        """Leave a provider alone from now on, as it asked with ``Retry-After``; every turn does.

        Args:
            permit: Leave for the request that it refused.
            secs: For how long.
        """
        now = asyncio.get_running_loop().time()
        self._health.rest(permit.key, now + secs)

    def heard(self, permit: Permit, size_class: Hashable) -> None:
        """Take note that a request's answer has begun.

        Args:
            permit: Leave for the request.
            size_class: The class of its prompt's size.
        """
        self._health.heard(permit, asyncio.get_running_loop().time(), size_class=size_class)

    def expect_no_word(self, permit: Permit) -> None:
        """Take note that no first token will tell when a request's answer begins.

        Args:
            permit: Leave for the request.
        """
        self._health.expect_no_word(permit)

    def give_back(
        self,
        permit: Permit,
        ending: Ending,
        *,
        first_at: float | None = None,
        was_unheard: bool = False,
    ) -> None:
        """Give a permit back, with what became of its request.

        Args:
            permit: The permit.
            ending: What the request's end says of the provider.
            first_at: When its first usable piece came, in the loop's time; or None.
            was_unheard: Whether it was given up before a word came, after a while.
        """
        self._health.give_back(
            permit,
            ending,
            asyncio.get_running_loop().time(),
            ttft_secs=None if first_at is None else first_at - permit.taken_at,
            was_unheard=was_unheard,
        )

    def close(self) -> None:
        """Give back what was not used."""
        now = asyncio.get_running_loop().time()
        if self._first is not None:
            self._health.give_back(self._first, DROPPED, now)
            self._first = None
        if self._claimed is not None:
            self._health.drop_probe(self._keys[self._claimed], now)
            self._claimed = None

    async def _get(self, keys: list[str], work: WorkClass) -> Permit:
        claimed = None if self._claimed is None else self._keys[self._claimed]
        probe = claimed if claimed in keys else None
        left_secs = self._until - asyncio.get_running_loop().time()
        wait_secs = max(left_secs, min(LEAST_SECS, self._wait_secs))
        permit = await permit_for(
            self._health, keys, work, self.tier, wait_secs, sheds=self._sheds, probe=probe
        )
        if permit.is_probe:
            self._claimed = None  # the permit's return gives the claim back
        return permit
