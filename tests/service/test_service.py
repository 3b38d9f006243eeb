"""The hedged service in a Pipecat pipeline, on virtual time: exact figures, no I/O."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
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
    ProcessingMetricsData,
    TTFATMetricsData,
    TTFBMetricsData,
)
from pipecat.processors.aggregators.llm_context import LLMSpecificMessage
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import (
    AllProvidersFailed,
    HedgedLLMService,
    HedgeMetricsData,
    HedgePolicy,
    Provider,
)
from pipecat_hedge.race import DrainedAnswer
from pipecat_hedge.race.race import OPEN_TIMES
from pipecat_hedge.service import CONTINUE
from pipecat_hedge.service.http_listener import trace_response
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import (
    NEVER,
    Inferring,
    Raising,
    Tool,
    asked,
    racing,
    said,
    scripted,
)
from tests.support.line import Line
from tests.support.logged import logged

pytestmark = pytest.mark.virtual_time

REJECTED = Error(category=ErrorCategory.AUTHENTICATION)
CUT: list[Step] = [
    Say("We are open till nine."),
    Say(" Shall"),
    Wait(0.1),
    Say(" I"),
    Error(category=ErrorCategory.CONNECTIVITY),
]
"""An answer that breaks off after its first sentence."""
BY_SENTENCE = HedgePolicy.fallback(commit="first_sentence")


# ---- which attempt wins


@pytest.mark.parametrize("winner", ["a", "b"])
async def test_first_usable_token_wins(winner: str) -> None:
    fast = scripted(Wait(0.05), Say("Hello "), Wait(0.1), Say("there."))
    slow = scripted(Wait(0.5), Say("Good evening."))
    line = await asked(racing(*((fast, slow) if winner == "a" else (slow, fast))))
    report = line.reports[0]
    assert line.text == "Hello there."
    assert line.framing == ["<", "t", "t", ">"]
    start, first = line.times(LLMFullResponseStartFrame)[0], line.times(LLMTextFrame)[0]
    assert first - start == report.ttft_secs == pytest.approx(0.05)
    assert (report.winner, report.duration_secs) == (winner, pytest.approx(0.15))
    assert (report.commit_on, report.commit_reason) == ("first_token", "first_token")
    assert (slow.closed_by_cancel, slow.open_requests, fast.open_requests) == (1, 0, 0)


async def test_blank_text_and_markers_do_not_win() -> None:
    blank = scripted(Say(" "), Say("\n"), Say("●"), Wait(3), Say(" Late."))
    assert (await asked(racing(blank, scripted(Wait(0.2), Say("Early."))))).text == "Early."


async def test_text_before_the_first_usable_token_is_released() -> None:
    line = await asked(racing(scripted(Say(" "), Wait(0.1), Say("Yes."), Say(" Sir."))))
    assert line.text == " Yes. Sir."


async def test_only_winner_thoughts_are_released() -> None:
    thinker = scripted(LLMThoughtTextFrame("hm"), Wait(NEVER))
    answerer = scripted(LLMThoughtTextFrame("aha"), Wait(0.1), Say("Yes."))
    line = await asked(racing(thinker, answerer))
    assert [f.text for f in line.frames(LLMThoughtTextFrame)] == ["aha"]


async def test_inline_thoughts_are_not_spoken_and_do_not_win() -> None:
    thinker = scripted(Say("<thi"), Say("nk>Let me see</th"), Wait(1), Say("ink>\n\nYes."))
    line = await asked(racing(thinker))
    assert line.text == "Yes."
    assert "".join(f.text for f in line.frames(LLMThoughtTextFrame)) == "Let me see"
    assert line.reports[0].ttft_secs == pytest.approx(1.0)


async def test_single_sentence_is_released_at_its_end() -> None:
    only = scripted(Say("We are"), Wait(0.2), Say(" open."), Wait(0.1))
    line = await asked(racing(only, policy=BY_SENTENCE))
    assert line.text == "We are open."
    assert line.reports[0].commit_reason == "whole_answer"
    assert line.reports[0].ttfs_secs == pytest.approx(0.3)


# ---- when a request is sent


async def test_second_instance_hedges_the_same_provider() -> None:
    instances = [scripted(Wait(NEVER)), scripted(Wait(0.1), Say("Hi."))]
    line = await asked(racing(Provider("claude", instances), policy=HedgePolicy.after(0.5)))
    assert [a.provider for a in line.reports[0].attempts] == ["claude", "claude"]
    assert line.reports[0].ttft_secs == pytest.approx(0.6)


class TimesOut(ScriptedLLMService):
    """Reports a timeout by its event, without an error frame."""

    async def _play(self, *_: Any, **__: Any) -> None:
        await self._call_event_handler("on_completion_timeout")


class Stumbling(ScriptedLLMService):
    """Raises an error in reading a response."""

    async def _play(self, *_: Any, **__: Any) -> None:
        await trace_response(httpx.Response(200))
        raise TypeError("'NoneType' object is not subscriptable")


@pytest.mark.parametrize(
    ("faulty", "category"),
    [
        (lambda: scripted(Error(category=ErrorCategory.RATE_LIMIT)), "rate_limit"),
        (lambda: scripted(Error(category=ErrorCategory.QUOTA)), "quota"),
        (scripted, "empty"),
        (lambda: scripted(Say("  ")), "empty"),
        (lambda: scripted(Say(" "), Error()), "server"),
        (lambda: Raising(RuntimeError("bug in the service")), "unknown"),
        (lambda: Raising(TypeError("not subscriptable")), "application"),
        (lambda: Stumbling([]), "unknown"),
        (lambda: TimesOut([]), "connectivity"),
    ],
)
@pytest.mark.parametrize("policy", [HedgePolicy.fallback(), HedgePolicy.after(60)])
async def test_failure_launches_the_next_at_once(
    faulty: Any, category: str, policy: HedgePolicy
) -> None:
    line = await asked(racing(faulty(), scripted(Wait(0.2), Say("Hi.")), policy=policy))
    failed, won = line.reports[0].attempts
    assert (line.text, line.errors) == ("Hi.", [])
    assert line.reports[0].ttft_secs == pytest.approx(0.2)
    assert (failed.outcome, failed.error_category) == ("failed", category)
    assert (won.outcome, won.launch_reason) == ("won", "failure")


async def test_each_lasting_rejection_is_warned_once() -> None:
    llm = racing(
        Provider("a", [scripted(REJECTED), scripted(REJECTED)]),
        scripted(REJECTED),
        ScriptedLLMService([Say("Hi.")], [REJECTED]),
        policy=HedgePolicy.fallback(3),
    )
    with logged() as warnings:
        line = await asked(llm, turns=4)
    requested = ["".join(a.provider for a in report.attempts) for report in line.reports]
    assert requested == ["abc", "cab", "abc", "abc"]
    assert len(warnings) == 3
    assert "a rejected a request (authentication) and comes last until" in warnings[0]


async def test_wrong_key_delays_one_turn() -> None:
    rejecting = scripted(Wait(0.3), REJECTED)
    llm = racing(rejecting, scripted(Wait(0.2), Say("Yes.")), policy=HedgePolicy.fallback())
    line = await asked(llm, turns=40, pause_secs=1.0)
    assert [report.ttft_secs for report in line.reports] == pytest.approx([0.5] + [0.2] * 39)
    assert len(rejecting.contexts) == 5


async def test_rejecting_provider_is_tried_again_beside_the_next() -> None:
    llm = racing(
        ScriptedLLMService([REJECTED], [Say("Hi.")]),
        scripted(Wait(2.0), Say("Hello.")),
        policy=HedgePolicy.fallback(),
    )
    line = await asked(llm, turns=7, pause_secs=2.0)
    asked_for = ["".join(a.provider for a in report.attempts) for report in line.reports]
    assert asked_for == ["ab", "b", "b", "ba", "a", "a", "a"]


# ---- when all have failed


async def test_all_failed_pushes_one_error_with_every_cause() -> None:
    a = ScriptedLLMService([Error(category=ErrorCategory.RATE_LIMIT)], [Say("Back.")])
    b = ScriptedLLMService([Wait(0.1), Error(category=ErrorCategory.SERVER)])
    line = await asked(racing(a, b), turns=2)
    report = line.reports[0]
    [error] = line.errors
    assert isinstance(error.exception, AllProvidersFailed)
    causes = [(name, cause.category) for name, cause in error.exception.causes]
    assert causes == [("a", "rate_limit"), ("b", "server")]
    assert (report.outcome, report.winner, report.ttft_secs) == ("failed", None, None)
    assert (line.text, line.framing) == ("Back.", ["<", ">", "<", "t", ">"])


@pytest.mark.parametrize(
    ("script", "options", "secs", "category"),
    [
        ([Error()], {}, 0.0, "server"),
        ([Wait(NEVER)], {"deadline_secs": 4}, 4.0, "deadline"),
        ([Wait(NEVER)], {}, 30.0, "timeout"),
    ],
)
async def test_fallback_text_is_spoken(
    script: list[Step], options: dict[str, Any], secs: float, category: str
) -> None:
    provider = Provider("a", silent := scripted(*script), timeout_secs=30)
    line = await asked(
        racing(provider, policy=HedgePolicy.race(1, fallback_text="Sorry.", **options))
    )
    report = line.reports[0]
    assert (line.text, line.framing, len(line.errors)) == ("Sorry.", ["<", "t", ">"], 1)
    assert (report.outcome, report.duration_secs) == ("failed", pytest.approx(secs))
    assert [a.error_category for a in report.attempts] == [category]
    assert silent.open_requests == 0


# ---- an answer that breaks off after its first words


@pytest.mark.parametrize("cause", ["connectivity", "stalled"])
@pytest.mark.parametrize(
    "second",
    [" Shall I book a table?", "We are open till nine. Shall I book a table?"],
    ids=["goes on", "repeats"],
)
@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
async def test_continuation_completes_the_answer(cause: str, second: str, commit: Any) -> None:
    broken = scripted(*CUT) if cause == "connectivity" else scripted(*CUT[:-1], Wait(NEVER))
    rescuer = scripted(Wait(0.2), *[Say(word) for word in re.findall(r"\s*\S+", second)])
    policy = HedgePolicy.fallback(commit=commit, stall_secs=2.0)
    line = await asked(racing(broken, rescuer, policy=policy))
    report = line.reports[0]
    assert line.text == "We are open till nine. Shall I book a table?"
    assert line.framing.count("<") == line.framing.count(">") == 1
    assert line.errors == []
    assert (report.outcome, report.winner) == ("answered", "b")
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert report.attempts[0].error_category == cause


async def test_continuation_prompt_contains_the_released_text() -> None:
    rescuer, context = scripted(Say(" Do come.")), said("Are you open?")
    await asked(racing(scripted(*CUT), rescuer, policy=BY_SENTENCE), context=context)
    messages: Any = rescuer.contexts[0].messages
    question, answer, instruction = [(m["role"], m["content"]) for m in messages]
    assert question == ("user", "Are you open?")
    assert answer == ("assistant", "We are open till nine.")
    assert instruction == ("user", CONTINUE)
    assert len(context.messages) == 1


async def test_broken_continuation_is_continued() -> None:
    second = scripted(Say(" We have a terrace."), Say(" It"), Error())
    policy = HedgePolicy.fallback(max_attempts=3, commit="first_sentence")
    line = await asked(racing(scripted(*CUT), second, scripted(Say(" Do come by.")), policy=policy))
    assert line.text == "We are open till nine. We have a terrace. Do come by."


async def test_answer_that_pauses_is_whole_though_its_rescue_breaks_off() -> None:
    """By a second request, if the first one was closed for its silence."""
    first = ScriptedLLMService(PAUSING, [Wait(0.2), *GOING_ON])
    second = scripted(Wait(0.2), *GOING_ON[:8], Error())
    line = await asked(racing(first, second, policy=HedgePolicy.fallback()))
    assert (line.text, line.errors) == (QUESTION, [])
    assert [a.provider for a in line.reports[0].attempts] == ["a", "b", "a"]


@pytest.mark.parametrize("losers", ["cancel", "drain"])
async def test_provider_that_has_lost_continues_the_answer(losers: Any) -> None:
    """Also where its request runs on, on its only instance: that request is closed first."""
    loser = scripted(Wait(0.5), Say("We are open till nine."), Say(" Do come by."), Wait(9.0))
    policy = HedgePolicy.race(2, commit="first_sentence", losers=losers)
    line = await asked(racing(scripted(*CUT), loser, policy=policy))
    report = line.reports[0]
    assert line.text == "We are open till nine. Do come by."
    assert [a.outcome for a in report.attempts] == ["failed", "superseded", "won"]
    assert (report.outcome, report.winner) == ("answered", "b")


QUESTION = "We are open till nine. Shall I book a table?"


def pausing(secs: float) -> list[Step]:
    return [*CUT[:-1], Wait(secs), Say(QUESTION[len("We are open till nine. Shall I") :])]


PAUSING = pausing(5.0)
GOING_ON = [Say(word) for word in re.findall(r"\s*\S+", QUESTION)]
OTHERS: dict[str, list[Step]] = {
    "well": [Wait(0.2), *GOING_ON],
    "slow": [Wait(2.5), *GOING_ON],
    "fails": [Error()],
    "hangs": [Wait(NEVER)],
}


@pytest.mark.parametrize("pause_secs", [5.0, 11.0])
@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "policy",
    [HedgePolicy.race(2), HedgePolicy.after(0.1), HedgePolicy.fallback(), HedgePolicy.adaptive()],
    ids=lambda policy: policy.name,
)
async def test_answer_that_pauses_is_whole(
    policy: HedgePolicy, other: str, commit: Any, pause_secs: float
) -> None:
    """Whatever the other provider does, as with the bare service; sooner if that is well."""
    script = pausing(pause_secs)
    bare_secs, bare = await _secs(scripted(*script))
    second = ScriptedLLMService([Wait(0.5), *OTHERS[other]], OTHERS[other])
    if policy.name in ("fallback", "adaptive"):  # no hedge loses
        second = scripted(*OTHERS[other])
    llm = racing(scripted(*script), second, policy=dataclasses.replace(policy, commit=commit))
    secs, line = await _secs(llm)
    assert (line.text, line.errors) == (bare.text, [])
    assert line.framing.count("<") == line.framing.count(">") == 1
    assert secs <= bare_secs + 0.01
    is_sooner = other == "well" or (other == "slow" and pause_secs > 3.0 + 2.5)
    assert (secs < bare_secs - 1) == is_sooner


THINKS = Wait(6.0)
PREAMBLE = [Wait(0.5), Say("Let me check that."), Wait(10.0), Call("book")]


@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("make", [partial(HedgePolicy.race, 2), HedgePolicy.adaptive])
async def test_model_may_think_between_its_first_words_and_a_tool_call(
    make: Callable[..., HedgePolicy], commit: Any
) -> None:
    """The same model beside it begins alike and thinks as long: to repeat is not to go on."""
    found: list[tuple[str, int, int, float]] = []
    hedged = racing(scripted(*PREAMBLE), scripted(*PREAMBLE), policy=make(commit=commit))
    for llm in (scripted(*PREAMBLE), hedged):
        began_at = asyncio.get_running_loop().time()
        line = await (tool := Tool()).asked(llm)
        secs = line.times(FunctionCallInProgressFrame)[0] - began_at
        found.append((line.text, len(line.errors), len(tool.calls), round(secs, 3)))
    assert found[0] == found[1]


@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("other", [[THINKS, *GOING_ON], [Error()]], ids=["thinks", "fails"])
@pytest.mark.parametrize(
    "last", [CUT, [*CUT[:-1], Wait(8.0), *PAUSING[-1:]]], ids=["is cut", "pauses"]
)
async def test_model_that_thinks_may_think_in_an_answer(
    last: list[Step], other: list[Step], commit: Any
) -> None:
    """As long as it does before one; so may what continues it. Bare loses only what is cut."""
    scripts = [[THINKS, *GOING_ON]] * 2
    llms = [Scripts(partial(scripts.__getitem__, n), None) for n in range(2)]
    policy = HedgePolicy.adaptive(order="given", commit=commit)
    async with Line(racing(*llms, policy=policy)) as line:
        for _ in range(30):
            await line.ask()
        line.forget()
        scripts[:] = [THINKS, *last], other
        await line.ask()
        is_lost = last is CUT and other == [Error()]
        assert (line.text == QUESTION, len(line.errors)) == (not is_lost, int(is_lost))


async def _secs(llm: LLMService[Any]) -> tuple[float, Line]:
    """The time to the end of a turn's answer, and its line."""
    began_at = asyncio.get_running_loop().time()
    line = await asked(llm)
    return line.times(LLMFullResponseEndFrame)[0] - began_at, line


