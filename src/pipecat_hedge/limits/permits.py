"""Waiting for room on asyncio: bounded, in order, and without losing a permit.

A request gets a permit or a reason before its deadline. If it is cancelled while a permit is on its
way, the permit is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.permit_queue import Ticket
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.race.errors import HedgeError

__all__ = ["LoopLag", "Rejected", "permit_for"]

MOMENT_SECS = 1e-3
"""What is left of a wait that is over: a shorter sleep need not move a loop's clock at all."""
LOOK_AGAIN_SECS = 0.1
"""How often a request that waits looks for what time alone sets free."""

LoopLag = Callable[[], str | None]
"""Says why the event loop is too far behind for hedges; None if it is not."""


class Rejected(HedgeError):
    """A request that is not sent; the message says why."""


async def permit_for(health: AdmissionController, ticket: Ticket, loop_lag: LoopLag) -> Permit:
    """Get a permit to send a request, at once if there is room.

    Only a hedge, a prompt sent ahead, or a request of a session with ``admission="shed"`` is ever
    rejected. Any other is sent at its deadline, room or none.

    Args:
        health: The process's registry.
        ticket: The request, with its deadline on the loop's clock.
        loop_lag: Whether the event loop is too far behind for hedges.

    Raises:
        Rejected: If the request is not to be sent.
    """
    loop = asyncio.get_running_loop()
    now = ticket.joined_at
    if ticket.is_optional and (reason := loop_lag()) is not None:
        raise Rejected(reason)
    if (permit := health.take(ticket, now)) is not None:
        return permit
    if ticket.is_optional:
        raise Rejected(health.why(ticket, now))
    came = asyncio.Event()
    given: list[Permit] = []

    def grant(permit: Permit) -> None:
        given.append(permit)
        with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
            loop.call_soon_threadsafe(came.set)

    if (reason := health.wait(ticket, grant, now)) is not None:
        raise Rejected(f"{reason}: {health.why(ticket, now)}")
    taken: Permit | None = None
    try:
        while not given:
            left = ticket.deadline - loop.time()
            if left < MOMENT_SECS:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), min(left, LOOK_AGAIN_SECS))
            if given:
                break
            reason = health.look_again(ticket, loop.time())
            if reason is not None and not given:
                raise Rejected(f"{reason}: {health.why(ticket, loop.time())}")
        health.leave(ticket)
        if given:
            taken = given[0]
        elif ticket.sheds:
            waited = ticket.deadline - ticket.joined_at
            raise Rejected(f"no room within {waited:g} s: {health.why(ticket, loop.time())}")
        else:
            taken = health.force(ticket, loop.time())
        return taken
    finally:
        health.leave(ticket)
        for permit in given:
            if permit is not taken:
                health.give_back(permit, "dropped", loop.time())
