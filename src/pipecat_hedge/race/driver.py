"""Runs a race on asyncio.

One task owns one request from open to close and only posts events to one inbox. The race decides
in the order of the posts: ``asyncio.wait`` returns a set, which has no order. An attempt's task
handles its own posts if none is older, so that a token needs no pass of the event loop, which may
take a tenth of a second on a busy machine.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeAlias, TypeVar

from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import (
    AttemptEvent,
    AttemptFailed,
    AttemptFinished,
    Cancel,
    CancelCause,
    Command,
    Commit,
    Continue,
    Event,
    Fail,
    HedgeEligibilityChanged,
    Interrupted,
    Launch,
    Progressed,
    SentenceReady,
    StreamBroken,
    TimerFired,
    ToolsCalled,
    TurnConfirmed,
    TurnStarted,
    UsableToken,
)
from pipecat_hedge.race.race import Phase, Race
from pipecat_hedge.race.task_scope import TaskScope

_MAY_LAUNCH = (TurnStarted, TurnConfirmed, TimerFired, AttemptFailed, AttemptFinished)
"""Events after which the race may launch an attempt. The hedge eligibility is updated before
them."""

_LATE_SECS = 0.02
"""A timer that fires this late means that the loop was blocked; an idle loop is 0.002 s late."""
_MAX_RECHECK_SECS = 0.5
"""The longest time for which a late loop then waits."""

NO_ATTEMPT = -1
ALL_ELIGIBLE = HedgeEligibilityChanged({})

T = TypeVar("T")


class AttemptSink(Generic[T]):
    """Posts one attempt's events.

    An awaited post has been handled on return, unless the race is busy with another one.
    """

    __slots__ = ("_adds", "_attempt", "_driver", "_is_speakable", "_token")

    def __init__(self, driver: RaceDriver[T], attempt: int):
        """Create the sink of an attempt."""
        self._driver = driver
        self._attempt = attempt
        self._token = UsableToken(attempt)
        self._adds: Callable[[T], bool] | None = None
        self._is_speakable = False

    def await_rest(self, adds: Callable[[T], bool] | None) -> None:
        """Take nothing as usable until a piece adds to the answer that this attempt continues.

        Args:
            adds: Called with each piece; returns whether it adds something. None takes every one.
        """
        self._adds = adds

    @property
    def awaits_rest(self) -> bool:
        """Whether nothing has been added to the answer that this attempt continues."""
        return self._adds is not None

    async def piece(self, piece: T, *, usable: bool) -> None:
        """Report a piece of the answer.

        Args:
            piece: What to deliver if this attempt is committed.
            usable: Whether it is a usable token; see ``race/usable.py``.
        """
        if self._adds is not None:
            usable = self._adds(piece) and usable
            self._adds = None if usable else self._adds
        await self._driver.handle(self._attempt, piece, self._token if usable else None)
        if usable and self._is_speakable:
            await self.speakable()

    async def tools(self, piece: T) -> None:
        """Report that the answer's tool calls are complete."""
        await self._driver.handle(self._attempt, piece, ToolsCalled(self._attempt))

    async def speakable(self) -> None:
        """Report that the answer so far contains a unit that can be spoken."""
        self._is_speakable = self.awaits_rest
        if not self._is_speakable:
            await self._driver.handle(self._attempt, None, SentenceReady(self._attempt))

    def failed(self, error: AttemptError) -> None:
        """Report that the attempt failed. Later events are ignored."""
        self._driver.post(self._attempt, None, AttemptFailed(self._attempt, error))

    def finished(self) -> None:
        """Report that the answer ended normally."""
        self._driver.post(self._attempt, None, AttemptFinished(self._attempt))


class RaceHost(Protocol[T]):
    """The owner of a driver. Subclass it: the last four methods have defaults."""

    async def run_attempt(self, launch: Launch, sink: AttemptSink[T]) -> None:
        """Send a request and report its events; returning ends the answer.

        One call is one request, from open to close. The request must be closed on cancellation. An
        exception counts as a failure.
        """
        ...

    async def deliver(self, piece: T, at: float) -> None:
        """Deliver a piece of the committed answer.

        Args:
            piece: The next piece, in the order of the stream.
            at: When it came, in the loop's time.
        """
        ...

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """Prepare for the first piece of a committed attempt, or for the end of a broken answer."""

    def runs_on(self, number: int) -> bool:
        """Whether a superseded attempt finishes, if there are ``drains``."""
        return True

    def eligibility(self) -> HedgeEligibilityChanged:
        """Which providers can take requests and hedges; called before a launch."""
        return ALL_ELIGIBLE

    def progress(self, number: int) -> Progressed | None:
        """An attempt's undelivered progress; called before a stall is declared."""
        return None


Post: TypeAlias = tuple[float, int, T | None, AttemptEvent | TurnConfirmed | None]
"""When it was posted, the attempt, a piece of its answer, and an event."""


