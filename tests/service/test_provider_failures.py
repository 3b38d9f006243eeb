"""Failing providers in virtual time: which get requests, which wait, what callers hear."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from loguru import logger
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import ErrorFrame, LLMContextFrame, LLMTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import AllProvidersFailed, HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.limits import LATENCY_PROBE_INTERVAL, AdmissionController
from pipecat_hedge.limits.permit_queue import Ticket
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.race import BreakerReport, Tier
from pipecat_hedge.service import attempt_runner
from pipecat_hedge.service import hedged_service as service
from pipecat_hedge.service.admission import AdmissionMode
from pipecat_hedge.service.provider_client import _read_rate_limit
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

NEVER = float("inf")
SORRY = "One moment, please."
DOWN: list[Step] = [Wait(0.01), Error()]
FINE: list[Step] = [Wait(0.3), Say("Yes, do come.")]
LONG: list[Step] = [Wait(0.3), Say("Yes."), *[Wait(1), Say(" Do come.")] * 8]
BUSY: list[Step] = [Wait(0.01), Error("too many", category=ErrorCategory.RATE_LIMIT)]
BACK: list[Step] = [Wait(0.2), Say("Yes, do come.")]
UNREACHABLE: list[Step] = [
    Wait(0.01),
    ErrorFrame(
        "no route", exception=httpx.ConnectError("no route"), category=ErrorCategory.CONNECTIVITY
    ),
]


RETRY_AFTER_SECS = 2.0


def too_many() -> httpx.HTTPStatusError:
    """A 429 with a Retry-After."""
    headers = {"retry-after": f"{RETRY_AFTER_SECS:g}"}
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    response = httpx.Response(429, headers=headers, request=request)
    return httpx.HTTPStatusError("too many", request=request, response=response)


def refused() -> Step:
    return ErrorFrame("too many", exception=too_many(), category=ErrorCategory.RATE_LIMIT)


def scripts(*each: Sequence[Step]) -> ScriptedLLMService:
    return ScriptedLLMService(*each)


class Telling(ScriptedLLMService):
    """Every response states the requests left for half a minute."""

    def __init__(self, script: Sequence[Step], left: int):
        super().__init__(script)
        self._left = left

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        found = {
            "x-ratelimit-remaining-requests": f"{self._left}",
            "x-ratelimit-reset-requests": "30s",
        }
        await _read_rate_limit(httpx.Response(200, headers=found))
        await super()._play(script, context)


class SlowToClose(ScriptedLLMService):
    """Takes a second to close a cancelled request."""

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        try:
            await super()._play(script, context)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
            raise


class Raising(ScriptedLLMService):
    """Raises an exception in every turn."""

    def __init__(self, exception: Exception):
        super().__init__(FINE)
        self._exception = exception

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        raise self._exception


class Summing(ScriptedLLMService):
    """Runs inferences, if it can."""

    def __init__(self, *, secs: float = 0.0, refused: bool = False):
        super().__init__(FINE)
        self._secs, self._refused = secs, refused

    async def run_inference(self, context: LLMContext, *args: Any, **kwargs: Any) -> str:
        if self._refused:
            raise too_many()
        await asyncio.sleep(self._secs)
        return "In short."


def racing(
    *llms: ScriptedLLMService,
    policy: HedgePolicy | None = None,
    tier: Tier = "standard",
    admission: AdmissionMode = "open",
) -> HedgedLLMService:
    """The services as providers a, b, c."""
    named = [Provider(name, llm) for name, llm in zip("abc", llms, strict=False)]
    policy = policy or HedgePolicy.fallback(fallback_text=SORRY)
    return HedgedLLMService(named, policy=policy, tier=tier, admission=admission)


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of memory")


def health() -> AdmissionController:
    return shared_stats().health


def bound(name: str, at_most: int) -> None:
    """Set a provider's limit."""
    health().entry(f"{name} | scripted").limit.set_queue(at_most, until=1e9)


def overrun(name: str, requests: int) -> list[Permit]:
    """Put requests in flight to a provider that has just rejected another."""
    now, permits = asyncio.get_running_loop().time(), list[Permit]()
    for _ in range(requests + 1):
        permit = health().acquire(
            Ticket("primary", "standard", now, (f"{name} | scripted",), now), now
        )
        assert permit is not None
        permits.append(permit)
    health().release(permits.pop(), "busy", now)
    return permits