@pytest.mark.parametrize(
    ("commit", "first", "fallback_text", "heard"),
    [
        ("first_sentence", ["We are open.", " Shall I"], None, "We are open."),
        ("first_sentence", ["We are open.", " Shall I"], "Sorry.", "We are open. Sorry."),
        ("first_token", ["We are open.", " Shall I"], None, "We are open. Shall I"),
        ("first_token", ["We are open.", " Shall I"], "Sorry.", "We are open. Shall I... Sorry."),
        ("first_token", ["We are open.", " Shall "], "Sorry.", "We are open. Shall ... Sorry."),
        ("first_token", ["We are open. "], "Sorry.", "We are open. Sorry."),
        ("first_token", ["我们营业到九点。"], "Sorry.", "我们营业到九点。 Sorry."),
        ("first_token", ["我们营业。"], "请稍等。", "我们营业。请稍等。"),
    ],
)
async def test_fallback_text_follows_an_uncontinued_answer(
    commit: Any, first: list[str], fallback_text: str | None, heard: str
) -> None:
    cut = scripted(Wait(0.2), *map(Say, first), Wait(1), Error())
    policy = HedgePolicy.fallback(commit=commit, fallback_text=fallback_text)
    line = await asked(racing(cut, scripted(Error()), policy=policy))
    report = line.reports[0]
    assert line.text == heard
    assert line.framing.count("<") == line.framing.count(">") == 1
    assert len(line.errors) == 1
    assert (report.outcome, report.winner) == ("failed", "a")
    assert report.ttft_secs == pytest.approx(0.2)
    why = "the answer broke off and was not continued (a: server, b: server)"
    assert report.degraded_reason == (why if fallback_text else None)


