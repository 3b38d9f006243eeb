"""Counts lines of code by package: no blank lines, no comments, no docstrings.

    python scripts/code_lines.py

The library is what a production bot imports; the tools are what an engineer runs beside it.
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "src" / "pipecat_hedge"
TOOLS = LIBRARY / "tools"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    """The lines of a file that hold code."""
    with tokenize.open(path) as file:
        text = file.read()
        file.seek(0)
        tokens = [t for t in tokenize.generate_tokens(file.readline) if t.type not in NO_CODE]
    lines = {line for t in tokens for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone documents what is around it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def by_package(folder: Path, *, without: Path | None = None) -> Counter[str]:
    """The lines of each package in a folder, ``.`` for the modules beside them."""
    counts = Counter[str]()
    for path in folder.rglob("*.py"):
        if without is None or without not in path.parents:
            package = "." if path.parent == folder else path.relative_to(folder).parts[0]
            counts[package] += code_lines(path)
    return counts


def main() -> None:
    """Print the counts."""
    for name, counts in (
        ("library", by_package(LIBRARY, without=TOOLS)),
        ("tools", by_package(TOOLS)),
        ("tests", by_package(ROOT / "tests")),
        ("examples", by_package(ROOT / "examples")),
        ("scripts", by_package(ROOT / "scripts")),
    ):
        print(f"{name:20}{counts.total():7,}")
        for package, count in counts.most_common():
            print(f"  {package:18}{count:7,}")


if __name__ == "__main__":
    main()
