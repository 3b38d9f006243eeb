"""The hedged service learns from its turns and logs them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.policy import policy_of
from pipecat_hedge.providers import Backend, FileStore
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import Inferring, asked, said, scripted
from tests.support.learned import prior_weight
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

A = Backend("a", "gemma")


def provider(name: str, *secs: float) -> Provider:
    """A provider with given times to first token."""
    scripts: list[list[Step]] = [[Wait(s), Say("Yes. "), Say("Do come.")] for s in secs]
    return Provider(name, ScriptedLLMService(*scripts, model="gemma"))


def racing(*providers: Provider, **options: Any) -> HedgedLLMService:
    return HedgedLLMService(providers, **options)


async def test_first_turn_uses_published_priors() -> None:
    report = (await asked(racing(provider("a", 9.0), provider("b", 0.3)))).reports[0]
    assert (report.winner, report.prior_weight) == ("b", 1.0)
    assert report.hedge_reason is not None
    assert (report.attempts[1].launch_detail or "").startswith("saves ")
    assert 0.4 < report.attempts[1].launched_secs < 1.5
    assert report.prompt_tokens is not None
    assert report.prompt_tokens > 0


def test_services_on_several_loops_share_statistics() -> None:
    failed: list[BaseException] = []

    def serve(seed: int) -> None:
        rng = random.Random(seed)
        secs = [rng.uniform(0.2, 0.3) for _ in range(40)]
        try:
            with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
                runner.run(asked(racing(provider("a", *secs)), turns=40))
        except BaseException as e:  # a thread's own exception would go unseen
            failed.append(e)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert prior_weight(shared_stats(), A) == pytest.approx((20 / 180) ** 2)


async def test_failure_costs_no_budget() -> None:
    broken = Provider("a", scripted(Wait(0.01), Error(), model="gemma"))
    line = await asked(
        racing(broken, provider("b", 0.1), policy=HedgePolicy.adaptive(0.0)), turns=4
    )
    for report in line.reports:
        assert report.winner == "b"
        assert report.attempts[1].launched_secs == pytest.approx(0.01)
    assert prior_weight(shared_stats(), A) == 1.0, "and is no latency"


async def test_own_registry_is_saved_to_its_file(tmp_path: Path) -> None:
    path, now = tmp_path / "stats.json", [0.0]
    stats = ProviderStats(FileStore(path), clock=lambda: now[0])
    async with Line(racing(provider("a", 0.2), stats=stats)) as line:
        await line.ask()
        assert not path.exists()
        now[0] = 61.0
        await line.ask()
        await line.ask()
        assert path.exists(), "during the session too"
        await line.ask()
        await line.ask()
    assert prior_weight(shared_stats(), A) == 1.0
    again = ProviderStats(FileStore(path))
    assert prior_weight(again, A) == pytest.approx((20 / 25) ** 2)


async def test_slow_first_provider_is_rerouted_until_it_recovers() -> None:
    scripts = [
        [Wait(s), Say("Yes. "), Wait(0.3), Say("Do come."), Wait(0.1)]
        for s in (*[0.5] * 40, *[1.6] * 7, 0.5)
    ]
    first = ScriptedLLMService(*scripts, model="gemma")
    policy = HedgePolicy.adaptive(0.1, order="learned")
    llm = racing(Provider("a", first), provider("b", 0.52, 0.48), policy=policy)
    reports = (await asked(llm, turns=200, context=said(), pause_secs=3.0)).reports
    firsts = [report.attempts[0].provider for report in reports]
    away = firsts.index("b")
    back = firsts.index("a", away)
    assert 40 <= away < 70
    assert set(firsts[back:]) == {"a"}, "it came first again"
    rerouted = reports[away:back]
    assert all((r.routing_reason or "").startswith("a has turned slow ") for r in rerouted)
    trials = [a for r in rerouted for a in r.attempts if a.launch_detail == "tries a"]
    assert trials
    assert all(trial.launched_secs == 0 for trial in trials)


@pytest.mark.parametrize("well_turns", [0, 3])
async def test_first_provider_that_hangs_early_is_soon_not_the_first_after_restarts(
    well_turns: int, tmp_path: Path
) -> None:
    """Before anything is typical; every turn is another run of the program."""
    path, reports = tmp_path / "stats.json", list[TurnReport]()

    def first() -> list[Step]:
        hangs = well_turns <= len(reports) < well_turns + 40
        return [Wait(float("inf"))] if hangs else [Wait(0.5), Say("Yes.")]

    for _ in range(well_turns + 100):
        stats = ProviderStats(FileStore(path))
        services = [Provider("a", Scripts(first, None)), provider("b", 0.6)]
        async with Line(racing(*services, stats=stats)) as line:
            await line.ask()
            reports.append(await line.report())
            await asyncio.sleep(5.0)
        stats.save()
    hung = reports[well_turns + 5 : well_turns + 40]
    assert {report.attempts[0].provider for report in hung} == {"b"}
    assert all(report.ttft_secs is not None and report.ttft_secs < 1.0 for report in hung)
    assert reports[-1].attempts[0].provider == "a", "it came first again"


async def test_inference_is_hedged_by_whole_answer_latency() -> None:
    llm = racing(Provider("a", Inferring("A summary.")))
    async with Line(llm):
        for _ in range(30):
            await llm.run_inference(said())
    assert prior_weight(shared_stats(), Backend("a", "scripted")) == 1.0
    assert prior_weight(shared_stats(), Backend("a", "scripted", measures="whole_answer")) < 0.2


async def test_silent_provider_causes_no_hedge_storm() -> None:
    """Twelve callers: four hedges, then replacements."""
    typical = [0.3 + 0.02 * (turn % 7) for turn in range(20)]
    callers = [racing(provider("a", *typical, 60.0), provider("b", 0.4)) for _ in range(12)]
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(llm)) for llm in callers]
        for _ in range(21):
            await asyncio.gather(*(line.ask() for line in lines))
            await asyncio.sleep(6.0)
        last = [(await line.report(21)).attempts[1] for line in lines]
    hedges = [a for a in last if a.launch_reason == "hedge"]
    replacements = [a for a in last if a.launch_reason == "silence"]
    assert len(hedges) in (4, 5), "and what comes in meanwhile"
    assert len(replacements) == 12 - len(hedges)
    assert max(a.launched_secs for a in hedges) < 2.99 < min(a.launched_secs for a in replacements)
    assert max(a.launched_secs for a in last) <= 4.6
    assert {a.launch_detail for a in replacements} == {"a is silent"}


async def test_turn_log_has_a_line_per_turn_and_no_text(tmp_path: Path) -> None:
    log, policy = tmp_path / "turns.jsonl", HedgePolicy.after(0.5)
    for _ in range(2):
        llm = racing(provider("a", 2.0), provider("b", 0.3), policy=policy, turn_log=log)
        await asked(llm, turns=2, context=said("My secret question."))
    turns = [json.loads(text) for text in log.read_text().splitlines()]
    assert [turn["turn"] for turn in turns] == [1, 2, 1, 2]
    sessions = [turn["session"] for turn in turns]
    assert len(set(sessions)) == 2
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in sessions)
    first = turns[0]
    assert (first["policy"], first["winner"]) == ("after(0.5 s)", "b")
    assert policy_of(first["policy_settings"]) == policy
    assert first["at"] > 1.7e9
    assert first["ttft_secs"] == pytest.approx(0.8)
    assert [a["provider"] for a in first["attempts"]] == ["a", "b"]
    assert first["attempts"][1]["ttft_secs"] == pytest.approx(0.3)
    assert "secret" not in log.read_text()
    assert "Do come" not in log.read_text()


async def test_failing_store_and_log_end_no_call(tmp_path: Path) -> None:
    class Down:
        def load(self, *_: str) -> str | None:
            raise ConnectionError("redis is down")

        save = set_aside = load

    now, folder = [0.0], tmp_path / "logs"
    folder.mkdir()
    stats = ProviderStats(Down(), clock=lambda: now[0])  # pyright: ignore[reportArgumentType]
    llm = racing(provider("a", 0.2), stats=stats, turn_log=folder / "turns.jsonl")
    async with Line(llm) as line:
        await line.ask()
        await line.report(1)
        (folder / "turns.jsonl").unlink(missing_ok=True)
        folder.rmdir()
        now[0] = 61.0
        await line.ask()
        assert (await line.report(2)).winner == "a"
    assert line.errors == []
