"""Failing providers in virtual time: which get requests, which wait, what callers hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import (
    ErrorFrame,
    LLMContextFrame,
    LLMThoughtTextFrame,
)
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import AllProvidersFailed, HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.providers import (
    OBSERVED_LOSER_INTERVAL,
    CircuitBreakerSettings,
    ProviderRegistry,
)
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.race import BreakerReport, Tier
from pipecat_hedge.service import planned_turn, provider_race
from pipecat_hedge.service.http_listener import trace_response
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.no_harm.virtual import (
    SORRY,
    down,
    hedged,
    now,
    opened,
    rejects,
    rests,
    uses_up,
    well,
)
from tests.service import builders
from tests.service.builders import (
    NEVER,
    Inferring,
    Raising,
    asked,
    said,
    too_many_requests,
)
from tests.support.line import Line
from tests.support.logged import logged
from tests.support.standing import standing

pytestmark = pytest.mark.virtual_time

DOWN: list[Step] = [Wait(0.01), Error()]
FINE: list[Step] = [Wait(0.3), Say("Yes, do come.")]
LONG: list[Step] = [Wait(0.3), Say("Yes."), *[Wait(1), Say(" Do come.")] * 8]
BUSY: list[Step] = [Wait(0.01), Error("too many", category=ErrorCategory.RATE_LIMIT)]
NO_ROUTE = ErrorFrame(
    "no route", exception=httpx.ConnectError("no route"), category=ErrorCategory.CONNECTIVITY
)
UNREACHABLE: list[Step] = [Wait(0.01), NO_ROUTE]
RETRY_AFTER_SECS = 2.0
USED_UP_SECS = 30.0
HALF_OPEN_SECS = 75.0
"""By then an open breaker is half-open."""


def rejected() -> Step:
    """A rejection with a Retry-After."""
    error = too_many_requests(RETRY_AFTER_SECS)
    return ErrorFrame("too many", exception=error, category=ErrorCategory.RATE_LIMIT)


class UsedUp(ScriptedLLMService):
    """Every response says that no requests are left for half a minute."""

    async def _play(self, *args: Any, **__: Any) -> None:
        left, reset = "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"
        headers: dict[str, str] = {left: "0", reset: f"{USED_UP_SECS:g}s"}
        await trace_response(httpx.Response(200, headers=headers))
        await super()._play(*args)


def racing(*llms: ScriptedLLMService | Provider, **options: Any) -> HedgedLLMService:
    options = {"policy": HedgePolicy.fallback(fallback_text=SORRY), **options}
    return builders.racing(*llms, **options)


def scripts(*each: Sequence[Step]) -> ScriptedLLMService:
    return ScriptedLLMService(*each)


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of memory")


def health() -> ProviderRegistry:
    return shared_stats()


def bound(name: str, at_most: int) -> None:
    """Set a provider's limit."""
    health().record(f"{name} | scripted").limit.set_queue(at_most, until=1e9)


def busy(name: str, requests: int) -> list[Permit]:
    """Put requests in flight to a provider."""
    return [
        health().issue(f"{name} | scripted", "primary", Terms(), now()) for _ in range(requests)
    ]


def in_flight() -> int:
    return sum(entry.limit.in_flight for entry in health().records().values())


def requests(*llms: ScriptedLLMService) -> list[int]:
    return [len(llm.contexts) for llm in llms]


def launches(line: Line, turn: int = -1) -> list[tuple[str, str]]:
    """The provider and the reason of each attempt of a turn."""
    return [(a.provider, a.launch_reason) for a in line.reports[turn].attempts]


async def run_turns(line: Line, times: int, *, pause_secs: float = 0.0) -> None:
    for _ in range(times):
        await line.ask()
        await asyncio.sleep(pause_secs)


async def open_breaker(line: Line) -> None:
    """Have the first provider's breaker open and become half-open."""
    await run_turns(line, 5)
    await asyncio.sleep(HALF_OPEN_SECS)


