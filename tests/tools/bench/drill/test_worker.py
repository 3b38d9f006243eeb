"""What a caller of the drill heard is told apart."""

from __future__ import annotations

import pytest

from pipecat_hedge.tools.bench.drill.variants import ANSWER, FALLBACK
from pipecat_hedge.tools.bench.drill.worker import _heard


@pytest.mark.parametrize(
    ("text", "is_over", "heard"),
    [
        (ANSWER, True, ("answered", None)),
        (FALLBACK, True, ("degraded", None)),
        (f"We are... {FALLBACK}", True, ("degraded", None)),
        (f"{ANSWER} {FALLBACK}", True, ("degraded", None)),
        (f"We are... {FALLBACK[:8]}", True, ("lost", "broken off")),
        ("We are", True, ("lost", "broken off")),
        ("", True, ("lost", "silence")),
        (ANSWER, False, ("lost", "no end within 30 s")),
    ],
)
def test_what_was_heard(text: str, is_over: bool, heard: tuple[str, str | None]) -> None:
    """An answer counts to its end, the fallback text to its own, also after a part of an answer."""
    assert _heard(text, is_over=is_over) == heard
