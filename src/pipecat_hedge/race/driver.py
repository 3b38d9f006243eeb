"""The race on asyncio.

Law: a task owns one request from open to close and only posts to one inbox; whatever is decided is
decided by the race, in the order in which things were posted.

Taking the winner from the set that ``asyncio.wait`` returns would be simpler and wrong: a set has
no order, and of eight attempts that answer in the same instant the first by iteration is an
arbitrary one. The inbox keeps the order in which things happened, with the time of each.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, Protocol, TypeVar

from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import (
    AttemptEvent,
    AttemptFailed,
    AttemptFinished,
    AttemptOpened,
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
    TurnStarted,
    UsableToken,
)
from pipecat_hedge.race.race import Phase, Race
from pipecat_hedge.race.task_scope import TaskScope

__all__ = ["AttemptSink", "RaceDriver", "RunAttempt"]

_MAY_LAUNCH = (TurnStarted, TimerFired, AttemptFailed, AttemptFinished)
"""The facts upon which a race may want to run_attempt somebody: before them it is told who refuses."""

_LATE_SECS = 0.02
"""How late a loop comes to an alarm if it was held up, in seconds; an idle one is 0.002 late."""
_MAX_RECHECK_SECS = 0.5
"""For how long at most it then waits for what has arrived to be read, in seconds."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class AttemptSink(Protocol[T_contra]):
    """Where an attempt tells what happened to it."""

    def opened(self) -> None:
        """The request is on its way."""
        ...

    def piece(self, piece: T_contra, *, usable: bool) -> None:
        """A piece of the answer came.

        Args:
            piece: What to deliver if this attempt is committed.
            usable: Whether it is a usable token, see ``policies/usable.py``.
        """
        ...

    def tools(self, piece: T_contra) -> None:
        """The answer's tool calls are complete.

        Args:
            piece: What to deliver if this attempt is committed.
        """
        ...

    def speakable(self) -> None:
        """What came so far holds a unit that can be spoken."""
        ...

    def failed(self, error: AttemptError) -> None:
        """The attempt has failed; what follows no longer matters."""
        ...


class RunAttempt(Protocol[T_co]):
    """The seam to a provider: one call is one request, from open to close."""

    async def __call__(self, launch: Launch, sink: AttemptSink[T_co]) -> None:
        """RunAttempt, and post what comes. Returning is the end of the answer.

        Must close the request when cancelled. An exception counts as a failure.

        Args:
            launch: Whom to run_attempt, and why.
            sink: Where to post what happens.
        """
        ...


class _InboxSink(Generic[T]):
    """One attempt's end of the inbox."""

    __slots__ = ("_attempt", "_inbox", "_token")

    def __init__(self, inbox: _Inbox[T], attempt: int):
        self._inbox = inbox
        self._attempt = attempt
        self._token = UsableToken(attempt)

    def opened(self) -> None:
        self._inbox.put(self._attempt, None, AttemptOpened(self._attempt))

    def piece(self, piece: T, *, usable: bool) -> None:
        self._inbox.put(self._attempt, piece, self._token if usable else None)

    def tools(self, piece: T) -> None:
        self._inbox.put(self._attempt, piece, ToolsCalled(self._attempt))

    def speakable(self) -> None:
        self._inbox.put(self._attempt, None, SentenceReady(self._attempt))

    def finished(self) -> None:
        self._inbox.put(self._attempt, None, AttemptFinished(self._attempt))

    def failed(self, error: AttemptError) -> None:
        self._inbox.put(self._attempt, None, AttemptFailed(self._attempt, error))


