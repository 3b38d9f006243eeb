"""Whole services, cancelled anywhere: no permit, claim or request outlives what it was for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import EagerEndOfTurnCancelFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import AllProvidersFailed, HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.ending import Ending
from pipecat_hedge.health import Health
from pipecat_hedge.policies.concurrency_limit import ConcurrencyLimit
from pipecat_hedge.policies.permit_queue import Ticket
from pipecat_hedge.provider_stats import ProviderStats
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.work import TIERS, Tier
from tests.line import Line

NAMES = "abc"
NEVER = float("inf")
SCRIPTS: dict[str, list[Step]] = {
    "answers": [Wait(0.3), Say("Yes, do come. "), Wait(0.4), Say("We are open.")],
    "answers late": [Wait(3.5), Say("Yes, do come.")],
    "is slow": [Wait(0.9), Say("Yes. "), Wait(0.5), Say("Do come.")],
    "hangs": [Wait(NEVER)],
    "hangs in mid-answer": [Wait(0.2), Say("Yes. "), Say("And"), Wait(NEVER)],
    "fails": [Wait(0.1), Error()],
    "is full": [Wait(0.1), Error("too many", category=ErrorCategory.RATE_LIMIT)],
    "breaks off": [Wait(0.2), Say("Yes, do "), Wait(0.2), Error()],
    "is empty": [Wait(0.2)],
}
POLICIES = [
    HedgePolicy.adaptive(0.3, attempts=3, losers=losers, fallback_text="One moment.")
    for losers in ("cancel", "drain")
] + [
    HedgePolicy.race(2, losers="drain", fallback_text="One moment."),
    HedgePolicy.after(0.5, attempts=3, deadline_secs=4.0),
    HedgePolicy.fallback(attempts=1),
]

Do = Literal["ask", "interrupt", "withdraw", "summarise", "give up the summary", "warm up"]
DOS: tuple[Do, ...] = (
    "ask",
    "ask",
    "ask",
    "interrupt",
    "withdraw",
    "summarise",
    "give up the summary",
    "warm up",
)


@dataclass(frozen=True)
class Session:
    """One caller's call.

    Parameters:
        policy: When to ask the next.
        tier: Whose turns they are.
        scripts: What each provider does, turn by turn.
        moves: What happens, and how many seconds after what came before.
        hangs_up: Whether its pipeline is cancelled at the end, and not ended.
    """

    policy: HedgePolicy
    tier: Tier
    scripts: tuple[tuple[str, ...], ...]
    moves: tuple[tuple[float, Do], ...]
    hangs_up: bool


secs = st.floats(0.0, 4.0).map(lambda value: round(value, 1))  # so that things happen together
turns = st.lists(st.sampled_from(sorted(SCRIPTS)), min_size=1, max_size=4).map(tuple)
sessions = st.builds(
    Session,
    st.sampled_from(POLICIES),
    st.sampled_from(TIERS),
    st.tuples(turns, turns, turns),
    st.lists(st.tuples(secs, st.sampled_from(DOS)), min_size=1, max_size=8).map(tuple),
    st.booleans(),
)


class Summing(ScriptedLLMService):
    """Sums up, too, as long as its first script says."""

    def __init__(self, told: Sequence[str]):
        super().__init__(*(SCRIPTS[name] for name in told))
        self._first = told[0]

    async def run_inference(self, context: LLMContext, *args: Any, **kwargs: Any) -> str | None:
        self.open_requests += 1
        try:
            if self._first == "fails":
                raise RuntimeError("no")
            await asyncio.sleep(100.0 if self._first.startswith("hangs") else 0.5)
            return "In short."
        finally:
            self.open_requests -= 1


class HungUp(Exception):
    """Has a line cancel its pipeline."""


async def call(session: Session, stats: ProviderStats, asked: dict[str, list[Summing]]) -> None:
    members = [Summing(told) for told in session.scripts]
    for name, member in zip(NAMES, members, strict=True):
        asked[name].append(member)
    llm = HedgedLLMService(
        [Provider(name, member) for name, member in zip(NAMES, members, strict=True)],
        policy=session.policy,
        stats=stats,
        tier=session.tier,
    )
    context = LLMContext([{"role": "user", "content": "Hello?"}])
    summaries: list[asyncio.Task[Any]] = []
    with suppress(HungUp):
        async with Line(llm) as line:
            for wait, do in session.moves:
                await asyncio.sleep(wait)
                if do == "ask":
                    await line.send(LLMContextFrame(context))
                elif do == "interrupt":
                    await line.interrupt()
                elif do == "withdraw":
                    await line.send(EagerEndOfTurnCancelFrame())
                elif do == "summarise":
                    summaries.append(asyncio.create_task(summarise(llm, context)))
                elif do == "warm up":
                    await llm.warm_up(context)
                elif summaries:
                    summaries[-1].cancel()
            if session.hangs_up:
                raise HungUp
            await line.interrupt()
    for task in summaries:
        task.cancel()
    await asyncio.gather(*summaries, return_exceptions=True)


async def summarise(llm: HedgedLLMService, context: LLMContext) -> None:
    with suppress(AllProvidersFailed):
        await llm.run_inference(context)


def open_breaker(health: Health, key: str) -> None:
    """Have it be half open in the calls to come."""
    for _ in range(5):
        permit = health.take(Ticket("primary", "standard", 0.0, (key,), 0.0), 0.0)
        assert permit is not None
        health.give_back(permit, Ending("failed", "failed"), 0.0)


@dataclass(frozen=True)
class Room:
    """How much a provider takes.

    Parameters:
        at_most: Requests in flight; None is what is assumed.
        is_learned: Whether that was learned, so that it moves, and a queue is looked for; or told,
            for as long as the calls last.
        is_half_open: Whether its breaker is, when the calls begin.
    """

    at_most: int | None
    is_learned: bool
    is_half_open: bool

    def prepare(self, health: Health, key: str) -> None:
        """Have it be so."""
        if self.is_half_open:
            open_breaker(health, key)
        limit = health.of(key).limit
        if self.is_learned:
            for number in range(60):
                limit.heard(0.3, number / 10)
            limit.begin_with(self.at_most or 3)
        elif self.at_most is not None:
            limit.believe(self.at_most, until=NEVER)


rooms = st.builds(Room, st.integers(1, 3) | st.none(), st.booleans(), st.booleans())


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sessions, min_size=1, max_size=4), st.tuples(rooms, rooms, rooms))
def test_nothing_is_kept(everybody: list[Session], room: tuple[Room, ...]) -> None:
    """Several callers share providers that answer, hang, fail, are full, or were left alone.

    Whenever a permit is given, each open request has one, so that no more are open than the limit
    of that moment. When all have gone nothing is left of them, also of those who were called back
    from a queue, or waited for room.
    """
    beyond: list[str] = []
    acquire, take_recall = ConcurrencyLimit.acquire, ConcurrencyLimit.take_recall

    def checked(self: ConcurrencyLimit, now: float, *, reserve: int = 0) -> bool:
        open_requests = sum(
            member.open_requests
            for name in NAMES
            if health.of(f"{name} | scripted").limit is self
            for member in asked[name]
        )
        if not (is_given := acquire(self, now, reserve=reserve)):
            event("there is no room")
        elif not open_requests < self.in_flight <= self.limit(now):
            told = f"{open_requests} open, {self.in_flight} permits, limit {self.limit(now)}"
            beyond.append(told)
        return is_given

    def noted(self: ConcurrencyLimit) -> bool:
        is_recalled = take_recall(self)
        if is_recalled:
            event("what waits in a queue is called back")
        return is_recalled

    stats = ProviderStats()
    health = stats.health
    asked: dict[str, list[Summing]] = {name: [] for name in NAMES}

    async def main() -> None:
        for name, each in zip(NAMES, room, strict=True):
            each.prepare(health, f"{name} | scripted")
        await asyncio.sleep(80.0)
        async with asyncio.TaskGroup() as calls:
            for session in everybody:
                calls.create_task(call(session, stats, asked))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ConcurrencyLimit, "acquire", checked)
        patched.setattr(ConcurrencyLimit, "take_recall", noted)
        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(main())
    assert not beyond
    assert not any(member.open_requests for each in asked.values() for member in each)
    for key, entry in health.entries().items():
        assert entry.limit.in_flight == 0, key
        assert not entry.live, key
        assert not entry.breaker._is_probing, key
        event(f"a breaker is {entry.breaker.state(1e6)} at last")
    assert len(health._queue) == 0
    assert not health._granted
    assert not health._making_room
