"""What these tests need otherwise than the others."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _keeps_up() -> None:
    """The event loop is watched here, as it is for users: being late is part of the comparison."""