def release(*permits: Permit) -> None:
    for permit in permits:
        health().release(permit, "answered", asyncio.get_running_loop().time())


def rest(name: str, secs: float) -> None:
    """Record a Retry-After of a provider."""
    health().set_retry_after(f"{name} | scripted", asyncio.get_running_loop().time() + secs)


def in_flight() -> int:
    return sum(entry.limit.in_flight for entry in health().entries().values())


def requests(*llms: ScriptedLLMService) -> list[int]:
    return [len(llm.contexts) for llm in llms]


async def run_turns(line: Line, times: int) -> None:
    for _ in range(times):
        await line.ask()


async def both(one: Line, two: Line) -> None:
    """Run two turns at once, the first slightly earlier."""
    first = asyncio.create_task(one.ask())
    await asyncio.sleep(0.01)
    await two.ask()
    await first


class TestBreakers:
    async def test_dead_provider_is_excluded_after_five_failures(self) -> None:
        a, b = scripts(DOWN), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 30)
            last = await line.report(30)
        assert requests(a, b) == [5, 30]
        assert [attempt.provider for attempt in last.attempts] == ["b"]
        assert last.ttft_secs == pytest.approx(0.3)

    async def test_breaker_state_is_shared_between_sessions(self) -> None:
        a, b, c, d = scripts(DOWN), scripts(FINE), scripts(DOWN), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
        async with Line(racing(c, d)) as line:
            await run_turns(line, 1)
        assert requests(c, d) == [0, 1]

    @pytest.mark.parametrize("is_reported", [True, False])
    async def test_unconvertible_context_opens_no_breaker(self, is_reported: bool) -> None:
        error = LLMContextConversionError(ValueError("no such file"))
        found: list[Step] = [ErrorFrame("failed", exception=error)]

        def member() -> ScriptedLLMService:
            return scripts(found) if is_reported else Raising(error)

        policy = HedgePolicy.fallback(max_attempts=3, fallback_text=SORRY)
        async with Line(racing(member(), member(), member(), policy=policy)) as line:
            await run_turns(line, 6)
            report = await line.report(6)
        now = asyncio.get_running_loop().time()
        assert {health().state(f"{name} | scripted", now) for name in "abc"} == {"closed"}
        assert [attempt.error_category for attempt in report.attempts] == ["application"] * 3
        async with Line(racing(a := scripts(FINE), scripts(FINE))) as other:
            await run_turns(other, 1)
        assert requests(a) == [1]

    async def test_unsupported_inference_opens_no_breaker(self) -> None:
        llm = racing(scripts(FINE), scripts(FINE))
        async with Line(llm) as line:
            for _ in range(6):
                with pytest.raises(AllProvidersFailed, match="a: application, b: application"):
                    await llm.run_inference(LLMContext([{"role": "user", "content": "?"}]))
            await line.ask()
            assert line.text == "Yes, do come."

    async def test_half_open_provider_is_probed_beside_a_healthy_one(self) -> None:
        a, b = scripts(*[DOWN] * 5, BACK), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            await run_turns(line, 3)
            reports = line.reports[5:]
        found = [[(t.provider, t.launch_reason) for t in r.attempts] for r in reports]
        assert found == [
            [("b", "primary"), ("a", "hedge")],
            [("b", "primary"), ("a", "hedge")],
            [("a", "primary")],
        ]

    async def test_failed_probe_costs_the_caller_nothing(self) -> None:
        a, b = scripts(DOWN), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            await run_turns(line, 2)
            probing, after = line.reports[5:]
        assert [t.outcome for t in probing.attempts] == ["won", "failed"]
        assert probing.ttft_secs == pytest.approx(0.3)
        assert [t.provider for t in after.attempts] == ["b"]

    async def test_probe_is_an_additional_attempt(self) -> None:
        a, b, c = scripts(DOWN), scripts(*[FINE] * 5, DOWN), scripts(FINE)
        async with Line(racing(a, b, c)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            await run_turns(line, 1)
            report = line.reports[-1]
        assert report.winner == "c"
        assert len(report.attempts) == 3

    async def test_late_loop_sends_no_probe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b, c = scripts(DOWN), scripts(*[FINE] * 5, DOWN), scripts(FINE)
        async with Line(racing(a, b, c)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            watch = shared_stats().loop_watch
            monkeypatch.setattr(watch, "refusal", lambda: "the event loop is 0.31 s behind")
            await run_turns(line, 1)
            found = [(t.provider, t.launch_reason) for t in line.reports[-1].attempts]
        assert found == [("b", "primary"), ("c", "failure")]
        assert health().claim_probe("a | scripted", 1e3), "the claim has come back"

    async def test_failed_turn_start_releases_its_probe_claim(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            with monkeypatch.context() as patched:
                patched.setattr(service, "TurnPlanner", _broken)
                await line.send(LLMContextFrame(LLMContext()))
                await line.until(lambda: bool(line.errors))
            await run_turns(line, 1)
        assert requests(a, b) == [6, 6]

    async def test_no_probe_during_retry_after(self) -> None:
        a, b = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            health().set_retry_after("a | scripted", asyncio.get_running_loop().time() + 100)
            await asyncio.sleep(75)
            await run_turns(line, 1)
            assert requests(a, b) == [5, 6]
            await asyncio.sleep(25)
            await run_turns(line, 1)
            assert requests(a, b) == [6, 7]

    async def test_single_attempt_policy_probes_too(self) -> None:
        a, b = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        policy = HedgePolicy.fallback(max_attempts=1)
        async with Line(racing(a, b, policy=policy)) as line:
            await run_turns(line, 6)
            assert requests(a, b) == [5, 1]
            await asyncio.sleep(75)
            await run_turns(line, 2)
            assert requests(a, b) == [7, 3]

    async def test_overtaken_probe_runs_on_to_its_token(self) -> None:
        a, b = scripts(*[DOWN] * 5, [Wait(0.9), Say("Late."), Wait(9)]), scripts(FINE)
        turns = 0
        async with Line(racing(a, b)) as line:
            await run_turns(line, 5)
            await asyncio.sleep(75)
            while health().state("a | scripted", 1e3) == "half_open":
                await run_turns(line, 1)
                assert a.open_requests == (turns in (0, LATENCY_PROBE_INTERVAL // 2))
                turns += 1
                await asyncio.sleep(1)
                assert a.open_requests == 0
        assert turns == LATENCY_PROBE_INTERVAL // 2 + 1
        assert health().state("a | scripted", 1e3) == "closed"
        assert line.text == "Yes, do come." * (5 + turns)

    async def test_all_breakers_open_sends_requests_as_usual(self) -> None:
        a, b = scripts(*[DOWN] * 8, FINE), scripts(DOWN)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 9)
            assert requests(a, b) == [9, 8]
            outcomes = [report.outcome for report in line.reports]
            assert outcomes == ["failed"] * 8 + ["answered"]
            assert line.reports[-1].queued_secs == 0.0
            await run_turns(line, 1)
            assert [attempt.provider for attempt in line.reports[-1].attempts] == ["a"]

    async def test_all_breakers_open_rotates_the_first_choice(self) -> None:
        a, b, c = scripts(DOWN), scripts(DOWN), scripts(DOWN)
        policy = HedgePolicy.fallback(max_attempts=3)
        async with Line(racing(a, b, c, policy=policy)) as line:
            await run_turns(line, 5 + 30)
            firsts = [report.attempts[0].provider for report in line.reports[5:]]
        assert {name: firsts.count(name) for name in "abc"} == dict.fromkeys("abc", 10)

    async def test_network_outage_opens_no_breaker(self) -> None:
        a, b = scripts(*[UNREACHABLE] * 10, FINE), scripts(*[UNREACHABLE] * 10, FINE)
        async with Line(racing(a, b)) as line:
            for _ in range(10):
                await line.ask()
                await asyncio.sleep(1)
            assert requests(a, b) == [10, 10]
            await line.ask()
            assert [attempt.provider for attempt in line.reports[-1].attempts] == ["a"]

    async def test_unreachable_provider_is_excluded_after_two_seconds(self) -> None:
        a, b = scripts(UNREACHABLE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            await run_turns(line, 30)
        assert 5 <= requests(a)[0] <= 12
        assert {report.winner for report in line.reports} == {"b"}

    async def test_all_failing_mid_answer_speaks_the_fallback(self) -> None:
        cut: list[Step] = [Wait(0.3), Say("Yes, we are open."), Wait(0.5), Error()]
        a, b, c = scripts(cut), scripts(DOWN), scripts(DOWN)
        policy = HedgePolicy.fallback(max_attempts=3, fallback_text=SORRY)
        async with Line(racing(a, b, c, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == f"Yes, we are open. {SORRY}"
        assert (report.outcome, report.ttft_secs) == ("failed", pytest.approx(0.3))
        assert [attempt.provider for attempt in report.attempts] == ["a", "b", "c"]
        assert report.degraded_reason is not None
        assert "broke off" in report.degraded_reason
        assert len(line.errors) == 1

    @pytest.mark.parametrize("how", ["superseded", "interrupted"])
    async def test_cancelled_attempts_do_not_count(self, how: str) -> None:
        a, b = scripts([Wait(0.8), Say("Late.")]), scripts([Wait(0.1), Say("Soon.")])
        async with Line(racing(a, b, policy=HedgePolicy.race())) as line:
            for _ in range(20):
                if how == "superseded":
                    await line.ask()
                else:
                    await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "?"}])))
                    await asyncio.sleep(0.05)
                    assert a.open_requests == 1
                    await line.interrupt()
                    await asyncio.sleep(0.05)
            assert health().state("a | scripted", 1e3) == "closed"

    @pytest.mark.parametrize("category", [ErrorCategory.APPLICATION, ErrorCategory.INVALID_REQUEST])
    async def test_application_errors_do_not_count(self, category: ErrorCategory) -> None:
        for _ in range(10):
            a, b = scripts([Error(category=category)]), scripts(FINE)
            async with Line(racing(a, b)) as line:
                await run_turns(line, 1)
        assert health().state("a | scripted", 1e3) == "closed"

    async def test_overtaken_silent_provider_is_detected(self) -> None:
        a, b = scripts([Wait(NEVER)]), scripts(FINE)
        async with Line(racing(a, b, policy=HedgePolicy.after(0.5))) as line:
            for _ in range(60):
                await line.ask()
                await asyncio.sleep(15)
            assert {r.attempts[0].provider for r in line.reports[50:]} == {"b"}
        assert {r.winner for r in line.reports} == {"b"}
        assert a.open_requests == 0

    @pytest.mark.parametrize("probes", [True, False])
    async def test_few_losers_become_latency_probes(self, probes: bool) -> None:
        a, b = scripts([Wait(2.0), Say("Late."), Wait(9.0)]), scripts(FINE)
        policy = HedgePolicy.after(0.5, probes=probes)
        ran_on = 0
        async with Line(racing(a, b, policy=policy)) as line:
            for _ in range(100):
                await line.ask()
                ran_on += a.open_requests
                await asyncio.sleep(1.5)
                assert a.open_requests == 0
        assert ran_on == (3 if probes else 0)

    async def test_slow_provider_is_not_silent(self) -> None:
        a, b = scripts([Wait(2.0), Say("Late.")]), scripts(FINE)
        async with Line(racing(a, b, policy=HedgePolicy.after(0.5))) as line:
            for _ in range(20):
                await line.ask()
                await asyncio.sleep(4)
        assert requests(a) == [20]

    async def test_breaker_changes_are_published_once(self) -> None:
        found: list[BreakerReport] = []
        lines: list[str] = []
        sink = logger.add(lambda line: lines.append(str(line)), level="INFO", format="{message}")
        a, b = scripts([Error("secret words")]), scripts(FINE)
        llm = racing(a, b)

        @llm.event_handler("on_breaker_changed")
        async def on_breaker_changed(_: Any, report: BreakerReport) -> None:
            found.append(report)

        async with Line(llm) as line:
            await run_turns(line, 8)
            state = llm.provider_states()[0]
        logger.remove(sink)
        (report,) = found
        assert (report.provider, report.before, report.after) == ("a", "closed", "open")
        assert "5 failures in a row" in report.reason
        ours = [line for line in lines if line.startswith("a is")]
        assert len(ours) == 1
        assert "secret" not in "".join(ours)
        assert (state.breaker, state.breaker_reason) == ("open", report.reason)


class TestLoad:
    async def test_load_rejection_is_not_a_failure(self) -> None:
        a, b = scripts(BUSY), scripts(FINE)
        llm = racing(a, b)
        async with Line(llm) as line:
            before = llm.provider_states()[0].limit
            for _ in range(8):
                await line.ask()
                await asyncio.sleep(1)
            assert llm.provider_states()[0].limit < before
            assert llm.provider_states()[0].breaker == "closed"
            for _ in range(5):
                await line.ask()
                await asyncio.sleep(1)
            assert llm.provider_states()[0].breaker == "open"

    @pytest.mark.parametrize("losers", ["cancel", "drain"])
    async def test_retry_after_counts_from_the_rejection(self, losers: Any) -> None:
        a, b, c, d = scripts([refused()], FINE), scripts(LONG), scripts(FINE), scripts(FINE)
        policy = HedgePolicy.fallback(losers=losers)
        async with (
            Line(racing(a, b, policy=policy)) as one,
            Line(racing(c, d, policy=policy)) as two,
        ):
            speaking = asyncio.create_task(one.ask())
            await asyncio.sleep(0.01)
            await two.ask()
            assert requests(c, d) == [0, 1], "Retry-After applies"
            await asyncio.sleep(RETRY_AFTER_SECS)
            await two.ask()
            assert requests(c, d) == [1, 1], "Retry-After is over"
            await speaking
            await one.ask()
            assert requests(a, b) == [2, 1], "Retry-After does not restart"

    async def test_inference_retry_after_applies_at_once(self) -> None:
        busy, slow = Summing(refused=True), Summing(secs=8.0)
        c, d = scripts(FINE), scripts(FINE)
        summing = HedgedLLMService(
            [Provider("a", busy), Provider("b", slow)], policy=HedgePolicy.fallback()
        )
        async with Line(summing), Line(racing(c, d)) as two:
            context = LLMContext([{"role": "user", "content": "?"}])
            inferring = asyncio.create_task(summing.run_inference(context))
            await asyncio.sleep(0.01)
            await two.ask()
            assert requests(c, d) == [0, 1]
            await asyncio.sleep(RETRY_AFTER_SECS)
            await two.ask()
            assert requests(c, d) == [1, 1]
            assert await inferring == "In short."

    async def test_rate_limit_counts_from_the_response_start(self) -> None:
        a, b, c, d = Telling(LONG, left=1), scripts(FINE), scripts(FINE), scripts(FINE)
        async with Line(racing(a, b)) as one, Line(racing(c, d)) as two:
            speaking = asyncio.create_task(one.ask())
            await asyncio.sleep(0.01)
            await run_turns(two, 2)
            await speaking
        assert requests(a, b, c, d) == [1, 0, 1, 1]

    async def test_old_response_does_not_override_newer_rate_limit(self) -> None:
        a, b = Telling(LONG, left=5), scripts(FINE)
        c, d = Telling(FINE, left=0), scripts(FINE)
        async with Line(racing(a, b)) as one, Line(racing(c, d)) as two:
            speaking = asyncio.create_task(one.ask())
            await asyncio.sleep(0.01)
            await two.ask()
            await speaking
            await two.ask()
        assert requests(a, b, c, d) == [1, 0, 1, 1]

    async def test_request_goes_to_a_provider_with_room(self) -> None:
        bound("a", 1)
        a, b = scripts(FINE), scripts(FINE)
        c, d = scripts(FINE), scripts(FINE)
        async with Line(racing(a, b)) as one, Line(racing(c, d)) as two:
            await both(one, two)
        assert requests(a, b, c, d) == [1, 0, 0, 1]
        assert two.reports[0].queued_secs == 0.0

    async def test_full_limits_do_not_delay_callers(self) -> None:
        bound("a", 1)
        bound("b", 0)
        lines = [Line(racing(scripts(FINE), scripts(FINE))) for _ in range(20)]
        async with AsyncExitStack() as stack:
            for line in lines:
                await stack.enter_async_context(line)
            await asyncio.gather(*(line.ask() for line in lines))
        for line in lines:
            (attempt,) = line.reports[0].attempts
            assert (attempt.provider, line.reports[0].queued_secs) == ("a", 0.0)
            assert line.reports[0].ttft_secs == pytest.approx(0.3)

    async def test_turn_waits_when_all_reject_and_reports_it(self) -> None:
        held = overrun("a", 2)
        async with Line(racing(scripts(FINE))) as line:
            asking = asyncio.create_task(line.ask())
            await asyncio.sleep(0.2)
            release(*held)
            await asking
        report = line.reports[0]
        assert report.outcome == "answered"
        assert report.queued_secs == pytest.approx(0.2, abs=0.02)
        assert report.ttft_secs == pytest.approx(0.3 + report.queued_secs)
        assert report.attempts[0].launched_secs == pytest.approx(report.queued_secs)
        assert in_flight() == 0

    async def test_turn_is_sent_after_three_seconds(self) -> None:
        overrun("a", 80)
        async with Line(racing(scripts(FINE))) as line:
            await line.ask()
        assert line.text == "Yes, do come."
        assert line.reports[0].queued_secs == pytest.approx(3.0, abs=0.02)

    async def test_turn_does_not_wait_if_a_provider_accepts(self) -> None:
        a, b = scripts(FINE), scripts(*[DOWN] * 5, FINE)
        async with Line(racing(b, a)) as line:
            await run_turns(line, 5)
            assert health().state("a | scripted", 1.0) == "open"
            overrun("b", 80)
            await line.ask()
            assert line.reports[-1].queued_secs == 0.0
            assert line.reports[-1].winner == "a"

    async def test_queue_time_is_not_latency(self) -> None:
        llm = racing(scripts(FINE))
        async with Line(llm) as line:
            for _ in range(40):
                rest("a", 1.0)
                await line.ask()
            (state,) = llm.provider_states()
        assert state.p50_secs == pytest.approx(0.3, abs=0.05)

    @pytest.mark.parametrize("losers", ["cancel", "drain"])
    async def test_queued_attempt_is_not_sent_after_the_commit(self, losers: Any) -> None:
        a, b = scripts([Wait(2.0), Say("Yes, do come.")]), scripts(FINE)
        policy = HedgePolicy.fallback(stall_secs=1.0, losers=losers)
        async with Line(racing(a, b, policy=policy)) as line:
            asking = asyncio.create_task(line.ask())
            await asyncio.sleep(0.5)
            rest("b", 2.0)
            await asking
            report = await line.report()
            await asyncio.sleep(10)
        found = [(t.provider, t.launched_secs, t.outcome) for t in report.attempts]
        assert found == [("a", 0.0, "won"), ("b", pytest.approx(1.0), "superseded")]
        assert [t.sent_secs for t in report.attempts] == [0.0, None]
        assert requests(a, b) == [1, 0]
        assert in_flight() == 0

    async def test_continuation_waits_for_room_and_is_sent(self) -> None:
        a, b = scripts([Wait(0.3), Say("Yes."), Wait(0.2), Error()]), scripts(FINE)
        async with Line(racing(a, b)) as line:
            asking = asyncio.create_task(line.ask())
            await asyncio.sleep(0.4)
            overrun("b", 80)
            await asking
        assert line.reports[0].outcome == "answered"
        assert line.reports[0].attempts[1].sent_secs == pytest.approx(3.0, abs=0.02)

    async def test_deadline_includes_queue_time(self) -> None:
        policy = HedgePolicy.fallback(deadline_secs=1.0, fallback_text=SORRY)
        async with Line(racing(scripts([Wait(0.7), Say("Yes.")]), policy=policy)) as line:
            rest("a", 0.4)
            await line.ask()
        assert line.text == SORRY
        assert line.reports[0].duration_secs == pytest.approx(1.0)

    @pytest.mark.parametrize(("retry_after_secs", "ttft_secs"), [(0.5, 0.9), (0.95, 0.4)])
    async def test_retry_after_is_awaited_within_the_deadline(
        self, retry_after_secs: float, ttft_secs: float
    ) -> None:
        policy = HedgePolicy.fallback(deadline_secs=1.0, fallback_text=SORRY)
        async with Line(racing(scripts([Wait(0.4), Say("Yes.")]), policy=policy)) as line:
            rest("a", retry_after_secs)
            await line.ask()
        assert line.text == "Yes."
        assert line.reports[0].ttft_secs == pytest.approx(ttft_secs, abs=0.01)

    async def test_better_tier_goes_first(self) -> None:
        held = overrun("a", 40)
        tiers: list[Tier] = ["economy", "standard", "premium"]
        lines = [Line(racing(scripts(FINE), tier=tier)) for tier in tiers]
        async with lines[0], lines[1], lines[2]:
            tasks: list[asyncio.Task[Any]] = []
            for line in lines:
                tasks.append(asyncio.create_task(line.ask()))
                await asyncio.sleep(0.01)
            for permit in held[:6]:
                release(permit)
                await asyncio.sleep(0.05)
            await asyncio.gather(*tasks)
        waited = [line.reports[0].queued_secs for line in lines]
        assert waited == sorted(waited, reverse=True)
        assert len(set(waited)) == 3
        assert all(line.text == "Yes, do come." for line in lines)

    async def test_hedge_without_room_is_not_sent(self) -> None:
        bound("b", 1)
        slow, spare = scripts([Wait(1.0), Say("Late.")]), scripts(FINE)
        other = scripts([Wait(2.0), Say("Long.")])
        holder = HedgedLLMService([Provider("b", other)], policy=HedgePolicy.fallback())
        async with (
            Line(holder) as one,
            Line(racing(slow, spare, policy=HedgePolicy.after(0.2))) as two,
        ):
            holding = asyncio.create_task(one.ask())
            await asyncio.sleep(0.1)
            await two.ask()
            await holding
        report = two.reports[0]
        assert requests(spare) == [0]
        assert report.hedge_reason == "no hedge: b has 1 of 1 requests in flight"
        assert len(report.attempts) == 1

    async def test_turns_wait_for_the_only_provider_with_retry_after(self) -> None:
        busy, *others = [scripts([Wait(0.2), refused()], FINE), *(scripts(FINE) for _ in range(3))]
        lines = [Line(racing(each)) for each in (busy, *others)]
        async with AsyncExitStack() as stack:
            for line in lines:
                await stack.enter_async_context(line)
            await lines[0].ask()
            asking = [asyncio.create_task(line.ask()) for line in lines[1:]]
            await asyncio.sleep(0.9 * RETRY_AFTER_SECS)
            assert requests(busy, *others) == [1, 0, 0, 0]
            await asyncio.gather(*asking)
        for line in lines[1:]:
            assert line.text == "Yes, do come."
            assert line.reports[0].queued_secs == pytest.approx(RETRY_AFTER_SECS, abs=0.15)

    async def test_earliest_provider_is_used_when_all_have_long_retry_after(self) -> None:
        a, b = scripts(FINE), scripts(FINE)
        async with Line(racing(a, b)) as line:
            rest("a", 60.0)
            rest("b", 30.0)
            await line.ask()
            assert (requests(a, b), line.reports[0].queued_secs) == ([0, 1], 0.0)
            await asyncio.sleep(28.0)
            await line.ask()
            assert requests(a, b) == [0, 2]
            assert line.reports[1].queued_secs == pytest.approx(1.7, abs=0.15)

    async def test_rejected_hedge_is_refunded(self) -> None:
        bound("b", 1)
        long = Provider("b", scripts([Wait(30.0), Say("Long.")]))
        holder = HedgedLLMService([long], policy=HedgePolicy.fallback())
        policy = HedgePolicy.adaptive(0.1, stall_secs=None)
        slow = racing(scripts([Wait(8.0), Say("Late.")]), scripts(FINE), policy=policy)
        async with Line(holder) as one, Line(slow) as two:
            holding = asyncio.create_task(one.ask())
            await asyncio.sleep(0.1)
            await two.ask()
            report = await two.report()
            assert report.hedge_reason == "no hedge: b has 1 of 1 requests in flight"
            (bucket,) = shared_stats().accounts._bursts.values()
            assert bucket._tokens == bucket.most
            await one.interrupt()
            await holding

    async def test_interruption_while_queued_leaves_nothing(self) -> None:
        held = overrun("a", 80)
        async with Line(racing(scripts(FINE))) as line:
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "?"}])))
            await asyncio.sleep(0.1)
            assert health().waiting == 1
            await line.interrupt()
            assert (await line.report()).attempts == ()
            assert health().waiting == 0
            release(*held)
            await line.ask()
        assert line.text == "Yes, do come."
        assert in_flight() == 0

    async def test_inference_waits_behind_callers(self) -> None:
        summing, calling = racing(Summing()), racing(scripts(FINE))
        overrun("a", 400)
        async with Line(calling) as line, Line(summing):
            context = LLMContext([{"role": "user", "content": "?"}])
            inferring = asyncio.create_task(summing.run_inference(context))
            await asyncio.sleep(0.1)
            await line.ask()
            assert not inferring.done()
            assert line.text == "Yes, do come."
            assert await inferring == "In short."
            assert asyncio.get_running_loop().time() == pytest.approx(30, abs=0.1)

    async def test_failed_inference_releases_its_permit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        llm = racing(Summing())
        async with Line(llm):
            with monkeypatch.context() as patched:
                patched.setattr(attempt_runner, "take_least_busy", _broken)
                with pytest.raises(AllProvidersFailed):
                    await llm.run_inference(LLMContext([{"role": "user", "content": "?"}]))
            assert in_flight() == 0

    def test_unknown_tier_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="tier is not known, got 'gold': write 'premium'"):
            racing(scripts(FINE), tier="gold")  # pyright: ignore[reportArgumentType]