class _Inbox(Generic[T]):
    """What was posted, oldest first, and a way to wait for more of it until a given time.

    A loop that was held up comes to its alarm late, and before what has arrived in the meantime
    has been read: it would take its own deafness for a provider's silence. So it looks a second
    time, after as long as it was late.
    """

    __slots__ = ("_alarm", "_armed_for", "_loop", "_posts", "_recheck", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._posts: deque[tuple[float, int, T | None, AttemptEvent | None]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._recheck = (-math.inf, -math.inf)  # for which time, and when

    def put(self, attempt: int, piece: T | None, event: AttemptEvent | None) -> None:
        self._posts.append((self._loop.time(), attempt, piece, event))
        self._wake()

    async def get(
        self, until: float | None
    ) -> tuple[float, int, T | None, AttemptEvent | None] | None:
        """The oldest post; None if there is none at the time ``until`` (None is never)."""
        while not self._posts:
            due = until if until is None else self._due(until)
            if due is not None and self._loop.time() >= due:
                return None
            self._arm(due)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._posts.popleft()

    def close(self) -> None:
        """Put the alarm away."""
        self._arm(None)

    def _due(self, until: float) -> float:
        """When nothing having come by ``until`` is believed."""
        late = self._loop.time() - until
        if late >= _LATE_SECS and self._recheck[0] != until:
            self._recheck = (until, self._loop.time() + min(late, _MAX_RECHECK_SECS))
        return self._recheck[1] if self._recheck[0] == until else until

    def _arm(self, until: float | None) -> None:
        """Set the alarm, and leave it as it is while the time stays the same, as it mostly does."""
        if until == self._armed_for:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._armed_for = until
        self._alarm = None if until is None else self._loop.call_at(until, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = self._armed_for = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RaceDriver(Generic[T]):
    """Runs one race: asks when it says so, cancels when it says so, delivers what it commits.

    Example::

        async with TaskScope() as scope:
            await Racing(race, scope, run_attempt, deliver, released).run(loop.time())
            ...  # the answer is complete; losers may still be closing
        # here every request has been closed

    Attributes:
        failure_command: What the race gave up with, or None.
    """

    def __init__(
        self,
        race: Race,
        scope: TaskScope,
        run_attempt: RunAttempt[T],
        deliver: Callable[[T, float], Awaitable[None]],
        released: Callable[[Commit | Continue | StreamBroken], Awaitable[None]],
        *,
        drains: TaskScope | None = None,
        runs_on: Callable[[int], bool] = lambda attempt: True,
        refusals: Callable[[], HedgeEligibilityChanged] = lambda: HedgeEligibilityChanged({}),
        progress: Callable[[int], Progressed | None] = lambda attempt: None,
    ):
        """Put a race and its seams together.

        Args:
            race: The decisions, not yet started.
            scope: Owns the attempts' tasks; leaving it closes what is still open.
            run_attempt: Sends the turn to a provider.
            deliver: Takes each piece of the committed answer, with the loop's time at which it
                came, in the order of the stream.
            released: Told which attempt is delivered from now on, before its first piece is, and
                when a committed answer has broken off.
            drains: Takes over superseded attempts and lets them run on; None closes them.
            runs_on: Which of them run on, where there are ``drains``.
            refusals: Asked, before somebody may be asked, who is to get no hedge now.
            progress: Asked, before an attempt may be taken for silent, whether it is.
        """
        self._race = race
        self._scope = scope
        self._run_attempt = run_attempt
        self._deliver = deliver
        self._released = released
        self._drains = drains
        self._runs_on = runs_on
        self._refusals = refusals
        self._progress = progress
        self._refused = HedgeEligibilityChanged({})
        self._inbox: _Inbox[T] = _Inbox()
        self._held: dict[int, list[tuple[T, float]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._committed: int | None = None
        self.failure_command: Fail | None = None

    async def run(self, started_at: float) -> None:
        """Run the race until it is over.

        Args:
            started_at: When the turn started, in the loop's time.

        Raises:
            asyncio.CancelledError: If the caller was cancelled; the race has been told, as of any
                other exception.
        """
        loop = asyncio.get_running_loop()
        race = self._race
        try:
            await self._execute(self._handle(TurnStarted(), started_at))
            while race.phase is not Phase.OVER:
                post = await self._inbox.get(race.wake_at)
                if post is None:
                    await self._execute(self._handle(TimerFired(), loop.time()))
                    continue
                at, attempt, piece, event = post
                if piece is not None:
                    if attempt == self._committed:
                        await self._deliver(piece, at)
                        if type(event) is UsableToken:
                            race.token(attempt, at)
                            continue
                    elif attempt in self._held:
                        self._held[attempt].append((piece, at))
                if event is not None and (commands := self._handle(event, at)):
                    await self._execute(commands)
        except BaseException:
            if race.phase is not Phase.OVER:
                race.handle(Interrupted(), loop.time())
            raise
        finally:
            self._inbox.close()

    def _handle(self, event: Event, now: float) -> tuple[Command, ...]:
        race = self._race
        if race.wake_at is not None and now >= race.wake_at:
            for attempt in race.attempts:
                if attempt.outcome is None and (progressed := self._progress(attempt.number)):
                    race.handle(progressed, now)
        if self._may_launch(event) and (refused := self._refusals()) != self._refused:
            self._refused = refused
            self._race.handle(refused, now)
        return self._race.handle(event, now)

    def _may_launch(self, event: Event) -> bool:
        is_whole = isinstance(event, AttemptFinished) and event.attempt == self._committed
        return isinstance(event, _MAY_LAUNCH) and not is_whole

    async def _execute(self, commands: tuple[Command, ...]) -> None:
        # Cancellations first: a loser costs money for as long as it runs, and delivering awaits.
        cancelled = {command.attempt for command in commands if isinstance(command, Cancel)}
        for command in commands:
            if isinstance(command, Cancel) and command.attempt in self._tasks:
                self._held.pop(command.attempt, None)
                self._close(command.attempt, command.cause)
        for command in commands:
            if isinstance(command, Launch) and command.attempt in cancelled:
                continue  # as where a deadline has passed when the race begins
            if isinstance(command, Launch):
                self._held[command.attempt] = []
                work = self._run(command, _InboxSink(self._inbox, command.attempt))
                name = f"attempt {command.attempt}: {command.provider}"
                self._tasks[command.attempt] = self._scope.start(work, name=name)
            elif isinstance(command, StreamBroken):
                self._committed = None
                await self._released(command)
            elif isinstance(command, (Commit, Continue)):
                self._committed = command.attempt
                await self._released(command)
                for piece, at in self._held.pop(command.attempt):
                    await self._deliver(piece, at)
            elif isinstance(command, Fail):
                self.failure_command = command

    def stop(self, attempt: int) -> None:
        """Close an attempt that was superseded and let run on."""
        self._tasks[attempt].cancel()

    async def wait_for(self, attempts: Collection[int]) -> None:
        """Wait until the requests of some attempts are closed."""
        if tasks := [self._tasks[attempt] for attempt in attempts]:
            await asyncio.wait(tasks)

    def _close(self, attempt: int, cause: CancelCause) -> None:
        task = self._tasks[attempt]
        if self._drains is not None and cause == "superseded" and self._runs_on(attempt):
            self._scope.release(task)
            self._drains.adopt(task)
        else:
            task.cancel()

    async def _run(self, launch: Launch, sink: _InboxSink[T]) -> None:
        try:
            await self._run_attempt(launch, sink)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: the provider's client did so to itself, which is an error.
            sink.failed(AttemptError("unknown", "the provider's client cancelled its request"))
        except Exception as e:
            sink.failed(AttemptError("unknown", f"{type(e).__name__}: {e}", exception=e))
        else:
            sink.finished()