SILENCED: dict[str, tuple[int, Callable[..., HedgePolicy]]] = {
    "adaptive": (2, HedgePolicy.adaptive),
    "fallback": (2, HedgePolicy.fallback),
    "after(0.5)": (2, partial(HedgePolicy.after, 0.5)),
    "race(2)": (2, partial(HedgePolicy.race, 2)),
    "race(2) of three": (3, partial(HedgePolicy.race, 2)),
    "race(3) of four": (4, partial(HedgePolicy.race, 3)),
    "adaptive of three": (3, partial(HedgePolicy.adaptive, max_attempts=3)),
}
"""Numbers of providers, and policies."""


@pytest.mark.parametrize("fallback_text", [None, "Sorry?"])
@pytest.mark.parametrize("end", ["breaks", "stalls"])
@pytest.mark.parametrize("policy", SILENCED)
async def test_broken_answer_ends_when_its_replacements_are_silent(
    policy: str, end: str, fallback_text: str | None
) -> None:
    """Each has ``stall_secs``; what was said stays, and the next turn is answered."""
    count, make = SILENCED[policy]
    silent: list[Step] = [Wait(NEVER)]
    scripts = [CUT if end == "breaks" else [*CUT[:-1], *silent], *[silent] * (count - 1)]
    llms = [Scripts(partial(scripts.__getitem__, n), None) for n in range(count)]
    llm = racing(*llms, policy=make(stall_secs=0.7, fallback_text=fallback_text))
    async with Line(llm) as line:
        began_at = asyncio.get_running_loop().time()
        await line.ask()
        secs = line.times(LLMFullResponseEndFrame)[0] - began_at
        text, errors, framing = line.text, len(line.errors), line.framing
        has_replacement = sum(len(each.contexts) for each in llms) > count
        well: list[Step] = [Say("Yes.")]
        scripts[:] = [well] * count
        line.forget()
        await line.ask()
        assert line.text == "Yes."
    most_secs = 0.1 + (count - 1) * 0.7
    if end == "stalls":
        most_secs = max(0.1 + OPEN_TIMES * 0.7, most_secs + 0.7)
    assert secs <= most_secs + 0.01
    assert secs >= 0.7 or (policy.startswith("race") and not has_replacement)
    assert (errors, framing.count("<"), framing.count(">")) == (1, 1, 1)
    whole, _, rest = text.partition("We are open till nine.")
    assert whole == ""
    assert rest.endswith(fallback_text or "")
    said = rest.removesuffix(fallback_text or "").rstrip().removesuffix("...").rstrip()
    assert " Shall I".startswith(said)


