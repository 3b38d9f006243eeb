"""What the caller hears of the audio that was released. Pure: seconds in, seconds out."""

from __future__ import annotations


class Playout:
    """Audio is played from its release on, one piece after the other.

    Attributes:
        dry_at: When everything released has been played.
    """

    def __init__(self) -> None:
        self.dry_at = float("-inf")

    def next_at(self, now: float) -> float:
        """When a piece that is released now is played."""
        return max(now, self.dry_at)

    def release(self, secs: float, now: float) -> None:
        """A piece of so many seconds is released."""
        self.dry_at = self.next_at(now) + secs

    def stop(self, now: float) -> None:
        """What has not been played is dropped: the caller has interrupted."""
        self.dry_at = min(self.dry_at, now)
