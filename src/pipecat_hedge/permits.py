"""Waiting for a permit on asyncio: bounded, in order, and without losing one.

Law: whoever waits gets a permit or a reason before the deadline; who is cancelled while a permit is
on its way gives it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from pipecat_hedge.ending import DROPPED
from pipecat_hedge.errors import HedgeError
from pipecat_hedge.health import Health
from pipecat_hedge.policies.permit_queue import Ticket
from pipecat_hedge.provider_health import Permit
from pipecat_hedge.work import Tier, WorkClass

__all__ = ["Shed", "Sheds", "permit_for"]

MOMENT_SECS = 1e-3
"""What is left of a wait that is over: a shorter sleep need not move a loop's clock at all."""
LOOK_AGAIN_SECS = 0.1
"""How often who waits looks for what time alone sets free."""

Sheds = Callable[[WorkClass, Tier], str | None]
"""Says why the process is too busy for a class of work of a tier; None if it is not."""


class Shed(HedgeError):
    """A request that is not made, because there is no room for it; the message says why."""


async def permit_for(
    health: Health,
    candidates: Sequence[str],
    work: WorkClass,
    tier: Tier,
    wait_secs: float,
    *,
    sheds: Sheds,
    probe: str | None = None,
) -> Permit:
    """Get leave to send a request, at once if there is room.

    Args:
        health: The process's registry.
        candidates: The keys of the providers that would do, the preferred first.
        work: What the request is for.
        tier: Whose it is.
        wait_secs: How long it may wait; 0 does not.
        sheds: Whether the process itself is too busy.
        probe: For which candidate the probe has been claimed; or None.

    Raises:
        Shed: If there will be no room in time.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    if (reason := sheds(work, tier)) is not None:
        raise Shed(reason)
    ticket = Ticket(work, tier, now + wait_secs, tuple(candidates), now)
    if (permit := health.take(ticket, now, probe=probe)) is not None:
        return permit
    if wait_secs <= 0 or probe is not None:
        raise Shed(health.why(ticket, now))
    came = asyncio.Event()
    given: list[Permit | None] = []

    def grant(permit: Permit | None) -> None:
        given.append(permit)
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(came.set)

    if (reason := health.wait(ticket, grant, now)) is not None:
        raise Shed(f"no permit: {reason}; {health.why(ticket, now)}")
    taken: Permit | None = None
    try:
        while not given:
            left = ticket.deadline - loop.time()
            if left < MOMENT_SECS:
                raise Shed(f"no permit within {wait_secs:g} s: {health.why(ticket, loop.time())}")
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), min(left, LOOK_AGAIN_SECS))
            if given:
                break
            reason = health.look_again(ticket, loop.time())
            if reason is not None and not given:
                raise Shed(f"no permit: {reason}")
        taken = given[0]
        if taken is None:
            raise Shed("no permit: more urgent requests have taken the queue's last places")
        return taken
    finally:
        health.leave(ticket)
        for permit in given:
            if permit is not None and permit is not taken:
                health.give_back(permit, DROPPED, loop.time())
