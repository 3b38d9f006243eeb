"""A one-shot inference outside the pipeline, raced like a turn."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.limits.priority import working_as
from pipecat_hedge.limits.verdict import classify
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.driver import AttemptSink, RaceDriver
from pipecat_hedge.race.errors import SHED, AttemptError
from pipecat_hedge.race.events import (
    Commit,
    Continue,
    HedgeEligibilityChanged,
    Launch,
    StreamBroken,
)
from pipecat_hedge.race.race import Race
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.attempt_runner import most_wait_secs, refusals
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.provider_client import exception_error, telling_rate_limits_to
from pipecat_hedge.service.provider_pool import Candidates, instances_of, seats, take_least_busy
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.service.turn_learning import Learning

__all__ = ["race_inference"]

WHOLE_ANSWER_SECS = 30.0
"""The silence of a request for a whole answer after which another provider is asked as well."""


async def race_inference(
    line_up: Candidates,
    policy: HedgePolicy,
    stats: ProviderStats,
    admission: Admission,
    context: LLMContext,
    options: Mapping[str, Any],
) -> tuple[list[str | None], list[tuple[str, AttemptError]], str]:
    """Ask for a whole answer and take the first that is not blank, or None if none has a word.

    An answer comes all at once here, so its silence says little: instead of a provider's
    ``stall_secs``, another one is asked as well after ``WHOLE_ANSWER_SECS``.

    Args:
        line_up: Who may be asked.
        policy: When to ask the next.
        stats: What is known of them.
        admission: Leave to ask them.
        context: The conversation.
        options: Further arguments of ``LLMService.run_inference``.

    Returns:
        The answer, in a list that is empty if nobody gave one; what went wrong with whom; and why
        nobody was asked, where that is so.
    """
    idle = {entry.provider.name: list(entry.contenders) for entry in line_up.entries}
    given = {name: value for name, value in options.items() if value is not None}
    everybody_asked: dict[int, ServiceAdapter] = {}
    answers: list[str | None] = []
    asked = False
    sent_at_once: set[int] = set()
    loop = asyncio.get_running_loop()

    async def ask(launch: Launch, post: AttemptSink[str]) -> None:
        nonlocal asked
        try:
            work = "hedge" if launch.reason == "hedge" else "background"
            attempt = race.attempts[launch.attempt]
            most_secs = most_wait_secs(race, attempt, loop.time())
            permit = await admission.permit(launch.provider, work, most_secs)
        except Rejected as rejected:
            post.failed(AttemptError(SHED, str(rejected)))
            return
        asked = True
        if launch.reason == "primary" or not permit.waited_secs:
            sent_at_once.add(launch.attempt)
        learning.plan.launched(launch)
        tally = AttemptStats()
        answer: str | None = None
        error: AttemptError | None = None
        asked_of: ServiceAdapter | None = None
        try:
            if not idle[launch.provider]:  # it is asked again
                failed = [
                    a.number for a in race.attempts if a.provider == launch.provider and a.error
                ]
                idle[launch.provider] = instances_of(everybody_asked, failed)
            asked_of = take_least_busy(idle[launch.provider])
            everybody_asked[launch.attempt] = asked_of
            with (
                asked_of.connection.in_use(tally.stages),
                working_as("background"),
                telling_rate_limits_to(tally.response_came),
            ):
                answer = await asked_of.service.run_inference(context, **given)
        except Exception as e:
            error = exception_error(e, has_begun=tally.has_begun)
            post.failed(error)
            return
        finally:
            if error is not None and error.retry_after_secs is not None:
                admission.rest(permit, error.retry_after_secs)
            has_answered = bool(answer and answer.strip())
            ending = classify(error, has_answered=has_answered, attempt=attempt)
            admission.give_back(permit, ending, host=tally.stages.host, has_begun=has_answered)
            if asked_of is not None and not has_answered:
                asked_of.connection.reopen(tally.stages)
        if answer and has_answered:
            post.piece(answer, usable=True)

    def refused() -> HedgeEligibilityChanged:
        return refusals(admission, idle, None if asked else order[0].provider.name)

    async def deliver(answer: str, _: float) -> None:
        answers.append(answer)

    async def released(_: Commit | Continue | StreamBroken) -> None:
        pass

    learning = Learning(
        policy, line_up, context, stats, "first_token", whole_answers=True, now=loop.time()
    )
    order = list(learning.line_up)
    try:
        name = await admission.admit(order, "background")
    except Rejected as rejected:
        return [], [], str(rejected)
    if name is None:
        return [], [], admission.reason
    order.sort(key=lambda entry: entry.provider.name != name)
    candidates = [
        dataclasses.replace(seat, stall_secs=WHOLE_ANSWER_SECS)
        for seat in seats(order, policy, learning.plan.slowest_secs)
    ]
    tried = admission.tried if len(order) > 1 else None
    race = Race(
        candidates,
        learning.plan.rule,
        max_attempts=policy.max_attempts + (tried is not None),
        deadline_secs=policy.deadline_secs,
        tried=tried,
        jitter=random.random(),
    )
    try:
        async with TaskScope() as scope:
            racing = RaceDriver(race, scope, ask, deliver, released, refusals=refused)
            await racing.run(loop.time())
    finally:
        learning.plan.close()
        learning.learn([a for a in race.attempts if a.number in sent_at_once])
    errors = [(a.provider, a.error) for a in race.attempts if a.error is not None]
    if race.winner is not None and not answers:
        answers.append(None)
    return answers, errors, ""