async def test_broken_answer_is_continued_by_a_third_provider_beside_a_silent_one() -> None:
    llms = scripted(*CUT), scripted(Wait(NEVER)), scripted(Wait(0.1), Say(" Do come by."))
    policy = HedgePolicy.adaptive(max_attempts=3, stall_secs=0.7)
    secs, line = await _secs(racing(*llms, policy=policy))
    assert line.text.startswith("We are open till nine.")
    assert line.text.endswith(" Do come by.")
    assert (line.errors, line.framing.count("<"), line.framing.count(">")) == ([], 1, 1)
    assert secs == pytest.approx(0.1 + 0.7 + 0.1)


async def test_stream_break_after_a_tool_call_is_no_failure() -> None:
    broken = scripted(Say("I look."), Call("book"), Wait(0.1), Error())
    policy = HedgePolicy.race(1, commit="first_sentence", fallback_text="Sorry.")
    line = await Tool().asked(racing(broken, policy=policy))
    report = line.reports[0]
    assert (line.text, line.errors) == ("I look.", [])
    assert (report.outcome, report.degraded_reason) == ("answered_with_tools", None)


async def test_incomplete_tool_call_does_not_run() -> None:
    cut = scripted(Say("One moment."), Say(" I"), Wait(0.1), Error())
    whole = scripted(Wait(0.1), Call("book", tool_call_id="whole"))
    line = await (tool := Tool()).asked(racing(cut, whole, policy=BY_SENTENCE))
    assert [call.tool_call_id for call in tool.calls] == ["whole"]
    assert (line.text, line.reports[0].outcome) == ("One moment.", "answered_with_tools")


