"""The hedged service in a Pipecat pipeline, on virtual time: exact figures, no I/O."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import (
    LLMTokenUsage,
    LLMUsageMetricsData,
    TTFATMetricsData,
    TTFBMetricsData,
)
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import (
    AllProvidersFailed,
    HedgedLLMService,
    HedgeMetricsData,
    HedgePolicy,
    Provider,
)
from pipecat_hedge.race import ConfigurationError, DrainedAnswer
from pipecat_hedge.service.provider_client import _read_rate_limit
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

NEVER = float("inf")


def scripted(*script: Step, **kwargs: Any) -> ScriptedLLMService:
    return ScriptedLLMService(script, **kwargs)


def racing(*llms: ScriptedLLMService, policy: HedgePolicy | None = None) -> HedgedLLMService:
    """The services as providers a, b, c and so on."""
    named = [Provider(name, llm) for name, llm in zip("abcdef", llms, strict=False)]
    return HedgedLLMService(named, policy=policy or HedgePolicy.race(len(llms)))


def ours(record: Any) -> bool:
    """Whether this package logged it."""
    return record["name"].startswith("pipecat_hedge")


def setting(service: ScriptedLLMService, name: str) -> Any:
    return getattr(service.settings, name)


class TestWhoWins:
    @pytest.mark.parametrize("order", ["fast first", "slow first"])
    async def test_first_usable_token_wins(self, order: str) -> None:
        fast = scripted(Wait(0.05), Say("Hello "), Wait(0.1), Say("there."))
        slow = scripted(Wait(0.5), Say("Good evening."))
        llms = (fast, slow) if order == "fast first" else (slow, fast)
        async with Line(racing(*llms)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Hello there."
        assert line.framing == ["<", "t", "t", ">"]
        start, first = line.times(LLMFullResponseStartFrame)[0], line.times(LLMTextFrame)[0]
        assert first - start == pytest.approx(0.05)
        assert report.winner == ("a" if order == "fast first" else "b")
        assert report.ttft_secs == pytest.approx(0.05)
        assert report.duration_secs == pytest.approx(0.15)
        assert slow.closed_by_cancel == 1
        assert slow.open_requests == fast.open_requests == 0

    async def test_simultaneous_tokens_are_ordered_by_arrival(self) -> None:
        llms = [scripted(Wait(0.1), Say(f"I am {name}.")) for name in "abcdef"]
        async with Line(racing(*llms)) as line:
            await line.ask()
        assert line.text == "I am a."

    async def test_blank_text_and_markers_do_not_win(self) -> None:
        blank = scripted(Say(" "), Say("\n"), Say("●"), Wait(3), Say(" Late."))
        async with Line(racing(blank, scripted(Wait(0.2), Say("Early.")))) as line:
            await line.ask()
        assert line.text == "Early."

    async def test_text_before_the_first_usable_token_is_released(self) -> None:
        async with Line(racing(scripted(Say(" "), Wait(0.1), Say("Yes."), Say(" Sir.")))) as line:
            await line.ask()
        assert line.text == " Yes. Sir."

    async def test_only_winner_thoughts_are_released(self) -> None:
        thinker = scripted(LLMThoughtTextFrame("hm"), Wait(NEVER))
        answerer = scripted(LLMThoughtTextFrame("aha"), Wait(0.1), Say("Yes."))
        async with Line(racing(thinker, answerer)) as line:
            await line.ask()
        assert [f.text for f in line.frames(LLMThoughtTextFrame)] == ["aha"]


class TestWhenToLaunch:
    async def test_after_does_not_hedge_a_quick_primary(self) -> None:
        second = scripted(Say("Unused."))
        policy = HedgePolicy.after(0.6)
        async with Line(racing(scripted(Wait(0.59), Say("Hi.")), second, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert second.contexts == []
        assert [a.launch_reason for a in report.attempts] == ["primary"]

    async def test_after_hedges_a_silent_primary(self) -> None:
        policy = HedgePolicy.after(0.6)
        first, second = scripted(Wait(0.9), Say("First.")), scripted(Wait(0.5), Say("Second."))
        async with Line(racing(first, second, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "First."
        assert report.ttft_secs == pytest.approx(0.9)
        hedge = report.attempts[1]
        assert (hedge.launch_reason, hedge.outcome) == ("hedge", "superseded")
        assert hedge.launched_secs == pytest.approx(0.6)
        assert hedge.ended_secs == pytest.approx(0.9)

    async def test_fallback_waits_for_a_failure(self) -> None:
        second = scripted(Say("Unused."))
        policy = HedgePolicy.fallback(stall_secs=None)
        async with Line(racing(scripted(Wait(29), Say("Hi.")), second, policy=policy)) as line:
            await line.ask()
        assert line.text == "Hi."
        assert second.contexts == []

    @pytest.mark.parametrize(
        ("fault", "category"),
        [
            ([Error(category=ErrorCategory.RATE_LIMIT)], "rate_limit"),
            ([Error(category=ErrorCategory.QUOTA)], "quota"),
            ([], "empty"),
            ([Say("  ")], "empty"),
            ([Say(" "), Error()], "server"),
        ],
    )
    @pytest.mark.parametrize("policy", [HedgePolicy.fallback(), HedgePolicy.after(60)])
    async def test_failure_launches_the_next_at_once(
        self, fault: list[Step], category: str, policy: HedgePolicy
    ) -> None:
        faulty = scripted(Wait(0.1), *fault)
        async with Line(racing(faulty, scripted(Wait(0.2), Say("Hi.")), policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Hi."
        assert line.errors == []
        assert report.ttft_secs == pytest.approx(0.3)
        failed, won = report.attempts
        assert (failed.outcome, failed.error_category) == ("failed", category)
        assert (won.outcome, won.launch_reason) == ("won", "failure")
        assert won.launched_secs == pytest.approx(0.1)

    async def test_raising_service_is_a_failure(self) -> None:
        class Broken(ScriptedLLMService):
            async def _play(self, script: Any, context: LLMContext) -> None:
                raise RuntimeError("bug in the service")

        async with Line(racing(Broken([]), scripted(Say("Hi.")))) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Hi."
        assert report.attempts[0].error_category == "unknown"

    @pytest.mark.parametrize(
        ("has_responded", "category"), [(False, "application"), (True, "unknown")]
    )
    async def test_error_in_reading_a_response_counts(
        self, has_responded: bool, category: str
    ) -> None:
        class Stumbling(ScriptedLLMService):
            async def _play(self, script: Any, context: LLMContext) -> None:
                if has_responded:
                    await _read_rate_limit(httpx.Response(200))
                raise TypeError("'NoneType' object is not subscriptable")

        async with Line(racing(Stumbling([]), scripted(Say("Hi.")))) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Hi."
        assert report.attempts[0].error_category == category

    async def test_timeout_event_without_error_frame_is_a_failure(self) -> None:
        class TimesOut(ScriptedLLMService):
            async def _play(self, script: Any, context: LLMContext) -> None:
                await self._call_event_handler("on_completion_timeout")

        async with Line(racing(TimesOut([]), scripted(Wait(1), Say("Hi.")))) as line:
            await line.ask()
            report = await line.report()
        assert report.attempts[0].error_category == "connectivity"

    async def test_second_instance_hedges_the_same_provider(self) -> None:
        stuck, fresh = scripted(Wait(NEVER)), scripted(Wait(0.1), Say("Hi."))
        llm = HedgedLLMService([Provider("claude", [stuck, fresh])], policy=HedgePolicy.after(0.5))
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
        assert [a.provider for a in report.attempts] == ["claude", "claude"]
        assert report.ttft_secs == pytest.approx(0.6)

    async def test_permanently_failed_member_is_excluded(self) -> None:
        """One warning reports it, however many turns follow."""
        refused = scripted(Error(category=ErrorCategory.AUTHENTICATION))
        llm = racing(refused, scripted(Say("Hi.")), policy=HedgePolicy.fallback())
        warnings: list[str] = []
        sink = logger.add(warnings.append, level="WARNING", format="{message}", filter=ours)
        async with Line(llm) as line:
            await line.ask()
            await line.ask()
            report = await line.report(2)
            await line.ask()
        logger.remove(sink)
        assert len(warnings) == 1
        assert "a rejected the request for good (authentication) and is excluded" in warnings[0]
        assert len(refused.contexts) == 1
        assert [(a.provider, a.launch_reason) for a in report.attempts] == [("b", "primary")]


class TestAllFailed:
    async def test_all_failed_pushes_one_error_with_every_cause(self) -> None:
        a = ScriptedLLMService([Error(category=ErrorCategory.RATE_LIMIT)], [Say("Back.")])
        b = ScriptedLLMService([Wait(0.1), Error(category=ErrorCategory.SERVER)])
        async with Line(racing(a, b)) as line:
            await line.ask()
            report = await line.report()
            assert line.framing == ["<", ">"]
            [error] = line.errors
            assert isinstance(error.exception, AllProvidersFailed)
            causes = [(name, cause.category) for name, cause in error.exception.causes]
            assert causes == [("a", "rate_limit"), ("b", "server")]
            assert report.outcome == "failed"
            assert report.winner is None
            assert report.ttft_secs is None
            await line.ask()
            assert line.text == "Back."

    async def test_shared_error_category_is_reported(self) -> None:
        llms = [scripted(Error(category=ErrorCategory.RATE_LIMIT)) for _ in range(2)]
        async with Line(racing(*llms)) as line:
            await line.ask()
        assert line.errors[0].category is ErrorCategory.RATE_LIMIT

    async def test_fallback_text_is_spoken(self) -> None:
        policy = HedgePolicy.race(1, fallback_text="Sorry, one moment please.")
        async with Line(racing(scripted(Error()), policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Sorry, one moment please."
        assert line.framing == ["<", "t", ">"]
        assert len(line.errors) == 1
        assert report.outcome == "failed"

    async def test_hanging_requests_end_at_their_timeouts(self) -> None:
        providers = [Provider(name, scripted(Wait(NEVER)), timeout_secs=30) for name in ("a", "b")]
        policy = HedgePolicy.after(0.5, fallback_text="Sorry.")
        async with Line(HedgedLLMService(providers, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Sorry."
        assert report.duration_secs == pytest.approx(30.5)
        assert [a.error_category for a in report.attempts] == ["timeout", "timeout"]

    async def test_deadline_speaks_the_fallback(self) -> None:
        policy = HedgePolicy.race(1, deadline_secs=4, fallback_text="Sorry.")
        stuck = scripted(Wait(NEVER))
        async with Line(racing(stuck, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert report.duration_secs == pytest.approx(4)
        assert stuck.open_requests == 0

    async def test_each_exclusion_is_warned_once(self) -> None:
        refusing = [Error(category=ErrorCategory.AUTHENTICATION)]
        providers = [
            Provider("a", [scripted(*refusing), scripted(*refusing)]),
            Provider("b", scripted(*refusing)),
            Provider("c", ScriptedLLMService([Say("Hi.")], refusing)),
        ]
        warnings: list[str] = []
        sink = logger.add(warnings.append, level="WARNING", format="{message}", filter=ours)
        async with Line(HedgedLLMService(providers, policy=HedgePolicy.fallback(3))) as line:
            for _ in range(4):
                await line.ask()
            await line.report(4)
        logger.remove(sink)
        requested = ["".join(a.provider for a in report.attempts) for report in line.reports]
        assert requested == ["abc", "c", "abc", "abc"]
        assert len(warnings) == 3

    async def test_all_excluded_providers_are_used_again(self) -> None:
        rejected = ScriptedLLMService([Error(category=ErrorCategory.APPLICATION)], [Say("Hi.")])
        refused = scripted(Error(category=ErrorCategory.AUTHENTICATION))
        policy = HedgePolicy.fallback(fallback_text="Sorry.")
        async with Line(racing(rejected, refused, policy=policy)) as line:
            await line.ask()
            await line.ask()
            report = await line.report(2)
        assert line.text == "Sorry.Hi."
        assert report.winner == "a"

    async def test_broken_committed_answer_fails_the_turn(self) -> None:
        cut = scripted(Say("I think"), Wait(0.1), Error(category=ErrorCategory.CONNECTIVITY))
        async with Line(racing(cut)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "I think"
        assert line.framing == ["<", "t", ">"]
        assert (report.outcome, report.winner) == ("failed", "a")
        assert len(line.errors) == 1


class TestLateCommit:
    """Until a sentence is complete, another attempt may win."""

    POLICY = HedgePolicy.after(0.6, commit="first_sentence")

    async def test_slow_stream_loses(self) -> None:
        dribble = [Say("Well"), *[step for w in range(9) for step in (Wait(2), Say(f" {w}"))]]
        second = scripted(Wait(0.3), Say("We are"), Say(" open. "), Say("Do come."))
        async with Line(racing(scripted(Wait(0.5), *dribble), second, policy=self.POLICY)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "We are open. Do come."
        assert report.winner == "b"
        assert (report.commit_on, report.commit_reason) == ("first_sentence", "first_sentence")
        assert report.committed_secs == pytest.approx(report.ttfs_secs)
        assert report.ttfs_secs == pytest.approx(0.5 + 0.6 + 0.3)

    async def test_cut_before_the_first_sentence_releases_nothing(self) -> None:
        cut = scripted(Say("We regret"), Wait(0.1), Error(category=ErrorCategory.CONNECTIVITY))
        async with Line(racing(cut, scripted(Say("Hello. ")), policy=self.POLICY)) as line:
            await line.ask()
        assert line.text == "Hello. "
        assert line.errors == []

    async def test_single_sentence_is_released_at_its_end(self) -> None:
        only = scripted(Say("We are"), Wait(0.2), Say(" open."), Wait(0.1))
        async with Line(racing(only, policy=self.POLICY)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "We are open."
        assert report.commit_reason == "whole_answer"
        assert report.ttfs_secs == pytest.approx(0.3)

    async def test_auto_commits_on_first_token_without_tts(self) -> None:
        async with Line(racing(scripted(Say("We"), Wait(1), Say(" are.")))) as line:
            await line.ask()
            report = await line.report()
        assert (report.commit_on, report.commit_reason) == ("first_token", "first_token")


class TestRescue:
    """An answer that breaks off after its first words is continued."""

    CUT: ClassVar[list[Step]] = [
        Say("We are open till nine."),
        Say(" Shall"),
        Wait(0.1),
        Say(" I"),
        Error(category=ErrorCategory.CONNECTIVITY),
    ]
    STALL: ClassVar[list[Step]] = [*CUT[:-1], Wait(NEVER)]

    @pytest.mark.parametrize("breaks", [CUT, STALL], ids=["cut", "stall"])
    @pytest.mark.parametrize(
        "second",
        [" Shall I book a table?", "We are open till nine. Shall I book a table?"],
        ids=["goes on", "repeats"],
    )
    @pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
    async def test_continuation_completes_the_answer(
        self, breaks: list[Step], second: str, commit: Any
    ) -> None:
        policy = HedgePolicy.fallback(commit=commit, stall_secs=2.0)
        rescuer = scripted(Wait(0.2), *[Say(word) for word in re.findall(r"\s*\S+", second)])
        async with Line(racing(scripted(*breaks), rescuer, policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "We are open till nine. Shall I book a table?"
        assert line.framing.count("<") == line.framing.count(">") == 1
        assert line.errors == []
        assert report.outcome == "answered"
        assert report.winner == "b"
        assert [a.outcome for a in report.attempts] == ["failed", "won"]
        assert report.attempts[0].error_category == (
            "connectivity" if breaks is self.CUT else "stalled"
        )

    async def test_continuation_prompt_contains_the_released_text(self) -> None:
        policy = HedgePolicy.fallback(commit="first_sentence")
        rescuer = scripted(Say(" Do come."))
        context = LLMContext([{"role": "user", "content": "Are you open?"}])
        async with Line(racing(scripted(*self.CUT), rescuer, policy=policy)) as line:
            await line.ask(context=context)
        [requested] = rescuer.contexts
        roles = [(m["role"], m["content"]) for m in requested.messages]  # pyright: ignore[reportIndexIssue, reportTypedDictNotRequiredAccess]
        assert roles[:2] == [
            ("user", "Are you open?"),
            ("assistant", "We are open till nine."),
        ]
        assert roles[2][0] == "developer"
        assert len(context.messages) == 1

    async def test_unfinished_sentence_is_kept_back(self) -> None:
        policy = HedgePolicy.fallback(commit="first_sentence")
        llm = racing(scripted(*self.CUT), scripted(Error()), policy=policy)
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "We are open till nine."
        assert len(line.errors) == 1
        assert report.outcome == "failed"
        assert report.degraded_reason is None

    @pytest.mark.parametrize(
        ("commit", "first", "heard"),
        [
            ("first_sentence", ["We are open.", " Shall I"], "We are open. Sorry."),
            ("first_token", ["We are open.", " Shall I"], "We are open. Shall I... Sorry."),
            ("first_token", ["We are open.", " Shall "], "We are open. Shall ... Sorry."),
            ("first_token", ["We are open."], "We are open. Sorry."),
            ("first_token", ["We are open. "], "We are open. Sorry."),
            ("first_token", ["我们营业到九点。"], "我们营业到九点。 Sorry."),
        ],
    )
    async def test_fallback_text_follows_an_uncontinued_answer(
        self, commit: Any, first: list[str], heard: str
    ) -> None:
        policy = HedgePolicy.fallback(commit=commit, fallback_text="Sorry.")
        cut = scripted(Wait(0.2), *map(Say, first), Wait(1), Error())
        async with Line(racing(cut, scripted(Error()), policy=policy)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == heard
        assert line.framing.count("<") == line.framing.count(">") == 1
        assert len(line.errors) == 1
        assert (report.outcome, report.winner) == ("failed", "a")
        assert report.ttft_secs == pytest.approx(0.2)
        assert report.degraded_reason == (
            "the answer broke off and was not continued (a: server, b: server)"
        )

    async def test_no_space_is_added_in_scripts_without_spaces(self) -> None:
        policy = HedgePolicy.race(1, fallback_text="请稍等。")
        async with Line(racing(scripted(Say("我们营业。"), Error()), policy=policy)) as line:
            await line.ask()
        assert line.text == "我们营业。请稍等。"

    async def test_stream_break_after_a_tool_call_is_no_failure(self) -> None:
        async def close(params: FunctionCallParams) -> None:
            await params.result_callback("done")

        broken = scripted(Say("I look."), Call("close"), Wait(0.1), Error())
        policy = HedgePolicy.race(1, commit="first_sentence", fallback_text="Sorry.")
        llm = racing(broken, policy=policy)
        llm.register_function("close", close)
        async with Line(llm) as line:
            await line.ask()
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            report = await line.report()
        assert line.text == "I look."
        assert (report.outcome, report.degraded_reason) == ("answered_with_tools", None)
        assert line.errors == []

    async def test_interruption_mid_answer_is_no_failure(self) -> None:
        policy = HedgePolicy.race(1, fallback_text="Sorry.")
        stuck = scripted(Say("We are open."), Wait(NEVER))
        async with Line(racing(stuck, policy=policy)) as line:
            await line.send(LLMContextFrame(LLMContext([])))
            await asyncio.sleep(1.0)
            await line.interrupt()
            report = await line.report()
        assert line.text == "We are open."
        assert (report.outcome, report.degraded_reason) == ("interrupted", None)

    async def test_broken_continuation_is_continued(self) -> None:
        policy = HedgePolicy.fallback(max_attempts=3, commit="first_sentence")
        second = scripted(Say(" We have a terrace."), Say(" It"), Error())
        third = scripted(Say(" Do come by."))
        async with Line(racing(scripted(*self.CUT), second, third, policy=policy)) as line:
            await line.ask()
        assert line.text == "We are open till nine. We have a terrace. Do come by."

    async def test_interruption_ends_a_continuation(self) -> None:
        rescuer = scripted(Wait(NEVER))
        policy = HedgePolicy.fallback(commit="first_sentence", stall_secs=60)
        async with Line(racing(scripted(*self.CUT), rescuer, policy=policy)) as line:
            await line.send(LLMContextFrame(LLMContext([])))
            await asyncio.sleep(1.0)
            await line.interrupt()
            report = await line.report()
            assert rescuer.open_requests == 0
        assert line.text == "We are open till nine."
        assert report.outcome == "interrupted"
        assert [a.outcome for a in report.attempts] == ["failed", "interrupted"]

    async def test_incomplete_tool_call_does_not_run(self) -> None:
        ran: list[str] = []

        async def close(params: FunctionCallParams) -> None:
            ran.append(params.tool_call_id)
            await params.result_callback("done")

        cut = scripted(Say("One moment."), Say(" I"), Wait(0.1), Error())
        whole = scripted(Wait(0.1), Call("close", tool_call_id="whole"))
        llm = racing(cut, whole, policy=HedgePolicy.fallback(commit="first_sentence"))
        llm.register_function("close", close)
        async with Line(llm) as line:
            await line.ask()
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            report = await line.report()
        assert ran == ["whole"]
        assert line.text == "One moment."
        assert report.outcome == "answered_with_tools"

    async def test_text_is_released_before_its_tool_runs(self) -> None:
        async def close(params: FunctionCallParams) -> None:
            await params.result_callback(line.text)

        talker = scripted(Say("One moment."), Wait(0.1), Call("close"))
        llm = racing(talker, policy=HedgePolicy.race(1, commit="first_sentence"))
        llm.register_function("close", close)
        async with Line(llm) as line:
            await line.ask()
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
        assert line.frames(FunctionCallResultFrame)[0].result == "One moment."


class TestInlineThoughts:
    async def test_inline_thoughts_are_not_spoken_and_do_not_win(self) -> None:
        thinker = scripted(Say("<thi"), Say("nk>Let me see</th"), Wait(1), Say("ink>\n\nYes."))
        async with Line(racing(thinker)) as line:
            await line.ask()
            report = await line.report()
        assert line.text == "Yes."
        assert "".join(f.text for f in line.frames(LLMThoughtTextFrame)) == "Let me see"
        assert report.ttft_secs == pytest.approx(1.0)


class TestRetryAfter:
    async def test_retry_after_is_respected(self) -> None:
        class Busy(ScriptedLLMService):
            async def _play(self, script: Any, context: LLMContext) -> None:
                if len(self.contexts) > 1:
                    await self._push_llm_text("Back.")
                    return
                error = httpx.HTTPStatusError(
                    "429",
                    request=httpx.Request("POST", "http://provider"),
                    response=httpx.Response(429, headers={"retry-after": "20"}),
                )
                await self.push_error("too many", exception=error)

        busy = Busy([])
        policy = HedgePolicy.fallback()
        async with Line(racing(busy, scripted(Say("Hi.")), policy=policy)) as line:
            await line.ask()
            await line.ask()
            await asyncio.sleep(21)
            await line.ask()
        assert len(busy.contexts) == 2
        assert line.text == "Hi.Hi.Back."

    async def test_retry_after_is_ignored_without_alternatives(self) -> None:
        service = scripted(Say("Hi."))
        llm = racing(service)
        async with Line(llm) as line:
            llm.stats.health.set_retry_after("a | scripted", 1e9)
            await line.ask()
        assert line.text == "Hi."


class TestProviderStates:
    async def test_provider_states_follow_each_turn(self) -> None:
        denied = scripted(Error("no such key", category=ErrorCategory.AUTHENTICATION))
        fast = scripted(Wait(0.2), Say("Hi."), model="gpt-4.1")
        llm = racing(denied, fast, policy=HedgePolicy.fallback())
        async with Line(llm) as line:
            before = llm.provider_states()
            await line.ask()
            now = asyncio.get_running_loop().time()
            llm.stats.health.set_retry_after("b | gpt-4.1", now + 20)
            after = llm.provider_states()
        assert [(s.provider, s.model, s.is_excluded, s.retry_after_secs) for s in before] == [
            ("a", "scripted", False, 0.0),
            ("b", "gpt-4.1", False, 0.0),
        ]
        assert [(s.is_excluded, round(s.retry_after_secs)) for s in after] == [
            (True, 0),
            (False, 20),
        ]
        assert [s.prior_weight for s in before] == [1.0, 1.0]
        assert after[1].prior_weight < 1.0
        assert after[1].p50_secs < before[1].p50_secs < before[1].p95_secs

    def test_provider_states_need_no_running_loop(self) -> None:
        (state,) = racing(scripted(Say("Hi."))).provider_states()
        assert (state.provider, state.breaker) == ("a", "closed")

    async def test_each_race_is_logged_in_one_line(self) -> None:
        lines: list[str] = []
        handler = logger.add(lambda m: lines.append(str(m)), level="DEBUG", format="{message}")
        llm = racing(
            scripted(Wait(1), Say("No.")), scripted(Say("Yes.")), policy=HedgePolicy.race()
        )
        async with Line(llm) as line:
            await line.ask()
            await line.report()
        logger.remove(handler)
        (found,) = [text for text in lines if "turn 1: answered" in text]
        assert "race(2): turn 1: answered, TTFT 0.000 s: a superseded, b won" in found

    @pytest.mark.parametrize(
        ("name", "policy"),
        [("stall_secs", "adaptive"), ("budget", "adaptive"), ("seconds", "after")],
    )
    def test_policy_argument_is_referred_to_the_policy(self, name: str, policy: str) -> None:
        expected = (
            rf"{name} belongs to HedgePolicy: write policy=HedgePolicy.{policy}\({name}=...\)"
        )
        with pytest.raises(ConfigurationError, match=expected):
            HedgedLLMService([scripted()], **{name: 1})  # pyright: ignore[reportArgumentType]


class TestDrain:
    def test_missing_log_folder_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="drained_log: there is no folder"):
            HedgedLLMService([scripted()], drained_log=tmp_path / "missing" / "losers.jsonl")

    async def test_drained_loser_is_recorded(self, tmp_path: Path) -> None:
        log = tmp_path / "drained.jsonl"
        usage = LLMTokenUsage(prompt_tokens=9, completion_tokens=4, total_tokens=13)
        slow = scripted(Wait(0.5), Say("Good "), Wait(0.1), Say("evening."), usage=usage)
        llm = HedgedLLMService(
            [Provider("fast", scripted(Wait(0.1), Say("Hi."))), Provider("slow", slow)],
            policy=HedgePolicy.race(2, losers="drain"),
            drained_log=log,
        )
        drained: asyncio.Queue[DrainedAnswer] = asyncio.Queue()

        @llm.event_handler("on_loser_drained")
        async def on_loser_drained(_: object, answer: DrainedAnswer) -> None:
            await drained.put(answer)

        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
            answer = await drained.get()
            await asyncio.sleep(1)
        assert line.text == "Hi."
        assert [a.outcome for a in report.attempts] == ["won", "superseded"]
        assert (answer.provider, answer.text, answer.complete) == ("slow", "Good evening.", True)
        assert answer.ttft_secs == pytest.approx(0.5)
        assert answer.duration_secs == pytest.approx(0.6)
        assert (answer.input_tokens, answer.output_tokens) == (9, 4)
        assert not answer.tokens_estimated
        assert json.loads(log.read_text()) == dataclasses.asdict(answer)

    async def test_next_turn_ends_a_drained_loser(self) -> None:
        slow = ScriptedLLMService([Wait(0.5), Say("Good"), Wait(NEVER)], [Say("Me first.")])
        fast = ScriptedLLMService([Wait(0.1), Say("Hi.")], [Wait(1), Say("Unheard.")])
        drained: list[DrainedAnswer] = []
        llm = racing(fast, slow, policy=HedgePolicy.race(2, losers="drain"))

        @llm.event_handler("on_loser_drained")
        async def on_loser_drained(_: object, answer: DrainedAnswer) -> None:
            drained.append(answer)

        async with Line(llm) as line:
            await line.ask()
            await asyncio.sleep(2)
            await line.ask()
            assert line.text == "Hi.Me first."
            assert [(a.text, a.complete) for a in drained] == [("Good", False)]

    async def test_interruption_ends_a_drained_loser(self) -> None:
        slow = scripted(Wait(NEVER))
        llm = racing(scripted(Say("Hi.")), slow, policy=HedgePolicy.race(2, losers="drain"))
        async with Line(llm) as line:
            await line.ask()
            assert slow.open_requests == 1
            await line.interrupt()
            await asyncio.sleep(0.1)
            assert slow.open_requests == 0


class TestInference:
    @staticmethod
    def infers(answer: Any, secs: float = 0.0) -> ScriptedLLMService:
        class Infers(ScriptedLLMService):
            async def run_inference(  # pyright: ignore[reportIncompatibleMethodOverride]
                self, context: LLMContext, **options: Any
            ) -> str | None:
                given.append(options)
                await asyncio.sleep(secs)
                if isinstance(answer, Exception):
                    raise answer
                return answer

        given: list[dict[str, Any]] = []
        service = Infers([Say("unused")])
        service.given = given  # pyright: ignore[reportAttributeAccessIssue]
        return service

    async def test_inference_is_raced(self) -> None:
        slow, blank, broken = self.infers("Slow.", 5), self.infers(" "), self.infers(OSError("no"))
        good = self.infers("A summary.", 1)
        llm = racing(slow, blank, broken, good)
        answer = await llm.run_inference(LLMContext([]), max_tokens=7, system_instruction="Sum up.")
        assert answer == "A summary."
        assert good.given == [{"max_tokens": 7, "system_instruction": "Sum up."}]  # pyright: ignore[reportAttributeAccessIssue]

    async def test_inference_raises_every_cause(self) -> None:
        llm = racing(self.infers(OSError("no")), self.infers(ValueError("no")))
        with pytest.raises(AllProvidersFailed) as caught:
            await llm.run_inference(LLMContext([]))
        assert [error.category for _, error in caught.value.causes] == [
            "connectivity",
            "application",
        ]

    async def test_blank_inference_returns_none(self) -> None:
        assert await racing(self.infers(None)).run_inference(LLMContext([])) is None
        assert (
            await racing(self.infers(None), self.infers(None)).run_inference(LLMContext([])) is None
        )
        failed = self.infers(OSError("no"))
        assert await racing(failed, self.infers(None)).run_inference(LLMContext([])) is None

    async def test_inference_retry_after_holds_for_turns(self) -> None:
        request = httpx.Request("POST", "http://127.0.0.1")
        response = httpx.Response(429, headers={"retry-after": "30"}, request=request)
        busy = self.infers(httpx.HTTPStatusError("busy", request=request, response=response))
        good = self.infers("A summary.", 1)
        async with Line(racing(busy, good, policy=HedgePolicy.fallback(deadline_secs=3))) as line:
            llm = line.service
            assert isinstance(llm, HedgedLLMService)
            assert await llm.run_inference(LLMContext([])) == "A summary."
            assert await llm.run_inference(LLMContext([])) == "A summary."
            await line.ask()
            report = await line.report()
        assert len(busy.given) == 1  # pyright: ignore[reportAttributeAccessIssue]
        assert [attempt.provider for attempt in report.attempts] == ["b"]

    async def test_deadline_ends_an_inference(self) -> None:
        llm = racing(self.infers("Late.", 9), policy=HedgePolicy.race(1, deadline_secs=0.5))
        began = asyncio.get_running_loop().time()
        with pytest.raises(AllProvidersFailed):
            await llm.run_inference(LLMContext([]))
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)


class TestInterruption:
    async def test_interruption_closes_every_request(self) -> None:
        llms = [scripted(Wait(NEVER)), scripted(Wait(NEVER))]
        llm = racing(*llms)
        async with Line(llm) as line:
            await line.send(LLMContextFrame(LLMContext([])))
            await asyncio.sleep(1.0)
            assert [s.open_requests for s in llms] == [1, 1]
            await line.interrupt()
            report = await line.report()
            assert [s.open_requests for s in llms] == [0, 0]
        assert report.outcome == "interrupted"
        assert [a.outcome for a in report.attempts] == ["interrupted", "interrupted"]
        assert line.framing == ["<", ">"]
        assert line.errors == []

    async def test_interruption_mid_answer_closes_the_winner(self) -> None:
        talker = scripted(Say("Well, "), Wait(NEVER))
        async with Line(racing(talker, scripted(Wait(NEVER)))) as line:
            await line.send(LLMContextFrame(LLMContext([])))
            await asyncio.sleep(1.0)
            await line.interrupt()
            report = await line.report()
        assert report.outcome == "interrupted"
        assert report.winner == "a"
        assert [a.outcome for a in report.attempts] == ["interrupted", "superseded"]
        assert talker.open_requests == 0

    async def test_turn_after_an_interruption_works(self) -> None:
        llm = racing(ScriptedLLMService([Wait(NEVER)], [Say("Yes?")]))
        async with Line(llm) as line:
            await line.send(LLMContextFrame(LLMContext([])))
            await asyncio.sleep(1.0)
            await line.interrupt()
            await line.report()
            await line.ask()
            assert line.text == "Yes?"

    async def test_member_ignoring_cancellation_does_not_block(self) -> None:
        class Stubborn(ScriptedLLMService):
            async def _play(self, script: Any, context: LLMContext) -> None:
                try:
                    await asyncio.sleep(NEVER if len(self.contexts) == 1 else 0)
                except asyncio.CancelledError:
                    await asyncio.sleep(2.0)
                await self._push_llm_text("I would not stop.")

        stubborn = Stubborn([])
        async with Line(racing(stubborn, scripted(Wait(0.1), Say("Hi.")))) as line:
            await line.ask()
            assert line.times(LLMFullResponseEndFrame)[0] == pytest.approx(
                line.times(LLMTextFrame)[0]
            )
            await line.report()
            await line.ask()
            report = await line.report(2)
            await asyncio.sleep(5)  # until it has stopped after all
        assert line.text == "Hi.Hi."
        assert report.attempts[0].outcome == "superseded"


class TestTools:
    @staticmethod
    def _context(**options: Any) -> LLMContext:
        async def book_table(params: FunctionCallParams) -> None:
            ran.append((params.context, dict(params.arguments)))
            await params.result_callback({"booked": True})

        ran: list[tuple[LLMContext, dict[str, Any]]] = []
        schema = FunctionSchema("book_table", "Books.", {}, [], handler=book_table)
        context = LLMContext([{"role": "user", "content": "A table, please."}], tools=[schema])
        context.ran = ran  # pyright: ignore[reportAttributeAccessIssue]
        return context

    async def test_only_the_winners_tool_runs_once(self) -> None:
        context = self._context()
        first = scripted(Wait(0.1), Call("book_table", {"by": "a"}))
        second = scripted(Wait(0.1), Call("book_table", {"by": "b"}))
        async with Line(racing(first, second)) as line:
            await line.ask(context=context)
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            report = await line.report()
        ran = context.ran  # pyright: ignore[reportAttributeAccessIssue]
        assert [arguments for _, arguments in ran] == [{"by": "a"}]
        assert ran[0][0] is context
        assert len(line.frames(FunctionCallInProgressFrame)) == 1
        assert report.outcome == "answered_with_tools"
        assert report.ttft_secs == pytest.approx(0.1)

    async def test_losers_tool_never_runs(self) -> None:
        context = self._context()
        caller = scripted(Wait(0.2), Call("book_table"))
        talker = scripted(Wait(0.1), Say("One "), Wait(0.3), Say("moment."))
        async with Line(racing(caller, talker)) as line:
            await line.ask(context=context)
        assert context.ran == []  # pyright: ignore[reportAttributeAccessIssue]
        assert line.text == "One moment."

    async def test_handler_on_the_hedged_service_runs(self) -> None:
        ran: list[str] = []

        async def close(params: FunctionCallParams) -> None:
            ran.append(params.function_name)
            await params.result_callback("done")

        llm = racing(scripted(Call("close")), scripted(Wait(1), Call("close")))
        llm.register_function("close", close)
        async with Line(llm) as line:
            await line.ask()
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
        assert ran == ["close"]

    @pytest.mark.parametrize("member", [0, 1])
    async def test_handler_on_a_member_runs(self, member: int) -> None:
        ran: list[str] = []

        async def close(params: FunctionCallParams) -> None:
            ran.append(params.function_name)
            await params.result_callback("done")

        members = [scripted(Call("close")), scripted(Wait(1), Call("close"))]
        members[member].register_function("close", close, timeout_secs=7.0)
        llm = racing(*members)
        assert all(m._functions["close"].timeout_secs == 7.0 for m in (*members, llm))
        async with Line(llm) as line:
            await line.ask()
            await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
        assert ran == ["close"]


class TestMetrics:
    async def test_metrics_have_the_winners_model(self) -> None:
        usage = LLMTokenUsage(prompt_tokens=100, completion_tokens=7, total_tokens=107)
        slow = scripted(Wait(0.5), Say("No."), model="slow-1")
        fast = scripted(Wait(0.05), Say("Yes."), model="fast-1", usage=usage)
        llm = racing(slow, fast)
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
            await line.until(lambda: bool(_metrics(line, HedgeMetricsData)))
        for kind in (TTFBMetricsData, TTFATMetricsData, LLMUsageMetricsData):
            [data] = [d for d in _metrics(line, kind) if not _is_zero(d)]
            assert (data.processor, data.model) == (llm.name, "fast-1")
        [hedge] = _metrics(line, HedgeMetricsData)
        assert hedge.report == report
        assert hedge.model == "fast-1"

    async def test_tokens_and_costs_are_reported(self) -> None:
        usage = LLMTokenUsage(prompt_tokens=1_000_000, completion_tokens=10, total_tokens=1_000_010)
        cheap = scripted(Wait(0.05), Say("Yes."), usage=usage)
        dear = scripted(Wait(0.04), Say("  "), Wait(NEVER))
        llm = HedgedLLMService(
            [
                Provider("dear", dear, usd_per_mtok=(10, 30)),
                Provider("cheap", cheap, usd_per_mtok=(3, 15)),
            ],
            policy=HedgePolicy.race(2),
        )
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
        lost, won = report.attempts
        assert (won.input_tokens, won.output_tokens, won.tokens_estimated) == (1_000_000, 10, False)
        assert won.usd == pytest.approx(3.00015)
        assert lost.tokens_estimated
        assert lost.output_tokens == 1
        assert lost.usd is not None
        assert lost.usd > 0

    async def test_unknown_price_gives_no_cost(self) -> None:
        async with Line(racing(scripted(Say("Hi.")))) as line:
            await line.ask()
            report = await line.report()
        assert report.attempts[0].usd is None


def _metrics(line: Line, kind: type) -> list[Any]:
    return [d for f in line.frames(MetricsFrame) for d in f.data if type(d) is kind]


def _is_zero(data: Any) -> bool:  # Pipecat announces itself with a zero when a pipeline starts
    return getattr(data, "value", None) == 0.0


class TestWhatReachesEveryMember:
    async def test_settings_reach_every_member(self) -> None:
        llms = [scripted(Say("Hi.")), scripted(Say("Hi."))]
        llm = HedgedLLMService(
            llms,
            policy=HedgePolicy.race(2),
            settings=HedgedLLMService.Settings(system_instruction="Be brief."),
        )
        async with Line(llm) as line:
            assert [setting(s, "system_instruction") for s in llms] == ["Be brief."] * 2
            await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(temperature=0.2)))
            await line.ask()
            assert [setting(s, "temperature") for s in llms] == [0.2, 0.2]
            assert [s.settings.model for s in llms] == ["scripted", "scripted"]

    async def test_settings_update_reaches_one_member(self) -> None:
        a, b = scripted(Say("Hi.")), scripted(Say("Hi."))
        async with Line(racing(a, b)) as line:
            await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(model="new"), service=b))
            await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(model="all")))
            await line.ask()
        assert (a.settings.model, b.settings.model) == ("scripted", "new")

    async def test_appended_instruction_reaches_every_member(self) -> None:
        llms = [scripted(Say("Hi.")), scripted(Say("Hi."))]
        llm = racing(*llms)
        llm.append_system_instruction("Speak plainly.")
        async with Line(llm) as line:
            await line.ask()
        assert [setting(s, "system_instruction") for s in llms] == ["Speak plainly."] * 2

    async def test_each_member_gets_its_own_context(self) -> None:
        llms = [scripted(Wait(0.1), Say("Hi.")), scripted(Wait(0.1), Say("Hi."))]
        context = LLMContext(
            [
                {"role": "user", "content": "Hello?"},
                LLMSpecificMessage(llm="another", message={"thought": "…"}),
            ]
        )
        async with Line(racing(*llms)) as line:
            await line.ask(context=context)
        for service in llms:
            [given] = service.contexts
            assert given is not context
            assert given.messages == [{"role": "user", "content": "Hello?"}]
        assert len(context.messages) == 2
