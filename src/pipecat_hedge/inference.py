"""A one-shot inference outside the pipeline, raced like a turn."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.admission import Admission
from pipecat_hedge.errors import SHED, AttemptError
from pipecat_hedge.facts import BreakOff, Commit, Continue, Launch
from pipecat_hedge.learning import Learning
from pipecat_hedge.members import LineUp, hedge_refusals, seats, take_least_busy
from pipecat_hedge.permits import Shed
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import Race
from pipecat_hedge.policies.verdict import judge
from pipecat_hedge.provider_client import exception_error, telling_rate_limits_to
from pipecat_hedge.provider_stats import ProviderStats
from pipecat_hedge.racing import Post, Racing
from pipecat_hedge.tally import Tally
from pipecat_hedge.task_scope import TaskScope
from pipecat_hedge.work import working_as

__all__ = ["race_inference"]


async def race_inference(
    line_up: LineUp,
    policy: HedgePolicy,
    stats: ProviderStats,
    admission: Admission,
    context: LLMContext,
    options: Mapping[str, Any],
) -> tuple[str | None, list[tuple[str, AttemptError]], str]:
    """Ask for a whole answer and take the first that is not blank.

    Silence says nothing here, since an answer comes all at once: a provider's ``stall_secs`` do
    not count, its ``timeout_secs`` do.

    Args:
        line_up: Who may be asked.
        policy: When to ask the next.
        stats: What is known of them.
        admission: Leave to ask them.
        context: The conversation.
        options: Further arguments of ``LLMService.run_inference``.

    Returns:
        The answer, or None if nobody gave one; what went wrong with whom; and why nobody was asked,
        where that is so.
    """
    idle = {entry.provider.name: list(entry.contenders) for entry in line_up.entries}
    given = {name: value for name, value in options.items() if value is not None}
    answers: list[str] = []
    asked = False

    async def ask(launch: Launch, post: Post[str]) -> None:
        nonlocal asked
        try:
            permit = await admission.permit(launch.provider, "background")
        except Shed as shed:
            post.failed(AttemptError(SHED, str(shed)))
            return
        admission.expect_no_word(permit)  # its answer comes all at once
        asked = True
        learning.plan.launched(launch)
        tally = Tally()
        answer: str | None = None
        error: AttemptError | None = None
        try:
            service = take_least_busy(idle[launch.provider]).service
            with working_as("background"), telling_rate_limits_to(tally.response_came):
                answer = await service.run_inference(context, **given)
        except Exception as e:
            error = exception_error(e, has_begun=tally.has_begun)
            post.failed(error)
            return
        finally:
            if error is not None and error.retry_after_secs is not None:
                admission.rest(permit, error.retry_after_secs)
            attempt = race.attempts[launch.attempt]
            has_answered = bool(answer and answer.strip())
            admission.give_back(permit, judge(error, has_answered=has_answered, attempt=attempt))
        if answer and has_answered:
            post.piece(answer, usable=True)

    def refusals() -> dict[str, str]:
        first = None if asked else order[0].provider.name
        told = admission.refusals([name for name, free in idle.items() if free], "background")
        return told | hedge_refusals(idle, first)

    async def deliver(answer: str, _: float) -> None:
        answers.append(answer)

    async def released(_: Commit | Continue | BreakOff) -> None:
        pass

    learning = Learning(policy, line_up, context, stats, "first_token", whole_answers=True)
    order = list(learning.line_up)
    try:
        name = await admission.admit(order, "background")
    except Shed as shed:
        return None, [], str(shed)
    if name is None:
        return None, [], admission.reason
    order.sort(key=lambda entry: entry.provider.name != name)
    lineup = [dataclasses.replace(seat, stall_secs=None) for seat in seats(order, policy)]
    tried = admission.tried if len(order) > 1 else None
    race = Race(
        lineup,
        learning.plan.rule,
        attempts=policy.attempts + (tried is not None),
        deadline_secs=policy.deadline_secs,
        tried=tried,
    )
    try:
        async with TaskScope() as scope:
            racing = Racing(race, scope, ask, deliver, released, refusals=refusals)
            await racing.run(asyncio.get_running_loop().time())
    finally:
        learning.learn(race.attempts, follows_probes=False)
    errors = [(a.provider, a.error) for a in race.attempts if a.error is not None]
    return (answers[0] if answers else None), errors, ""
