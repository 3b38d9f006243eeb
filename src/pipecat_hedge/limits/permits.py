"""Waits for a permit on asyncio: for a bounded time, in order, and without losing a permit.

A permit that is granted while its request is cancelled is released again.
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

MIN_SLEEP_SECS = 1e-3
"""A shorter sleep may not advance a loop's clock at all."""
RECHECK_SECS = 0.1
"""How often a waiting request checks for permits that become free with time."""

LoopLag = Callable[[], str | None]
"""Returns why the event loop is too far behind for hedges; None if it is not."""


class Rejected(HedgeError):
    """A request that is not sent; the message says why."""


async def permit_for(health: AdmissionController, ticket: Ticket, loop_lag: LoopLag) -> Permit:
    """Acquire a permit to send a request, at once if there is room.

    Only hedges, warm-up prompts, and requests of a session with ``admission="shed"`` are rejected.
    Any other request is sent at its deadline at the latest.

    Args:
        health: The process's registry.
        ticket: The request, with its deadline in the loop's time.
        loop_lag: Returns why the event loop is too far behind for hedges.

    Raises:
        Rejected: If the request may not be sent.
    """
    loop = asyncio.get_running_loop()
    now = ticket.joined_at
    if ticket.is_optional and (reason := loop_lag()) is not None:
        raise Rejected(reason)
    if (permit := health.acquire(ticket, now)) is not None:
        return permit
    if ticket.is_optional:
        raise Rejected(health.rejection_reason(ticket, now))
    has_permit = asyncio.Event()
    granted: list[Permit] = []

    def grant(permit: Permit) -> None:
        granted.append(permit)
        with suppress(RuntimeError):  # the loop is closed, so nothing waits there
            loop.call_soon_threadsafe(has_permit.set)

    def give_back(taken: Permit | None = None) -> None:
        health.leave(ticket)
        for permit in granted:
            if permit is not taken:
                health.release(permit, "dropped", loop.time())

    if (reason := health.wait(ticket, grant, now)) is not None:
        raise Rejected(f"{reason}: {health.rejection_reason(ticket, now)}")
    taken: Permit | None = None
    hold = health.holds.add(give_back)
    try:
        while not granted:
            left = ticket.deadline - loop.time()
            if left < MIN_SLEEP_SECS:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(has_permit.wait(), min(left, RECHECK_SECS))
            if granted:
                break
            reason = health.recheck(ticket, loop.time())
            if reason is not None and not granted:
                raise Rejected(f"{reason}: {health.rejection_reason(ticket, loop.time())}")
        health.leave(ticket)
        if granted:
            taken = granted[0]
        elif ticket.sheds:
            waited = ticket.deadline - ticket.joined_at
            raise Rejected(
                f"no room within {waited:g} s: {health.rejection_reason(ticket, loop.time())}"
            )
        else:
            taken = health.force(ticket, loop.time())
        return taken
    finally:
        if health.holds.drop(hold):
            give_back(taken)