# ---- interruptions


async def test_interruption_of_a_continuation_closes_its_request() -> None:
    """At the other points of a turn: ``test_cancellations.py``."""
    llms = [ScriptedLLMService(script, [Say("Yes?")]) for script in (CUT, [Wait(NEVER)])]
    async with Line(racing(*llms, policy=BY_SENTENCE)) as line:
        asking = asyncio.create_task(line.ask())
        await asyncio.sleep(1.0)
        await line.interrupt()
        report = await line.report()
        await asking
        assert [llm.open_requests for llm in llms] == [0, 0]
        assert (line.framing.count(">"), line.errors) == (1, [])
        await line.ask()
    assert line.text == "We are open till nine.Yes?"
    assert (report.outcome, report.degraded_reason) == ("interrupted", None)
    assert [a.outcome for a in report.attempts] == ["failed", "interrupted"]


async def test_member_ignoring_cancellation_does_not_block() -> None:
    class Stubborn(ScriptedLLMService):
        async def _play(self, *_: Any, **__: Any) -> None:
            try:
                await asyncio.sleep(NEVER if len(self.contexts) == 1 else 0)
            except asyncio.CancelledError:
                await asyncio.sleep(2.0)
            await self._push_llm_text("I would not stop.")

    async with Line(racing(Stubborn([]), scripted(Wait(0.1), Say("Hi.")))) as line:
        await line.ask()
        ends, texts = line.times(LLMFullResponseEndFrame), line.times(LLMTextFrame)
        assert ends == pytest.approx(texts)
        await line.ask()
        report = await line.report(2)
        await asyncio.sleep(5)  # until it has stopped after all
    assert line.text == "Hi.Hi."
    assert report.attempts[0].outcome == "superseded"


# ---- what is reported