UNWELL: dict[str, tuple[str, Callable[[], Any], str, float]] = {
    "Retry-After, the other's breaker open": (
        "+-",
        lambda: (rests("a", 20), opened("b")),
        "a",
        0.3,
    ),
    "rejecting, the other failed": ("-+", lambda: rejects("b"), "b", 0.3),
    "rejecting replacement": ("-++", lambda: (rejects("b"), opened("c")), "c", 0.3),
    "replacement's rate limit used up": ("-++", lambda: uses_up("b"), "c", 0.3),
}
"""The providers, which are well (+) or fail; what befalls them; which one answers, and when."""


@pytest.mark.parametrize("case", UNWELL)
async def test_unwell_providers_are_asked_after_others(case: str) -> None:
    """In turns and inferences; and are asked if no other is left, as by a bare service."""
    kinds, befall, name, secs = UNWELL[case]
    llm = hedged(*(well(n) if k == "+" else down() for n, k in zip("abc", kinds, strict=False)))
    async with Line(llm) as line:
        await asyncio.sleep(2 * HALF_OPEN_SECS)
        befall()
        await line.ask()
        report = await line.report()
        began = now()
        assert await llm.run_inference(said()) == "In short."
        assert now() - began == pytest.approx(secs)
    assert (line.text, report.ttft_secs) == (f"From {name}.", pytest.approx(secs))