class _Inbox(Generic[T]):
    """Posted events, oldest first.

    A blocked loop fires its timer late, before it reads what has arrived, and would mistake its own
    delay for a provider's silence. So ``get`` waits once more, for as long as the timer was late.

    Attributes:
        posts: The events.
        is_busy: Whether a post is being handled; until it has been, ``get`` waits.
        is_due: Whether ``get`` returns at once.
    """

    __slots__ = (
        *("_alarm", "_armed_for", "_loop", "_recheck", "_waiter"),
        *("is_busy", "is_due", "posts"),
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.posts: deque[Post[T]] = deque()
        self.is_busy = self.is_due = False
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._recheck = (-math.inf, -math.inf)  # the time in question, and when to check it again

    async def get(self, wake_at: Callable[[], float | None]) -> Post[T] | None:
        """Return the oldest post.

        Args:
            wake_at: Returns the time from which on None is returned without a post, or None.
        """
        while self.is_busy or not self.posts:
            if not self.is_busy:
                if self.is_due:
                    return None
                until = wake_at()
                due = until if until is None else self._due(until)
                if due is not None and self._loop.time() >= due:
                    return None
                self._arm(due)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.posts.popleft()

    def wake(self) -> None:
        """Have ``get`` check again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wake_by(self, until: float | None) -> None:
        """Have ``get`` check again if its timer fires later than that."""
        if until is not None and (self._armed_for is None or until < self._armed_for):
            self.wake()

    def close(self) -> None:
        """Cancel the timer."""
        self._arm(None)

    def _due(self, until: float) -> float:
        """When to conclude that no event came by ``until``."""
        late = self._loop.time() - until
        if late >= _LATE_SECS and self._recheck[0] != until:
            self._recheck = (until, self._loop.time() + min(late, _MAX_RECHECK_SECS))
        return self._recheck[1] if self._recheck[0] == until else until

    def _arm(self, until: float | None) -> None:
        """Set the timer, unless it is set for that time already."""
        if until == self._armed_for:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._armed_for = until
        self._alarm = None if until is None else self._loop.call_at(until, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = self._armed_for = None
        self.wake()


class RaceDriver(Generic[T]):
    """Runs one race: executes its commands and delivers the committed answer.

    Example::

        async with TaskScope() as scope:
            await RaceDriver(race, scope, host).run(loop.time())
            ...  # the answer is complete; losers may still be closing
        # every request is closed

    Attributes:
        failure_command: The command with which the race failed, or None.
    """

    def __init__(
        self,
        race: Race,
        scope: TaskScope,
        host: RaceHost[T],
        drains: TaskScope | None = None,
    ):
        """Create a driver.

        Args:
            race: A race that has not started.
            scope: Owns the attempts' tasks; leaving it closes open requests.
            host: Sends requests, and takes the answer.
            drains: Takes over superseded attempts and lets them finish; None closes them.
        """
        self._race = race
        self._scope = scope
        self._host = host
        self._drains = drains
        self._eligibility = ALL_ELIGIBLE
        self._loop = asyncio.get_running_loop()
        self._inbox: _Inbox[T] = _Inbox()
        self._left: tuple[Command, ...] = ()
        self._error: Exception | None = None
        self._held: dict[int, list[tuple[T, float]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._committed: int | None = None
        self.failure_command: Fail | None = None

    async def run(self, started_at: float) -> None:
        """Run the race to its end.

        Args:
            started_at: When the turn started, in the loop's time.

        Raises:
            asyncio.CancelledError: If the turn was cancelled. The race has then handled
                ``Interrupted``, as after any other exception.
        """
        loop, race, inbox = self._loop, self._race, self._inbox
        try:
            inbox.is_busy = True
            await self._execute(self._handle(TurnStarted(), started_at))
            inbox.is_busy = False
            while not self._is_over:
                post = await inbox.get(lambda: race.wake_at)
                inbox.is_busy = True
                if self._error is not None:
                    raise self._error
                await self._execute(self._left)
                self._left, inbox.is_due = (), False
                if post is not None:
                    await self._execute(await self._take(post))
                elif race.wake_at is not None and loop.time() >= race.wake_at:
                    await self._execute(self._handle(TimerFired(), loop.time()))
                inbox.is_busy = False
        except BaseException:
            if not self._is_over:
                race.handle(Interrupted(), loop.time())
            raise
        finally:
            inbox.close()

    def post(
        self, attempt: int, piece: T | None, event: AttemptEvent | TurnConfirmed | None
    ) -> None:
        """Post what happened to an attempt, for ``run`` to handle."""
        self._inbox.posts.append((self._loop.time(), attempt, piece, event))
        self._inbox.wake()

    async def handle(self, attempt: int, piece: T | None, event: AttemptEvent | None) -> None:
        """Post what happened to an attempt, from its task; handle it here if nothing is older.

        What would start or close this or another task of the turn is left to ``run``: a new task
        would inherit the attempt's context variables.
        """
        inbox, race = self._inbox, self._race
        if inbox.is_busy or inbox.is_due or inbox.posts:
            self.post(attempt, piece, event)
            return
        if self._is_over:
            return
        inbox.is_busy = True
        try:
            commands = await self._take((self._loop.time(), attempt, piece, event))
            if all(_is_allowed_to(attempt, command) for command in commands):
                await self._execute(commands)
            else:
                self._left = commands
            if attempt == self._committed:  # nothing was read of it while the pipeline took this
                race.token(attempt, self._loop.time())
        except Exception as e:  # the turn's, not the provider's
            self._error = e
        finally:
            inbox.is_busy = False
            inbox.is_due = bool(self._left or self._error) or self._is_over
            if inbox.posts or inbox.is_due:
                inbox.wake()
            else:
                inbox.wake_by(race.wake_at)

    async def _take(self, post: Post[T]) -> tuple[Command, ...]:
        """Deliver a post's piece, or keep it, and return what the race decides."""
        at, attempt, piece, event = post
        if piece is not None:
            if attempt == self._committed:
                await self._host.deliver(piece, at)
                if type(event) is UsableToken and self._race.phase is Phase.COMMITTED:
                    self._race.token(attempt, at)
                    return ()
            elif attempt in self._held:
                self._held[attempt].append((piece, at))
        return () if event is None else self._handle(event, at)

    @property
    def _is_over(self) -> bool:
        return self._race.phase is Phase.OVER

    def _handle(self, event: Event, now: float) -> tuple[Command, ...]:
        race = self._race
        if race.wake_at is not None and now >= race.wake_at:
            for attempt in race.attempts:
                if attempt.outcome is None and (progressed := self._host.progress(attempt.number)):
                    race.handle(progressed, now)
        if self._may_launch(event) and (found := self._host.eligibility()) != self._eligibility:
            self._eligibility = found
            self._race.handle(found, now)
        return self._race.handle(event, now)

    def _may_launch(self, event: Event) -> bool:
        is_whole = isinstance(event, AttemptFinished) and event.attempt == self._committed
        return isinstance(event, _MAY_LAUNCH) and not is_whole

    async def _execute(self, commands: tuple[Command, ...]) -> None:
        # Cancel first: a loser costs money while it runs, and delivering awaits.
        cancelled = {command.attempt for command in commands if isinstance(command, Cancel)}
        for command in commands:
            if isinstance(command, Cancel) and command.attempt in self._tasks:
                self._held.pop(command.attempt, None)
                self._close(command.attempt, command.cause)
        for command in commands:
            if isinstance(command, Launch) and command.attempt in cancelled:
                continue  # its deadline had passed when the race began
            if isinstance(command, Launch):
                self._held[command.attempt] = []
                work = self._run(command, AttemptSink(self, command.attempt))
                name = f"attempt {command.attempt}: {command.provider}"
                self._tasks[command.attempt] = self._scope.start(work, name=name)
            elif isinstance(command, StreamBroken):
                self._committed = None
                await self._host.released(command)
            elif isinstance(command, (Commit, Continue)):
                self._committed = command.attempt
                await self._host.released(command)
                for piece, at in self._held.pop(command.attempt):
                    await self._host.deliver(piece, at)
            elif isinstance(command, Fail):
                self.failure_command = command

    def confirm(self) -> None:
        """Report that the caller's turn has ended, which was only expected so far."""
        self.post(NO_ATTEMPT, None, TurnConfirmed())

    def stop(self, attempt: int) -> None:
        """Close a superseded attempt that still runs."""
        if attempt in self._tasks:
            self._scope.cancel(self._tasks[attempt])

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self._tasks

    async def wait_for(self, attempts: Collection[int]) -> None:
        """Wait until the requests of some attempts are closed."""
        if tasks := [self._tasks[attempt] for attempt in attempts if attempt in self._tasks]:
            await asyncio.wait(tasks)

    def _close(self, attempt: int, cause: CancelCause) -> None:
        task = self._tasks[attempt]
        if self._drains is not None and cause == "superseded" and self._host.runs_on(attempt):
            self._scope.release(task)
            self._drains.adopt(task)
        else:
            self._scope.cancel(task)

    async def _run(self, launch: Launch, sink: AttemptSink[T]) -> None:
        try:
            await self._host.run_attempt(launch, sink)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # The task was not cancelled: the provider's client raised this by itself.
            sink.failed(AttemptError("unknown", "the provider's client cancelled its request"))
        except Exception as e:
            # Its traceback refers to the whole turn, which it would keep in memory.
            error = e.with_traceback(None)
            sink.failed(AttemptError("unknown", f"{type(e).__name__}: {e}", exception=error))
        else:
            sink.finished()
        finally:
            self._tasks.pop(launch.attempt, None)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _is_allowed_to(attempt: int, command: Command) -> bool:
    """Whether an attempt's task may execute a command."""
    return isinstance(command, (Commit, Continue)) or (
        isinstance(command, Cancel) and command.attempt != attempt
    )