async def test_provider_states_follow_each_turn() -> None:
    denied, fast = scripted(REJECTED), scripted(Wait(0.2), Say("Hi."), model="gpt-4.1")
    llm = racing(denied, fast, policy=HedgePolicy.fallback())
    async with Line(llm) as line:
        before = llm.provider_states()
        await line.ask()
        now = asyncio.get_running_loop().time()
        llm.stats.set_retry_after("b | gpt-4.1", now + 20)
        after = llm.provider_states()
    assert [(s.provider, s.model, s.is_last, s.retry_after_secs) for s in before] == [
        ("a", "scripted", False, 0.0),
        ("b", "gpt-4.1", False, 0.0),
    ]
    assert [(s.is_last, round(s.retry_after_secs)) for s in after] == [(True, 0), (False, 20)]
    assert [s.prior_weight for s in before] == [1.0, 1.0]
    assert after[1].prior_weight < 1.0
    assert after[1].p50_secs < before[1].p50_secs < before[1].p95_secs


def test_provider_states_need_no_running_loop() -> None:
    (state,) = racing(scripted(Say("Hi."))).provider_states()
    assert (state.provider, state.breaker) == ("a", "closed")


async def test_each_race_is_logged_in_one_line() -> None:
    with logged("DEBUG") as lines:
        await asked(racing(scripted(Wait(1), Say("No.")), scripted(Say("Yes."))))
    (found,) = [text for text in lines if "turn 1: answered" in text]
    assert "race(2): turn 1: answered, TTFT 0.000 s: a superseded, b won" in found


def _metrics(line: Line, kind: type) -> list[Any]:
    """The metrics of a kind, without the zero with which Pipecat announces itself."""
    found = [d for f in line.frames(MetricsFrame) for d in f.data if type(d) is kind]
    return [data for data in found if getattr(data, "value", None) != 0.0]


async def test_metrics_have_the_winners_model() -> None:
    usage = LLMTokenUsage(prompt_tokens=100, completion_tokens=7, total_tokens=107)
    slow = scripted(Wait(0.5), Say("No."), model="slow-1")
    llm = racing(slow, scripted(Wait(0.05), Say("Yes."), model="fast-1", usage=usage))
    async with Line(llm) as line:
        await line.ask()
        report = await line.report()
        await line.until(lambda: bool(_metrics(line, HedgeMetricsData)))
    for kind in (TTFBMetricsData, TTFATMetricsData, LLMUsageMetricsData):
        [data] = _metrics(line, kind)
        assert (data.processor, data.model) == (llm.name, "fast-1")
    [hedge] = _metrics(line, HedgeMetricsData)
    assert (hedge.report, hedge.model) == (report, "fast-1")


async def test_metrics_without_a_winner_have_the_first_requests_model() -> None:
    """And not none, or that of an earlier turn's winner."""
    first = ScriptedLLMService([Wait(1), Say("No.")], [Wait(NEVER)], model="first-1")
    second = ScriptedLLMService([Say("Yes.")], [Wait(NEVER)], model="second-1")
    async with Line(racing(first, second)) as line:
        await line.ask()
        assert line.text == "Yes."
        await line.send(LLMContextFrame(said()))
        await asyncio.sleep(0.1)
        line.forget()
        await line.interrupt()
        await line.until(lambda: bool(_metrics(line, ProcessingMetricsData)))
    assert [data.model for data in _metrics(line, ProcessingMetricsData)] == ["first-1"]


async def test_tokens_and_costs_are_reported() -> None:
    usage = LLMTokenUsage(prompt_tokens=1_000_000, completion_tokens=10, total_tokens=1_000_010)
    cheap = scripted(Wait(0.05), Say("Yes."), usage=usage)
    dear = scripted(Wait(0.04), Say("  "), Wait(NEVER))
    line = await asked(
        racing(
            Provider("dear", dear, usd_per_mtok=(10, 30)),
            Provider("cheap", cheap, usd_per_mtok=(3, 15)),
            scripted(Wait(1)),
        )
    )
    lost, won, unpriced = line.reports[0].attempts
    assert (won.input_tokens, won.output_tokens, won.tokens_estimated) == (1_000_000, 10, False)
    assert won.usd == pytest.approx(3.00015)
    assert (lost.tokens_estimated, lost.output_tokens) == (True, 1)
    assert lost.usd is not None
    assert lost.usd > 0
    assert unpriced.usd is None


# ---- losers that run on


DRAIN = HedgePolicy.race(2, losers="drain")


async def drained(llm: HedgedLLMService, turns: int = 1, pause_secs: float = 2.0) -> Any:
    """The line after some turns, and the drained answers."""
    answers: list[DrainedAnswer] = []

    @llm.event_handler("on_loser_drained")
    async def on_loser_drained(_: object, answer: DrainedAnswer) -> None:
        answers.append(answer)

    return await asked(llm, turns, pause_secs=pause_secs), answers


async def test_drained_loser_is_recorded(tmp_path: Path) -> None:
    usage = LLMTokenUsage(prompt_tokens=9, completion_tokens=4, total_tokens=13)
    slow = scripted(Wait(0.5), Say("Good "), Wait(0.1), Say("evening."), usage=usage)
    log = tmp_path / "drained.jsonl"
    fast = scripted(Wait(0.1), Say("Hi."))
    line, [answer] = await drained(racing(fast, slow, policy=DRAIN, drained_log=log))
    assert line.text == "Hi."
    assert [a.outcome for a in line.reports[0].attempts] == ["won", "superseded"]
    assert (answer.provider, answer.text, answer.complete) == ("b", "Good evening.", True)
    assert answer.ttft_secs == pytest.approx(0.5)
    assert answer.duration_secs == pytest.approx(0.6)
    assert (answer.input_tokens, answer.output_tokens, answer.tokens_estimated) == (9, 4, False)
    assert json.loads(log.read_text()) == dataclasses.asdict(answer)


