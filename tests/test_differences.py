"""What the docs say differs from a bare service is shown by a test, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"`(tests/[\w/]+\.py)::(\w+)` \|$", (ROOT / "docs/differences.md").read_text(), re.M
)


def test_each_row_has_a_test() -> None:
    lines = (ROOT / "docs/differences.md").read_text().splitlines()
    heads = sum(line.startswith("| ---") for line in lines)
    assert len(ROWS) == sum(line.startswith("|") for line in lines) - 2 * heads > 10


@pytest.mark.parametrize(("path", "name"), ROWS)
def test_it_is_there(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text()
