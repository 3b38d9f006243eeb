"""What a server's own load metrics mean for a race."""

from __future__ import annotations

import pytest

from pipecat_hedge.providers.server_queue import is_last_resort, load_rank, why_ineligible
from pipecat_hedge.race import ServerLoad


@pytest.mark.parametrize(
    ("load", "reason", "last"),
    [
        (None, None, False),
        (ServerLoad(True, running=60), None, False),
        (ServerLoad(True, running=60, waiting=3), "has a queue of 3", False),
        (ServerLoad(True, running=2, waiting=3), "has a queue of 3", True),
        (ServerLoad(False), "is down", True),
        (ServerLoad(False, detail="no such host"), "is down (no such host)", True),
    ],
)
def test_busy_server_gets_no_hedge(load: ServerLoad | None, reason: str | None, last: bool) -> None:
    assert why_ineligible(load) == reason
    assert is_last_resort(load) is last


def test_shortest_queue_comes_first() -> None:
    loads = [
        ServerLoad(False),
        ServerLoad(True, running=2, waiting=4),
        ServerLoad(True, running=2, waiting=1),
        ServerLoad(True, running=40),
        ServerLoad(True, running=1),
        None,
    ]
    assert sorted(loads, key=load_rank) == loads[::-1]
