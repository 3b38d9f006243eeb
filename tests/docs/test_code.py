"""The documentation's Python: every block runs alone, or after those that it names."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pipecat_hedge as hedge
from pipecat_hedge.race import reports
from pipecat_hedge.telemetry import SloStatus
from pipecat_hedge.tools.replay import TurnResult
from pipecat_hedge.tools.simulator import Simulator
from pipecat_hedge.voice import TurnLatency
from tests.docs.pages import PAGES, ROOT, Block, Page

BLOCKS = [block for page in PAGES for block in page.blocks("python")]
KEYS = ("ANTHROPIC", "CARTESIA", "DEEPGRAM", "ELEVENLABS", "OPENAI")
FACES = ("", ".fleet", ".telemetry", ".testing", ".tools.replay", ".tools.simulator", ".voice")
KNOWN = {
    name: getattr(module, name)
    for module in (import_module(f"pipecat_hedge{face}") for face in FACES)
    for name in module.__all__
}
POLICIES = {
    name: getattr(hedge.HedgePolicy, name) for name in ("adaptive", "race", "after", "fallback")
}
FIELDS: dict[str, tuple[type, ...]] = {
    "report": (reports.TurnReport, reports.BreakerReport),
    "attempt": (reports.AttemptReport,),
    "attempts[]": (reports.AttemptReport,),
    "stages": (reports.StageReport,),
    "status": (SloStatus,),
    "turn": (TurnLatency, TurnResult),
}


async def test_every_block_runs_as_it_is_pasted(tmp_path: Path) -> None:
    """README's example runs as it is, as README suggests, and with providers that fail."""
    async with Simulator(seed=1) as sim:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(Path(hedge.__file__).parents[1]), str(ROOT))),
            "PIPECAT_HEDGE_STATS": "off",
            **{f"{name}_API_KEY": "any" for name in KEYS},
            "OPENAI_BASE_URL": sim.openai_url,
            "ANTHROPIC_BASE_URL": sim.anthropic_url,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.docs.run_blocks"),
            env=env,
            cwd=tmp_path,  # some blocks write logs
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]
    done = json.loads(output.splitlines()[-1])
    assert not done["failed"], "\n".join(done["failed"])
    example, changed, failed = done["printed"]
    assert re.fullmatch(r"openai after \d\.\d\d s \[.*\('openai', 'won'\).*\]\n", example)
    outcomes = re.escape("[('openai', 'superseded'), ('claude', 'won')]")
    assert re.fullmatch(rf"claude after \d\.\d\d s {outcomes}\n", changed)
    assert failed.startswith("no provider answered [('openai', 'failed'), ('claude', 'failed')")
    assert failed.count("\n") == 1


# ---- names that exist


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_names_exist(block: Block) -> None:
    for node in ast.walk(block.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipecat"):
            module = import_module(node.module or "")
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
        elif isinstance(node, ast.Call):
            check_call(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            check_field(node.value.id, node.attr)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_names_in_sentences_exist(page: Page) -> None:
    for span in page.spans:
        for owner, field in re.findall(
            r"(?<![\w/])(report|attempts\[\]|stages|status)\.(\w+)$", span
        ):
            check_field(owner, field)
        if match := re.fullmatch(r"(?:await )?llm\.(\w+)(?:\(\)|\.\w+.*)?", span):
            assert match[1] == "events" or hasattr(hedge.HedgedLLMService, match[1]), span
        try:
            expression = ast.parse(span, mode="eval").body
        except SyntaxError:
            continue
        for node in ast.walk(expression):
            if isinstance(node, ast.Call):
                check_call(node)


def check_call(node: ast.Call) -> None:
    """The keywords of a call to this package exist, and a policy can be made of its arguments."""
    function, name = node.func, ast.unparse(node.func)
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "HedgePolicy":
        name = function.attr
    called = POLICIES.get(name) or KNOWN.get(name)
    if called is None:
        return
    keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
    left_out = any(isinstance(a, ast.Constant) and a.value is ... for a in ast.walk(node))
    if name in POLICIES and not left_out and not any(isinstance(a, ast.Name) for a in node.args):
        eval(compile(ast.Expression(node), "policy", "eval"), {**KNOWN, **POLICIES})
        return
    signatures = (
        [inspect.signature(each) for each in called.__mro__] if inspect.isclass(called) else []
    )
    signatures.append(inspect.signature(called))
    known = {parameter for signature in signatures for parameter in signature.parameters}
    assert not [keyword for keyword in keywords if keyword not in known], ast.unparse(node)


def check_field(owner: str, name: str) -> None:
    """A field of a report that goes by this name exists."""
    records = FIELDS.get(owner, ())
    there = {f.name for record in records for f in dataclasses.fields(record)}
    there |= {each for record in records for each in dir(record) if not each.startswith("_")}
    assert not records or name in there, f"{owner}.{name}"
