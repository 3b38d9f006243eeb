"""What the package logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loguru import logger


@contextmanager
def logged(level: str = "WARNING") -> Iterator[list[str]]:
    """What the package logs meanwhile from a level on, each line with its level."""
    lines: list[str] = []
    sink = logger.add(
        lambda line: lines.append(line.rstrip()),
        level=level,
        format="{level}: {message}",
        filter="pipecat_hedge",
    )
    try:
        yield lines
    finally:
        logger.remove(sink)
