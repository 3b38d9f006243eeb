"""Runs the documentation's Python in a process of its own: some of it starts servers and exporters.

The blocks of a page share their names, and begin with the package's public names and with what the
sentences call ``llm``. A program begins with nothing, as an empty file does.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import sys
import traceback
import urllib.request
from typing import Any

import pipecat_hedge
from pipecat_hedge.testing import Say, ScriptedLLMService
from tests.docs.pages import PAGES, README, Block, Page


def begin() -> dict[str, Any]:
    """The names that a page begins with."""
    names = {name: getattr(pipecat_hedge, name) for name in pipecat_hedge.__all__}
    members = [ScriptedLLMService([Say("Hello.")], model=model) for model in ("first", "second")]
    return {**names, "llm": pipecat_hedge.HedgedLLMService(members)}


async def run(block: Block, names: dict[str, Any]) -> None:
    """Run a block."""
    code = re.sub(r"(start_http_server)\(\d+\)", r"\1(0)", block.code)  # the port may be taken
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    result = eval(compile(code, str(block), "exec", flags, dont_inherit=True), names)
    if inspect.isawaitable(result):
        await result


async def run_page(page: Page) -> list[str]:
    """Run the blocks of a page that are neither excerpts nor programs; returns what went wrong."""
    failed: list[str] = []
    names = begin()
    for block in page.blocks("python"):
        if not block.is_excerpt and not block.is_program:
            try:
                await run(block, names)
            except Exception:
                failed.append(f"{block}\n{traceback.format_exc(limit=-2)}")
    return failed


def run_program(code: str) -> str:
    """Run a program, and return what it prints."""
    compiled = compile(code, "program", "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compiled, {"__name__": "__main__"})
    return printed.getvalue()


def main() -> None:
    """Run everything, and print what went wrong and what the programs have printed."""
    failed = [each for page in PAGES for each in asyncio.run(run_page(page))]
    programs = [b.code for page in PAGES for b in page.blocks("python") if b.is_program]
    (change,) = re.findall(r'^Then write `(model=".*?")`', README.text, re.M)
    programs.append(re.sub(r'model="[\w.-]+"', change, programs[0]))  # README suggests it
    printed = [run_program(program) for program in programs]
    simulator = os.environ["ANTHROPIC_BASE_URL"]
    urllib.request.urlopen(f"{simulator}/simulator/conditions", b'{"fault": "529"}').close()
    printed.append(run_program(programs[0]))
    print(json.dumps({"failed": failed, "printed": printed}), flush=True)
    os._exit(0)  # exporters would look for a collector


if __name__ == "__main__":
    sys.exit(main())
