"""From a behaviour and a prompt to what is sent when. Pure: chance comes as a `random.Random`."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pipecat_hedge.tools.simulator.behaviour import Behaviour
from pipecat_hedge.tools.simulator.faults import Fault
from pipecat_hedge.tools.simulator.prompt import Prompt
from pipecat_hedge.tools.simulator.script import (
    default_arguments,
    has_tool_result,
    reply_to,
    spoken,
    tool_call,
)
from pipecat_hedge.tools.simulator.timeline import Reply, Scene, Step, healthy
from pipecat_hedge.tools.simulator.wire import RateLimit

# Assumed: a provider's headers come halfway to its first token.
_HEADERS_SHARE = 0.5
_RETRY_AFTER_SECS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request will be served.

    Parameters:
        fault: The fault that this request gets, if any.
        steps: What is sent when; may be endless.
        retry_after_secs: For the ``retry-after`` header of a refusal; None sends none.
        rate_limit: What the response's headers tell of a rate limit; None tells nothing.
    """

    fault: Fault | None
    steps: Iterator[Step]
    retry_after_secs: float | None
    rate_limit: RateLimit | None


def plan(behaviour: Behaviour, prompt: Prompt, rng: random.Random) -> Plan:
    """Decide how to serve a request.

    Args:
        behaviour: What the model name asks for.
        prompt: What the request asks.
        rng: Gives the same two numbers for every request, fault or not, so that a fault does not
            shift the draws.
    """
    drawn_secs = behaviour.profile.sample(rng)
    is_struck = rng.random() < behaviour.rate
    fault = behaviour.fault if is_struck else None
    ttft_secs = behaviour.ttft if behaviour.ttft is not None else drawn_secs
    headers_secs = behaviour.headers
    if headers_secs is None:
        headers_secs = ttft_secs * _HEADERS_SHARE
    delay_secs = behaviour.delay
    if delay_secs is None:
        delay_secs = fault.delay_secs if fault else 0.0
    scene = Scene(
        reply=_reply(behaviour, prompt, fault),
        ttft_secs=ttft_secs,
        headers_secs=min(headers_secs, ttft_secs),
        interval_secs=1 / (behaviour.tps or behaviour.profile.tokens_per_sec),
        after_tokens=behaviour.after,
        delay_secs=delay_secs,
    )
    retry_after_secs = behaviour.retry_after
    if retry_after_secs is None and fault is not None and fault.name == "429":
        retry_after_secs = _RETRY_AFTER_SECS
    steps = fault.shape(scene) if fault else healthy(scene)
    if behaviour.slow != 1:
        steps = (Step(step.at_secs * behaviour.slow, step.act) for step in steps)
    return Plan(fault, steps, retry_after_secs, _rate_limit(behaviour))


def _rate_limit(behaviour: Behaviour) -> RateLimit | None:
    if behaviour.requests_left is None and behaviour.tokens_left is None:
        return None
    return RateLimit(behaviour.requests_left, behaviour.tokens_left, behaviour.reset)


def _reply(behaviour: Behaviour, prompt: Prompt, fault: Fault | None) -> Reply:
    if behaviour.tool is not None and not has_tool_result(prompt):
        return Reply(tool=tool_call(behaviour.tool, behaviour.args or {}))
    scripted = reply_to(prompt)
    if fault is not None and fault.wants_tool:
        name = prompt.tools[0] if prompt.tools else "book_table"
        return Reply(tool=scripted.tool or tool_call(name, default_arguments(prompt)))
    if behaviour.answer is not None:
        return spoken(behaviour.answer, prompt.max_tokens)
    return scripted