@pytest.mark.parametrize(("policy", "warns"), [(DRAIN, 0), (HedgePolicy.race(2), 1)])
async def test_drained_log_without_drained_losers_is_warned_of(
    policy: HedgePolicy, warns: int, tmp_path: Path
) -> None:
    with logged() as lines:
        racing(scripted(), scripted(), policy=policy, drained_log=tmp_path / "drained.jsonl")
    assert [line for line in lines if "drained_log stays empty" in line] == lines
    assert len(lines) == warns


async def test_rest_of_another_answer_is_no_drained_answer() -> None:
    """The rescue of an answer that goes on."""
    policy = HedgePolicy.fallback(losers="drain")
    line, answers = await drained(
        racing(scripted(*PAUSING), scripted(*OTHERS["slow"]), policy=policy)
    )
    assert [a.outcome for a in line.reports[0].attempts] == ["won", "superseded"]
    assert answers == []


async def test_next_turn_ends_a_drained_loser() -> None:
    slow = ScriptedLLMService([Wait(0.5), Say("Good"), Wait(NEVER)], [Say("Me first.")])
    fast = ScriptedLLMService([Wait(0.1), Say("Hi.")], [Wait(1), Say("Unheard.")])
    line, answers = await drained(racing(fast, slow, policy=DRAIN), turns=2)
    assert line.text == "Hi.Me first."
    assert (answers[0].text, answers[0].complete) == ("Good", False)


async def test_interruption_ends_a_drained_loser() -> None:
    slow = scripted(Wait(NEVER))
    fast = scripted(Wait(0.1), Say("Hi."))
    async with Line(racing(fast, slow, policy=DRAIN)) as line:
        await line.ask()
        assert slow.open_requests == 1
        await line.interrupt()
        await asyncio.sleep(0.1)
        assert slow.open_requests == 0


# ---- inferences


async def test_inference_is_raced() -> None:
    good = Inferring("A summary.", 1)
    llm = racing(Inferring("Slow.", 5), Inferring(" "), Raising(OSError("no")), good)
    answer = await llm.run_inference(said(), max_tokens=7, system_instruction="Sum up.")
    assert answer == "A summary."
    assert good.options == [{"max_tokens": 7, "system_instruction": "Sum up."}]


async def test_every_request_of_an_inference_has_the_conversation_of_its_beginning() -> None:
    second, context = Inferring(), said()
    llm = racing(Inferring("Slow.", 5), second, policy=HedgePolicy.after(0.5))
    answer = asyncio.create_task(llm.run_inference(context))
    await asyncio.sleep(0.1)
    context.add_message({"role": "user", "content": "And on Sunday?"})
    assert await answer == "In short."
    assert [given.messages for given in second.contexts] == [said().messages]


async def test_inference_raises_every_cause() -> None:
    llm = racing(Raising(OSError("no")), Raising(ValueError("no")))
    with pytest.raises(AllProvidersFailed) as caught:
        await llm.run_inference(said())
    assert [e.category for _, e in caught.value.causes] == ["connectivity", "application"]


@pytest.mark.parametrize(
    "llms",
    [
        lambda: [Inferring(None)],
        lambda: [Inferring(None), Inferring(None)],
        lambda: [Raising(OSError("no")), Inferring(None)],
    ],
)
async def test_blank_inference_returns_none(llms: Any) -> None:
    assert await racing(*llms()).run_inference(said()) is None


async def test_deadline_ends_an_inference() -> None:
    llm = racing(Inferring("Late.", 9), policy=HedgePolicy.race(1, deadline_secs=0.5))
    began = asyncio.get_running_loop().time()
    with pytest.raises(AllProvidersFailed):
        await llm.run_inference(said())
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)


# ---- tools


async def test_only_the_winners_tool_runs_once() -> None:
    tool = Tool()
    first, second = [scripted(Wait(0.1), Call("book", {"by": name})) for name in "ab"]
    line = await tool.asked(racing(first, second), context := tool.offered())
    [call] = tool.calls
    assert dict(call.arguments) == {"by": "a"}
    assert call.context is context
    assert len(line.frames(FunctionCallInProgressFrame)) == 1
    assert line.reports[0].outcome == "answered_with_tools"
    assert line.reports[0].ttft_secs == pytest.approx(0.1)


async def test_losers_tool_never_runs() -> None:
    caller = scripted(Wait(0.2), Call("book"))
    talker = scripted(Wait(0.1), Say("One "), Wait(0.3), Say("moment."))
    line = await asked(racing(caller, talker), context=(tool := Tool()).offered())
    assert (tool.calls, line.text) == ([], "One moment.")


