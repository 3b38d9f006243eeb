"""A Pipecat that is newer than the tested one is warned of."""

from __future__ import annotations

import importlib

import pipecat
import pytest
from loguru import logger

from pipecat_hedge.service import pipecat_private


@pytest.mark.parametrize(
    ("version", "warns"),
    [("1.13.9", 0), ("1.14.0", 0), ("1.14.7", 0), ("1.15.0.dev1", 1), ("2.0rc1", 1)],
)
def test_a_newer_minor_version_is_warned_of_at_import(
    version: str, warns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipecat, "__version__", version)
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{level} {message}")
    try:
        importlib.reload(pipecat_private)
    finally:
        logger.remove(sink)
    assert len(lines) == warns
    assert all(line.startswith(f"WARNING Pipecat {version} is newer") for line in lines)
