"""The names that become labels, of which there are never more than so many.

Law: a name is the user's configuration, never a caller's; and a process that invents names all the
same fills one more series, not the memory of its Prometheus.
"""

from __future__ import annotations

__all__ = ["NONE", "OTHER", "Names"]

NONE = "none"
"""Where there is none: an empty label is no label to Prometheus."""
OTHER = "other"
"""Whoever came when there was no room left."""
LONGEST = 120
"""Characters of a label."""


class Names:
    """Lets the first so many names through.

    Example::

        names = Names(most=2)
        [names.of(name) for name in ("a", "b", "c", "a", None)]  # ["a", "b", "other", "a", "none"]
    """

    def __init__(self, most: int):
        """Begin with none.

        Args:
            most: How many different ones there may be.
        """
        self._most = most
        self._known: dict[str | None, str] = {None: NONE, "": NONE}
        self._taken = 0

    def of(self, name: str | None) -> str:
        """What a name is called as a label.

        Args:
            name: The name; None for nobody.
        """
        label = self._known.get(name)
        if label is None:
            if self._taken >= self._most:
                return OTHER
            assert name is not None
            self._taken += 1
            label = self._known[name] = name[:LONGEST]
        return label
