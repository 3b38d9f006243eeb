"""A Pipecat or an SDK that is newer than the tested one is warned of."""

from __future__ import annotations

import importlib
from importlib import metadata

import pipecat
import pytest
from loguru import logger

from pipecat_hedge.service import pipecat_private


def warned_of_at_import() -> list[str]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{level} {message}")
    try:
        importlib.reload(pipecat_private)
    finally:
        logger.remove(sink)
    return lines


@pytest.mark.parametrize(
    ("version", "warns"),
    [("1.13.9", 0), ("1.14.0", 0), ("1.14.7", 0), ("1.15.0.dev1", 1), ("2.0rc1", 1)],
)
def test_a_newer_minor_version_is_warned_of(
    version: str, warns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipecat, "__version__", version)
    lines = warned_of_at_import()
    assert len(lines) == warns
    assert all(line.startswith(f"WARNING Pipecat {version} is newer") for line in lines)


def test_a_newer_major_version_of_an_sdk_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an extra, and may not be installed."""
    versions = {"openai": "4.0.0", "anthropic": "1.99.0"}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)
    [line] = warned_of_at_import()
    assert line.startswith("WARNING openai 4.0.0 is newer than 3, with which")
