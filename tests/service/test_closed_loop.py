"""An event loop that is closed in mid-turn leaves nothing counted in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTHING = {"sessions": 0}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.service.closed_loop"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_request_and_no_session_is_counted(found: dict[str, Any]) -> None:
    assert found["mid_turn"] == {"in flight": [0, 0], "is running": False, **NOTHING}


def test_no_drained_loser_is_counted(found: dict[str, Any]) -> None:
    assert found["drained_loser"] == {"in flight": [0, 0], **NOTHING}


def test_nothing_is_counted_of_a_service_that_is_garbage(found: dict[str, Any]) -> None:
    assert found["garbage"] == {"in flight": [0, 0], **NOTHING}


def test_next_caller_gets_the_room(found: dict[str, Any]) -> None:
    assert found["room"] == {"then": "Yes.", "in flight": [0], **NOTHING}


def test_half_open_provider_may_be_tried_again(found: dict[str, Any]) -> None:
    assert found["half_open"] == {"in flight": [0, 0], "asked": 2, "may recover": True, **NOTHING}
