"""SLOs, and which of them a turn keeps."""

from __future__ import annotations

from typing import Any

import pytest

from pipecat_hedge import AttemptReport, Slo, TurnReport
from pipecat_hedge.policy.slo_outcome import classify

ATTEMPT = AttemptReport("a", None, 0.0, "primary", 0.3, 2.0, "won", None, 10, 10, False, None)
NEVER: dict[str, Any] = {"ttft_secs": None, "ttfs_secs": None, "winner": None}
FAILED: dict[str, Any] = {"outcome": "failed"}
CUT: dict[str, Any] = {"outcome": "interrupted"}
TOOLS: dict[str, Any] = {"outcome": "answered_with_tools"}
KEPT, MISSED = {"ttft": True, "ttfs": True}, {"ttft": False, "ttfs": False}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        pytest.param({"ttft_secs": 0.8, "ttfs_secs": 1.2}, KEPT, id="just in time"),
        pytest.param({"ttfs_secs": 1.3}, {"ttft": True, "ttfs": False}, id="late sentence"),
        pytest.param({"ttft_secs": 0.9}, {"ttft": False, "ttfs": True}, id="late token"),
        pytest.param(FAILED | NEVER, MISSED, id="all failed"),
        pytest.param(
            FAILED | NEVER | {"degraded_reason": "no room", "attempts": ()},
            MISSED,
            id="rejected at once",
        ),
        pytest.param(FAILED | {"degraded_reason": "a broke off"}, MISSED, id="a part of an answer"),
        pytest.param(
            FAILED | NEVER | {"attempts": (), "duration_secs": 0.2},
            {},
            id="interrupted while waiting for room",
        ),
        pytest.param(CUT | NEVER | {"duration_secs": 0.7}, {}, id="interrupted in time"),
        pytest.param(
            CUT | NEVER | {"duration_secs": 1.0}, {"ttft": False}, id="interrupted between"
        ),
        pytest.param(CUT | NEVER | {"duration_secs": 3.0}, MISSED, id="interrupted too late"),
        pytest.param(
            CUT | {"duration_secs": 0.9, "ttfs_secs": None},
            {"ttft": True},
            id="interrupted after the token",
        ),
        pytest.param(TOOLS | {"ttfs_secs": None}, {"ttft": True}, id="only tools were called"),
        pytest.param(TOOLS, KEPT, id="text and tools"),
    ],
)
def test_turn_keeps_or_misses_each_objective(fields: dict[str, Any], kept: dict[str, bool]) -> None:
    usual = {"ttft_secs": 0.3, "ttfs_secs": 0.6, "duration_secs": 2.0, "attempts": (ATTEMPT,)}
    turn = TurnReport(**{"turn": 1, "winner": "a", "outcome": "answered", **usual, **fields})
    assert classify(Slo(), turn) == kept
    no_ttft = {name: value for name, value in kept.items() if name != "ttft"}
    assert classify(Slo(ttft_secs=None), turn) == no_ttft