class TestShedding:
    """``admission="shed"``: for a platform beyond its capacity."""

    async def test_shedding_turn_waits_for_room(self) -> None:
        bound("a", 1)
        lines = [Line(racing(scripts(FINE), admission="shed")) for _ in range(2)]
        async with lines[0], lines[1]:
            await both(*lines)
        assert lines[1].text == "Yes, do come."
        assert lines[1].reports[0].queued_secs == pytest.approx(0.3, abs=0.02)

    async def test_shedding_turn_without_room_ends_with_fallback(self) -> None:
        bound("a", 1)
        slow = racing(scripts([Wait(60), Say("At last.")]), admission="shed")
        async with Line(slow) as one, Line(racing(scripts(FINE), admission="shed")) as two:
            waiting = asyncio.create_task(one.ask())
            await asyncio.sleep(0.1)
            await two.ask()
            report = two.reports[0]
            assert two.text == SORRY
            assert report.attempts == ()
            assert report.duration_secs == pytest.approx(3.0)
            assert report.degraded_reason is not None
            assert "1 of 1 requests in flight" in report.degraded_reason
            await waiting
        assert in_flight() == 0

    async def test_shedding_turn_ends_at_once_with_open_breakers(self) -> None:
        a, b = scripts(DOWN), scripts(DOWN)
        async with Line(racing(a, b, admission="shed")) as line:
            await run_turns(line, 6)
            report = await line.report(6)
            assert requests(a, b) == [5, 5]
        assert report.attempts == ()
        assert report.outcome == "failed"
        assert report.duration_secs == 0.0
        assert report.degraded_reason is not None
        assert "5 failures in a row" in report.degraded_reason
        assert line.frames(LLMTextFrame)[-1].text == SORRY
        assert len(line.errors) == 6
        assert line.framing == ["<", "t", ">"] * 6

    async def test_last_half_open_provider_has_one_probe(self) -> None:
        first, second = scripts(*[DOWN] * 5, FINE), scripts(FINE)
        async with (
            Line(racing(first, admission="shed")) as one,
            Line(racing(second, admission="shed")) as two,
        ):
            await run_turns(one, 5)
            await asyncio.sleep(75)
            await asyncio.gather(one.ask(), two.ask())
            assert one.reports[5].outcome == "answered"
            assert two.text == SORRY

    async def test_open_session_is_not_shed(self) -> None:
        bound("a", 1)
        slow = racing(scripts([Wait(60), Say("At last.")]))
        async with Line(slow) as one, Line(racing(scripts(FINE))) as two:
            waiting = asyncio.create_task(one.ask())
            await asyncio.sleep(0.1)
            await two.ask()
            assert two.reports[0].ttft_secs == pytest.approx(0.3)
            await one.interrupt()
            await waiting

    def test_unknown_admission_mode_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="admission is not known, got 'closed': write 'open'"):
            racing(scripts(FINE), admission="closed")  # pyright: ignore[reportArgumentType]