class TestBreakers:
    async def test_dead_provider_is_excluded_after_five_failures(self) -> None:
        a, b, c, d = scripts(DOWN), scripts(FINE), scripts(DOWN), scripts(FINE)
        line = await asked(racing(a, b), turns=30)
        assert requests(a, b) == [5, 30]
        assert [attempt.provider for attempt in line.reports[-1].attempts] == ["b"]
        assert line.reports[-1].ttft_secs == pytest.approx(0.3)
        await asked(racing(c, d))
        assert requests(c, d) == [0, 1], "sessions share the breaker"

    @pytest.mark.parametrize(
        "faulty",
        [
            lambda: Raising(LLMContextConversionError(OSError())),
            lambda: scripts([Error(category=ErrorCategory.INVALID_REQUEST)]),
        ],
    )
    async def test_application_errors_open_no_breaker(self, faulty: Any) -> None:
        for _ in range(8):
            line = await asked(racing(faulty(), scripts(FINE)))
            assert launches(line) == [("a", "primary"), ("b", "failure")]
        assert standing(health(), "a | scripted", now()).breaker == "closed"

    @pytest.mark.parametrize("attempts", [1, 2])
    async def test_half_open_provider_is_asked_beside_a_healthy_one(self, attempts: int) -> None:
        a, b = scripts(*[DOWN] * 5, [Wait(0.2), Say("I am back.")]), scripts(FINE)
        policy = HedgePolicy.fallback(max_attempts=attempts)
        async with Line(racing(a, b, policy=policy)) as line:
            await open_breaker(line)
            await run_turns(line, 3)
        recovery = [("b", "primary"), ("a", "hedge")]
        assert [launches(line, turn) for turn in (5, 6, 7)] == [*[recovery] * 2, [("a", "primary")]]

    async def test_recovery_request_is_an_additional_attempt(self) -> None:
        a, b, c = scripts(DOWN), scripts(*[FINE] * 5, DOWN), scripts(FINE)
        async with Line(racing(a, b, c)) as line:
            await open_breaker(line)
            await run_turns(line, 1)
        assert line.reports[-1].winner == "c"
        assert [name for name, _ in launches(line)] == ["b", "a", "c"]

    async def test_failed_turn_start_releases_its_claim(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await open_breaker(line)
            with monkeypatch.context() as patched:
                patched.setattr(planned_turn, "plan_turn", _broken)
                await line.send(LLMContextFrame(said()))
                await line.until(lambda: bool(line.errors))
            await run_turns(line, 1)
        assert requests(a, b) == [6, 6]

    async def test_no_recovery_request_during_retry_after(self) -> None:
        a, b = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            rests("a", HALF_OPEN_SECS + 25)
            await asyncio.sleep(HALF_OPEN_SECS)
            await run_turns(line, 1)
            assert requests(a, b) == [5, 6]
            await asyncio.sleep(25)
            await run_turns(line, 1)
            assert requests(a, b) == [6, 7]

    async def test_overtaken_recovery_request_runs_on_to_its_token(self) -> None:
        """Two answers close the breaker, whichever provider won those turns."""
        a, b = scripts(*[DOWN] * 5, [Wait(0.9), Say("Late."), Wait(9)]), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await open_breaker(line)
            for before in ("half_open", "half_open", "closed"):
                assert standing(health(), "a | scripted", 1e3).breaker == before
                await run_turns(line, 1)
                assert a.open_requests == (before == "half_open")
                await asyncio.sleep(1)
                assert a.open_requests == 0
        assert line.text.startswith("Yes, do come." * 7 + "Late."), "it is first again"

    async def test_all_breakers_open_exclude_no_hedge(self) -> None:
        a, b = scripts(*[DOWN] * 6, [Wait(NEVER)]), scripts(*[DOWN] * 6, FINE)
        line = await asked(racing(a, b, policy=HedgePolicy.race(2)), turns=7)
        assert launches(line) == [("a", "primary"), ("b", "hedge")]
        assert line.reports[-1].ttft_secs == pytest.approx(0.3)

    async def test_a_provider_has_a_breaker_of_its_own(self) -> None:
        """Also if it had another one before."""
        await asked(racing(scripts(DOWN), scripts(FINE)))
        breaker = CircuitBreakerSettings(failures=2, recovery_secs=5, max_recovery_secs=5)
        strict = Provider("a", scripts(DOWN), breaker=breaker)
        policy = HedgePolicy.fallback(3)
        llm = builders.racing(strict, scripts(DOWN), scripts(FINE), policy=policy)
        async with Line(llm) as line:
            await run_turns(line, 2)
            states = llm.provider_states()
        assert [state.breaker for state in states] == ["open", "closed", "closed"]
        assert states[0].breaker_reason.startswith("2 failures in a row: open for ")

    async def test_network_outage_opens_no_breaker(self) -> None:
        a, b = [scripts(*[UNREACHABLE] * 10, FINE) for _ in "ab"]
        line = await asked(racing(a, b), turns=11, pause_secs=1)
        assert requests(a, b) == [11, 10]
        assert line.reports[-1].winner == "a"

    @pytest.mark.parametrize("how", ["superseded", "interrupted"])
    async def test_cancelled_attempts_do_not_count(self, how: str) -> None:
        a, b = scripts([Wait(0.8), Say("Late.")]), scripts([Wait(0.1), Say("Soon.")])
        async with Line(racing(a, b, policy=HedgePolicy.race())) as line:
            for _ in range(20):
                asking = asyncio.create_task(line.ask())
                await asyncio.sleep(0.05)
                assert a.open_requests == 1
                if how == "interrupted":
                    await line.interrupt()
                await asking
            assert standing(health(), "a | scripted", 1e3).breaker == "closed"

    async def test_overtaken_silent_provider_is_detected(self) -> None:
        a, b = scripts([Wait(NEVER)]), scripts(FINE)
        llm = racing(a, b, policy=HedgePolicy.after(0.5))
        line = await asked(llm, turns=60, pause_secs=15)
        assert {r.attempts[0].provider for r in line.reports[50:]} == {"b"}
        assert {r.winner for r in line.reports} == {"b"}
        assert a.open_requests == 0

    async def test_breaker_changes_are_published_once(self) -> None:
        found: list[BreakerReport] = []
        llm = racing(scripts([Error("secret words")]), scripts(FINE))

        @llm.event_handler("on_breaker_changed")
        async def on_breaker_changed(_: Any, report: BreakerReport) -> None:
            found.append(report)

        with logged("INFO") as lines:
            await asked(llm, turns=8)
        (report,) = found
        assert (report.provider, report.before, report.after) == ("a", "closed", "open")
        assert "5 failures in a row" in report.reason
        (said_of_a,) = [line for line in lines if line.startswith("WARNING: a is")]
        assert "secret" not in said_of_a
        state = llm.provider_states()[0]
        assert (state.breaker, state.breaker_reason) == ("open", report.reason)


class TestLoad:
    async def test_load_rejection_is_not_a_failure(self) -> None:
        llm = racing(scripts(BUSY), scripts(FINE))
        async with Line(llm) as line:
            before = llm.provider_states()[0].limit
            await run_turns(line, 8, pause_secs=1)
            assert llm.provider_states()[0].limit < before
            assert llm.provider_states()[0].breaker == "closed"
            await run_turns(line, 5, pause_secs=1)
            assert llm.provider_states()[0].breaker == "open"

    @pytest.mark.parametrize("losers", ["cancel", "drain"])
    async def test_retry_after_counts_from_the_rejection(self, losers: Any) -> None:
        a, b, c, d = scripts([rejected()], FINE), scripts(LONG), scripts(FINE), scripts(FINE)
        policy = HedgePolicy.fallback(losers=losers)
        one, two = Line(racing(a, b, policy=policy)), Line(racing(c, d, policy=policy))
        async with one, two:
            speaking = asyncio.create_task(one.ask())
            await asyncio.sleep(1.0)  # until it has room again
            await two.ask()
            assert requests(c, d) == [0, 1], "Retry-After applies"
            await asyncio.sleep(RETRY_AFTER_SECS)
            await two.ask()
            assert requests(c, d) == [1, 1], "Retry-After is over"
            await speaking
            await one.ask()
            assert requests(a, b) == [2, 1], "Retry-After does not restart"

    async def test_inference_retry_after_applies_at_once(self) -> None:
        c, d = scripts(FINE), scripts(FINE)
        summing = racing(Raising(too_many_requests(RETRY_AFTER_SECS)), Inferring(secs=8.0))
        async with Line(summing), Line(racing(c, d)) as two:
            inferring = asyncio.create_task(summing.run_inference(said()))
            await asyncio.sleep(1.0)
            await two.ask()
            assert requests(c, d) == [0, 1]
            await asyncio.sleep(RETRY_AFTER_SECS)
            await two.ask()
            assert requests(c, d) == [1, 1]
            assert await inferring == "In short."

    async def test_used_up_rate_limit_applies_from_the_response_start(self) -> None:
        """To turns and hedges of all sessions, until its reset."""
        a, b = UsedUp(LONG), scripts(FINE)
        c, d = scripts(FINE), scripts([Wait(2.0), Say("Yes, do come.")])
        policy = HedgePolicy.after(0.5)
        async with Line(racing(a, b)) as one, Line(racing(c, d, policy=policy)) as two:
            speaking = asyncio.create_task(one.ask())
            await asyncio.sleep(0.01)
            await two.ask()
            assert requests(c, d) == [0, 1]
            report = await two.report()
            assert report.hedge_reason == "no hedge: a has its rate limit used up for 28 s"
            await speaking
            await asyncio.sleep(USED_UP_SECS)
            await two.ask()
            assert requests(c, d) == [1, 1]

    async def test_standard_turn_leaves_room_for_premium_ones(self) -> None:
        """A third of the limit, in the minute after a premium turn."""
        tiers: list[Tier] = ["premium", "standard"]
        premium, standard = (
            Line(racing(scripts(FINE), tier=tier, admission="shed")) for tier in tiers
        )
        busy("a", 7)
        bound("a", 10)
        async with premium, standard:
            await premium.ask()
            await standard.ask()
        assert (premium.text, standard.text) == ("Yes, do come.", SORRY)

    async def test_rejected_hedge_is_not_sent_and_refunded(self) -> None:
        bound("b", 1)
        policy, spare = HedgePolicy.adaptive(0.1, silence_secs=None), scripts(FINE)
        holder = racing(scripts(DOWN), scripts([Wait(30.0), Say("Long.")]))
        slow = racing(scripts([Wait(8.0), Say("Late.")]), spare, policy=policy)
        async with Line(holder) as one, Line(slow) as two:
            holding = asyncio.create_task(one.ask())
            await asyncio.sleep(0.1)
            await two.ask()
            report = await two.report()
            assert report.hedge_reason == "no hedge: b has 1 of 1 requests in flight"
            assert (len(report.attempts), requests(spare)) == (1, [0])
            assert shared_stats().accounts.accounts[0.1].balance > 0
            await one.interrupt()
            await holding

    async def test_slow_inferences_do_not_lower_the_limit(self) -> None:
        """An inference of six seconds is no evidence of a provider's capacity."""
        before = standing(health(), "a | scripted", now()).limit
        sessions = [racing(Inferring(secs=6.0)) for _ in range(40)]
        await asyncio.gather(*(llm.run_inference(said()) for llm in sessions))
        assert standing(health(), "a | scripted", now()).limit == before

    async def test_failed_inference_releases_its_permit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provider_race, "take_best_instance", _broken)
        llm = racing(Inferring())
        async with Line(llm):
            with pytest.raises(AllProvidersFailed):
                await llm.run_inference(said())
            assert in_flight() == 0