@pytest.mark.parametrize("owner", [0, 1, 2], ids=["a", "b", "the hedged service"])
async def test_registered_handler_runs_once(owner: int) -> None:
    members = [scripted(Call("book")), scripted(Wait(1), Call("book"))]
    tool = Tool()
    if owner < 2:
        members[owner].register_function("book", tool.run, timeout_secs=7.0)
    llm = racing(*members)
    if owner == 2:
        llm.register_function("book", tool.run, timeout_secs=7.0)
    assert all(each._functions["book"].timeout_secs == 7.0 for each in (*members, llm))
    async with Line(llm) as line:
        await line.ask()
        await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
    assert len(tool.calls) == 1


async def test_text_is_released_before_its_tool_runs() -> None:
    async def book(params: FunctionCallParams) -> None:
        await params.result_callback(line.text)

    llm = racing(scripted(Say("One moment."), Wait(0.1), Call("book")), policy=BY_SENTENCE)
    llm.register_function("book", book)
    async with Line(llm) as line:
        await line.ask()
        await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
    assert line.frames(FunctionCallResultFrame)[0].result == "One moment."


# ---- what reaches every member


def settings_of(llms: list[ScriptedLLMService], name: str) -> list[Any]:
    return [getattr(llm.settings, name) for llm in llms]


async def test_settings_reach_every_member() -> None:
    llms = [scripted(Say("Hi.")), scripted(Say("Hi."))]
    llm = racing(*llms, settings=HedgedLLMService.Settings(system_instruction="Be brief."))
    async with Line(llm) as line:
        assert settings_of(llms, "system_instruction") == ["Be brief."] * 2
        llm.append_system_instruction("Speak plainly.")
        await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(temperature=0.2)))
        await line.ask()
    assert settings_of(llms, "temperature") == [0.2, 0.2]
    assert all("Speak plainly." in text for text in settings_of(llms, "system_instruction"))


async def test_settings_in_a_mapping_are_the_services_own_as_bare() -> None:
    bare, member = (OpenAILLMService(api_key="any") for _ in range(2))
    mapping = {"temperature": 0.2, "max_completion_tokens": 50, "parallel_tool_calls": False}
    for llm in (bare, racing(member, warm=False)):
        async with Line(llm) as line:
            await line.send(LLMUpdateSettingsFrame(settings=mapping))
            await line.until(lambda line=line: bool(line.frames(LLMUpdateSettingsFrame)))
    assert member.settings == bare.settings
    assert member.settings.extra == {"parallel_tool_calls": False}
    for llm in (bare, member):
        await llm._client.close()


async def test_settings_update_reaches_one_member() -> None:
    llms = [scripted(Say("Hi.")), scripted(Say("Hi."))]
    async with Line(racing(*llms)) as line:
        await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(model="new"), service=llms[1]))
        await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(model="all")))
        await line.ask()
    assert settings_of(llms, "model") == ["scripted", "new"]


async def test_model_of_a_single_provider_is_updated_as_without_hedging() -> None:
    alone = scripted(Say("Hi."))
    async with Line(racing(alone)) as line:
        await line.send(LLMUpdateSettingsFrame(delta=LLMSettings(model="new")))
        await line.ask()
    assert settings_of([alone], "model") == ["new"]


async def test_each_member_gets_its_own_context() -> None:
    llms = [scripted(Wait(0.1), Say("Hi.")), scripted(Wait(0.1), Say("Hi."))]
    context = said()
    context.add_message(LLMSpecificMessage(llm="another", message={"thought": "…"}))
    await asked(racing(*llms), context=context)
    for service in llms:
        [given] = service.contexts
        assert given is not context
        assert given.messages == [{"role": "user", "content": "Hello?"}]
    assert len(context.messages) == 2


@pytest.mark.parametrize("said_first", [[], ["We are open."]], ids=["hedge", "rescue"])
async def test_what_is_written_meanwhile_is_not_in_the_turns_requests(
    said_first: list[str],
) -> None:
    """The caller's next words, another node's messages and tools, a tool's late result."""
    first = scripted(*map(Say, said_first), Wait(1.0), Error())
    second, context = scripted(Say("Till nine.")), Tool().offered()
    before = dict(context.messages[0]), context.tools, context.tool_choice  # pyright: ignore[reportArgumentType, reportCallIssue]
    async with Line(racing(first, second, policy=HedgePolicy.after(0.8))) as line:
        await line.send(LLMContextFrame(context))
        await asyncio.sleep(0.5)
        context.messages[0]["content"] = "changed"  # pyright: ignore[reportIndexIssue]
        context.add_message({"role": "user", "content": "And on Sunday?"})
        context.set_tools([])
        context.set_tool_choice("none")
        await line.report()
    [given] = second.contexts
    assert (given.messages[0], given.tools, given.tool_choice) == before
    added = [message["content"] for message in given.messages[1:]]  # pyright: ignore[reportIndexIssue, reportTypedDictNotRequiredAccess]
    assert added == [*said_first, *([CONTINUE] if said_first else [])]
