"""Whole services, cancelled at any point: every permit, claim and request is released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import EagerEndOfTurnCancelFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import AllProvidersFailed, HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.providers import ProviderRegistry
from pipecat_hedge.providers.concurrency_limit import ConcurrencyLimit
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.race import TIERS, Tier
from pipecat_hedge.service import AdmissionMode
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import NEVER, racing, said
from tests.support.line import Line
from tests.support.standing import standing

NAMES = "abc"
BEGINS_AT = 80.0
"""By then a breaker that has opened is half open."""
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
    HedgePolicy.adaptive(0.3, max_attempts=3, losers=losers, fallback_text="One moment.")
    for losers in ("cancel", "drain")
] + [
    HedgePolicy.race(2, losers="drain", fallback_text="One moment."),
    HedgePolicy.after(0.5, max_attempts=3, deadline_secs=4.0),
    HedgePolicy.fallback(max_attempts=1),
]

MOVES = [*["ask"] * 3, "interrupt", "withdraw", "summarise", "give up the summary", "warm up"]


@dataclass(frozen=True)
class Session:
    """One caller's call.

    Parameters:
        policy: Its hedging policy.
        tier: Its tier.
        admission: Its admission mode.
        scripts: Each provider's scripts, turn by turn.
        moves: Its actions, each with the seconds since the one before.
        hangs_up: Whether its pipeline is cancelled instead of ended.
    """

    policy: HedgePolicy
    tier: Tier
    admission: AdmissionMode
    scripts: tuple[tuple[str, ...], ...]
    moves: tuple[tuple[float, str], ...]
    hangs_up: bool


secs = st.floats(0.0, 4.0).map(lambda value: round(value, 1))  # makes events coincide
turns = st.lists(st.sampled_from(sorted(SCRIPTS)), min_size=1, max_size=4).map(tuple)
sessions = st.builds(
    Session,
    st.sampled_from(POLICIES),
    st.sampled_from(TIERS),
    st.sampled_from(["open", "open", "shed"]),
    st.tuples(turns, turns, turns),
    st.lists(st.tuples(secs, st.sampled_from(MOVES)), min_size=1, max_size=8).map(tuple),
    st.booleans(),
)


class Summing(ScriptedLLMService):
    """Runs an inference too, for as long as its first script lasts."""

    def __init__(self, scripts: Sequence[str]):
        super().__init__(*(SCRIPTS[name] for name in scripts))
        self._first = scripts[0]

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
    """Cancels a line's pipeline."""


async def call(session: Session, stats: ProviderStats, asked: dict[str, list[Summing]]) -> None:
    """A call; no turn of an open session is rejected."""
    members = [Summing(scripts) for scripts in session.scripts]
    for name, member in zip(NAMES, members, strict=True):
        asked[name].append(member)
    llm = racing(
        *(Provider(n, m, timeout_secs=30.0) for n, m in zip(NAMES, members, strict=True)),
        policy=session.policy,
        stats=stats,
        tier=session.tier,
        admission=session.admission,
    )
    context = said()
    summaries: list[asyncio.Task[Any]] = []
    reports: list[TurnReport] = []
    with suppress(HungUp):
        async with Line(llm) as line:
            reports = line.reports
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
    if session.admission == "open":
        for report in reports:
            assert report.attempts or report.degraded_reason is None, report.degraded_reason


async def summarise(llm: HedgedLLMService, context: LLMContext) -> None:
    with suppress(AllProvidersFailed):
        await llm.run_inference(context)


@dataclass(frozen=True)
class Room:
    """A provider's state when the calls begin.

    Parameters:
        at_most: Its stated limit of requests in flight; None is none.
        retry_after_secs: The time left of its Retry-After.
        is_half_open: Whether its breaker is half-open.
    """

    at_most: int | None
    retry_after_secs: float
    is_half_open: bool

    def prepare(self, health: ProviderRegistry, key: str) -> None:
        """Set this state before the calls begin."""
        for _ in range(5 * self.is_half_open):
            permit = health.issue(key, "primary", Terms(), 0.0)
            health.release(permit, "failed", 0.0)
        health.set_retry_after(key, BEGINS_AT + self.retry_after_secs)
        if self.at_most is not None:
            health.record(key).limit.set_queue(self.at_most, until=NEVER)


rooms = st.builds(
    Room, st.integers(0, 3) | st.none(), st.sampled_from([0.0, 2.0, 60.0]), st.booleans()
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sessions, min_size=1, max_size=4), st.tuples(rooms, rooms, rooms))
def test_cancellation_leaves_no_permit_or_request(
    everybody: list[Session], room: tuple[Room, ...]
) -> None:
    unpermitted: list[str] = []
    acquire = ConcurrencyLimit.acquire

    def checked(self: ConcurrencyLimit, *args: Any, **kwargs: Any) -> None:
        open_requests = sum(
            member.open_requests
            for name in NAMES
            if health.record(f"{name} | scripted").limit is self
            for member in asked[name]
        )
        acquire(self, *args, **kwargs)
        if not open_requests < self.in_flight:
            unpermitted.append(f"{open_requests} open, {self.in_flight} permits")

    stats = ProviderStats()
    health = stats
    asked: dict[str, list[Summing]] = {name: [] for name in NAMES}

    async def main() -> None:
        for name, each in zip(NAMES, room, strict=True):
            each.prepare(health, f"{name} | scripted")
        await asyncio.sleep(BEGINS_AT)
        async with asyncio.TaskGroup() as calls:
            for session in everybody:
                calls.create_task(call(session, stats, asked))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ConcurrencyLimit, "acquire", checked)
        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(main())
    assert not unpermitted
    assert not any(member.open_requests for each in asked.values() for member in each)
    for key, entry in health.records().items():
        assert entry.limit.in_flight == 0, key
        state = standing(health, key, 1e6).breaker
        assert state == "closed" or health.claim_recovery(key, 1e6), f"{key}: a claim was kept"
        event(f"a breaker is {state} at last")
