"""State shared by all requests of a running simulator: conditions and capacity."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pipecat_hedge.tools.simulator.behaviour import KEYS, BehaviourError, read_keys, unknown_key


def read_conditions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check conditions: a model's keys with text or JSON values, and ``capacity``.

    Returns:
        The fields of a behaviour that they set, and ``capacity`` if given.

    Raises:
        BehaviourError: If a key or a value is unknown; names the known ones.
    """
    if unknown := values.keys() - KEYS.keys() - {"capacity"}:
        raise unknown_key(min(unknown), "capacity")
    fields = read_keys({key: value for key, value in values.items() if key != "capacity"})
    if "capacity" in values:
        try:
            fields["capacity"] = checked_capacity(values["capacity"])
        except ValueError as error:
            raise BehaviourError(str(error)) from None
    return fields


def checked_capacity(capacity: Any) -> int | None:
    """Return the capacity if it is None or a whole number of at least 1.

    Raises:
        ValueError: If it is something else.
    """
    is_count = isinstance(capacity, int) and not isinstance(capacity, bool) and capacity >= 1
    if capacity is not None and not is_count:
        raise ValueError(f"capacity: expected a whole number, 1 or more, or none, got {capacity!r}")
    return capacity


class Capacity:
    """Serves at most ``limit`` requests concurrently; others wait in order of arrival.

    Args:
        limit: The number of concurrent requests; None is no limit.

    Attributes:
        busy: Requests being served.
    """

    def __init__(self, limit: int | None = None):
        self.busy = 0
        self._limit = checked_capacity(limit)
        self._queue: dict[asyncio.Future[None], None] = {}

    @property
    def limit(self) -> int | None:
        """The number of concurrent requests. Lowering it ends none of them."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._limit = checked_capacity(limit)
        self._admit()

    @property
    def waiting(self) -> int:
        """Queued requests."""
        return len(self._queue)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait to be served; leaving the context admits the next request."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[admitted] = None
        self._admit()
        try:
            await admitted
            yield
        finally:
            self._queue.pop(admitted, None)
            if not admitted.cancelled():
                self.busy -= 1
            self._admit()

    def _admit(self) -> None:
        while self._queue and (self._limit is None or self.busy < self._limit):
            admitted = next(iter(self._queue))
            del self._queue[admitted]
            if not admitted.done():  # else the request is being cancelled
                self.busy += 1
                admitted.set_result(None)