class TestShedding:
    """``admission="shed"``: for a platform beyond its capacity."""

    async def test_shedding_turn_without_room_ends_at_once(self) -> None:
        """Beside one of a session that does not shed, which is answered."""
        bound("a", 1)
        busy("a", 1)
        shedding, other = Line(racing(scripts(FINE), admission="shed")), Line(racing(scripts(FINE)))
        async with shedding, other:
            await shedding.ask()
            await other.ask()
        (report,) = shedding.reports
        assert (shedding.text, other.text) == (SORRY, "Yes, do come.")
        assert (report.attempts, report.outcome, report.duration_secs) == ((), "failed", 0.0)
        assert report.degraded_reason == "a has 1 of 1 requests in flight"
        assert other.reports[0].ttft_secs == pytest.approx(0.3)

    async def test_shedding_turn_replaces_a_failure_only_where_there_is_room(self) -> None:
        a, b, c = scripts(DOWN), scripts(FINE), scripts(FINE)
        busy("b", 1)
        bound("b", 1)
        line = await asked(racing(a, b, c, admission="shed"))
        assert (line.text, requests(a, b, c)) == ("Yes, do come.", [1, 0, 1])


class TestObservedLosers:
    """Of the losing requests, some run on until their first token."""

    TURNS = 60
    REASONS = [LLMThoughtTextFrame("Let me think about this. "), Wait(0.5)] * 4

    def reasoning(self, *, probes: bool = True) -> HedgedLLMService:
        """The second provider reasons for two seconds and always loses."""
        slow = Provider("b", scripts([*self.REASONS, Say("Hi.")]), usd_per_mtok=(1.0, 2.0))
        quick = scripts([Wait(0.1), Say("Hello there.")])
        return racing(quick, slow, policy=HedgePolicy.race(2, probes=probes))

    @pytest.mark.parametrize("probes", [True, False])
    async def test_observed_loser_is_reported_with_its_latency(self, probes: bool) -> None:
        line = await asked(self.reasoning(probes=probes), self.TURNS, pause_secs=3.0)
        assert sorted(report.turn for report in line.reports) == [*range(1, self.TURNS + 1)]
        losers = [report.attempts[1] for report in line.reports]
        assert all(loser.outcome == "superseded" for loser in losers)
        let_run = [loser for loser in losers if loser.ended_secs > 0.15]
        assert bool(let_run) is probes
        assert len(let_run) <= 1 + 2 * self.TURNS // OBSERVED_LOSER_INTERVAL
        for loser in let_run:
            assert loser.ttft_secs is not None
            assert 2.0 <= loser.ttft_secs <= loser.ended_secs <= 2.1
            assert loser.input_tokens is not None
            assert loser.output_tokens is not None
            assert loser.output_tokens >= 4 * 6
            assert loser.usd == (loser.input_tokens + 2 * loser.output_tokens) / 1e6

    @pytest.mark.parametrize("is_interrupted", [False, True])
    async def test_end_of_the_call_ends_an_observed_loser(self, is_interrupted: bool) -> None:
        """So does an interruption."""
        async with Line(self.reasoning()) as line:
            await run_turns(line, 4)
            assert len(line.reports) < 4, "no loser was let run on"
            if is_interrupted:
                await line.interrupt()
                await asyncio.sleep(0.1)
                assert len(line.reports) == 4
        assert sorted(report.turn for report in line.reports) == [1, 2, 3, 4]
