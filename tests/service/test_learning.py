"""The hedged service learns from its turns and logs them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import AsyncMock

import numpy as np
import pytest
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgeError, HedgePolicy, Provider
from pipecat_hedge.policy import PROFILES, Backend, FileStore, policy_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time


def answers(*secs: float) -> ScriptedLLMService:
    """A service with given times to first token."""
    scripts: list[list[Step]] = [[Wait(s), Say("Yes. "), Say("Do come.")] for s in secs]
    return ScriptedLLMService(*scripts, model="gemma")


def provider(name: str, *secs: float) -> Provider:
    return Provider(name, answers(*secs))


def first_token(name: str, p: float) -> float:
    stats, backend = shared_stats(), Backend(name, "gemma")
    return stats.known([backend], None, by_sentence=False)[name].first_token.quantile(p)


async def test_first_turn_uses_published_priors() -> None:
    llm = HedgedLLMService([provider("a", 9.0), provider("b", 0.3)])
    async with Line(llm) as line:
        await line.ask()
        report = await line.report()
    assert report.winner == "b"
    assert report.prior_weight == 1.0
    assert report.hedge_reason is not None
    assert report.attempts[1].launch_detail is not None
    assert report.attempts[1].launch_detail.startswith("saves ")
    assert 0.4 < report.attempts[1].launched_secs < 1.5
    assert report.prompt_tokens is not None
    assert report.prompt_tokens > 0


async def test_services_of_a_process_share_statistics() -> None:
    for _ in range(10):
        async with Line(HedgedLLMService([provider("a", 0.2, 0.25, 0.22)])) as line:
            for _ in range(10):
                await line.ask()
    async with Line(HedgedLLMService([provider("a", 9.0), provider("b", 0.3)])) as line:
        await line.ask()
        report = await line.report()
    assert report.prior_weight == pytest.approx((20 / 120) ** 2)
    assert report.attempts[1].launched_secs < 0.55


async def test_cancelled_attempt_is_censored() -> None:
    llm = HedgedLLMService([provider("a", 5.0), provider("b", 0.3)], policy=HedgePolicy.after(0.5))
    async with Line(llm) as line:
        for _ in range(30):
            await line.ask()
    assert first_token("a", 0.5) > 0.7
    assert first_token("b", 0.5) < 0.5


async def test_failure_costs_no_budget() -> None:
    broken = ScriptedLLMService([Wait(0.01), Error()], model="gemma")
    llm = HedgedLLMService(
        [Provider("a", broken), provider("b", 0.1)], policy=HedgePolicy.adaptive(0.0)
    )
    async with Line(llm) as line:
        for number in range(1, 5):
            await line.ask()
            report = await line.report(number)
            assert report.winner == "b"
            assert report.attempts[1].launched_secs == pytest.approx(0.01)
    assert shared_stats().prior_weight(Backend("a", "gemma")) == 1.0
    assert shared_stats().prior_weight(Backend("b", "gemma")) < 1.0


async def test_own_registry_is_kept_in_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    stats = ProviderStats(FileStore(path))
    async with Line(HedgedLLMService([provider("a", 0.2)], stats=stats)) as line:
        for _ in range(5):
            await line.ask()
    assert shared_stats().prior_weight(Backend("a", "gemma")) == 1.0
    again = ProviderStats(FileStore(path))
    assert again.prior_weight(Backend("a", "gemma")) == pytest.approx((20 / 25) ** 2)


async def test_file_is_saved_during_a_session(tmp_path: Path) -> None:
    path, now = tmp_path / "stats.json", [0.0]
    stats = ProviderStats(FileStore(path), clock=lambda: now[0])
    async with Line(HedgedLLMService([provider("a", 0.2)], stats=stats)) as line:
        await line.ask()
        assert not path.exists()
        now[0] = 61.0
        await line.ask()
        await line.ask()
        assert path.exists()


# ---- the order


async def test_slow_first_provider_is_rerouted_until_it_recovers() -> None:
    usual, slow = [0.5] * 40, [1.6] * 7
    llm = HedgedLLMService(
        [
            Provider(
                "a",
                ScriptedLLMService(
                    *(
                        [
                            [Wait(s), Say("Yes. "), Wait(0.3), Say("Do come."), Wait(0.1)]
                            for s in (*usual, *slow, 0.5)
                        ]
                    ),
                    model="gemma",
                ),
            ),
            provider("b", 0.52, 0.48),
        ],
        policy=HedgePolicy.adaptive(0.1, order="learned"),
    )
    context = LLMContext([{"role": "user", "content": "Hello?"}])
    firsts: list[str] = []
    async with Line(llm) as line:
        for turn in range(200):
            await line.ask(context=context)
            report = await line.report(turn + 1)
            firsts.append(report.attempts[0].provider)
            if report.routing_reason is not None:
                assert report.routing_reason.startswith("a has turned slow ")
            await asyncio.sleep(3.0)
    assert set(firsts[:40]) == {"a"}
    assert "b" in firsts[40:70]
    back = firsts.index("b", 40)
    assert "a" in firsts[back:], "it came first again"
    returned = firsts.index("a", back)
    assert set(firsts[returned:]) == {"a"}
    probes = [
        a
        for report in line.reports[back:returned]
        for a in report.attempts
        if a.launch_detail == "probes a"
    ]
    assert probes
    assert all(a.launched_secs == 0 for a in probes)
    service = llm.providers[0].services[0]
    assert isinstance(service, ScriptedLLMService)
    assert service.closed_by_cancel >= sum(a.outcome == "superseded" for a in probes)


# ---- the turn log


async def test_turn_log_has_a_line_per_turn_and_no_text(tmp_path: Path) -> None:
    log = tmp_path / "turns.jsonl"
    llm = HedgedLLMService(
        [provider("a", 2.0), provider("b", 0.3)], policy=HedgePolicy.after(0.5), turn_log=log
    )
    async with Line(llm) as line:
        await line.ask("My secret question.")
        await line.ask("Another.")
    turns = [json.loads(text) for text in log.read_text().splitlines()]
    assert [turn["turn"] for turn in turns] == [1, 2]
    first = turns[0]
    assert first["policy"] == "after(0.5 s)"
    assert policy_of(first["policy_settings"]) == HedgePolicy.after(0.5)
    assert len({turn["session"] for turn in turns}) == 1
    assert first["at"] > 1.7e9
    assert first["winner"] == "b"
    assert first["ttft_secs"] == pytest.approx(0.8)
    assert [a["provider"] for a in first["attempts"]] == ["a", "b"]
    assert first["attempts"][1]["ttft_secs"] == pytest.approx(0.3)
    assert "secret" not in log.read_text()
    assert "Do come" not in log.read_text()


async def test_each_service_has_a_random_session(tmp_path: Path) -> None:
    log = tmp_path / "turns.jsonl"
    for _ in range(3):
        llm = HedgedLLMService([provider("a", 0.2)], turn_log=log)
        async with Line(llm) as line:
            await line.ask("My secret question.")
            await line.ask("Another.")
    sessions = [json.loads(text)["session"] for text in log.read_text().splitlines()]
    assert len(set(sessions)) == 3
    assert sessions == [name for name in dict.fromkeys(sessions) for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in sessions)


def test_log_without_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(HedgeError, match=r"turn_log: there is no folder .*: make it first"):
        HedgedLLMService([answers(1)], turn_log=tmp_path / "none" / "turns.jsonl")


# ---- as a whole


async def test_hosted_trace_tail_is_cut_within_budget() -> None:
    rng = random.Random(3)
    profile = PROFILES["gemma-4-31b-baseten"]

    def call() -> HedgedLLMService:
        return HedgedLLMService(
            [
                Provider(name, answers(*(profile.sample(rng) for _ in range(100))))
                for name in ("a", "b")
            ],
            policy=HedgePolicy.adaptive(0.05),
        )

    ttft: list[float] = []
    extra = 0
    for _ in range(20):
        async with Line(call()) as line:
            for _ in range(100):
                await line.ask()
            await line.report(100)
            ttft += [r.ttft_secs for r in line.reports if r.ttft_secs is not None]
            extra += sum(len(r.attempts) - 1 for r in line.reports)
    assert len(ttft) == 2000
    assert extra <= 0.06 * 2000
    assert float(np.quantile(ttft, 0.99)) < 1.5
    assert float(np.quantile(ttft, 0.995)) < 2.5


def test_services_on_several_loops_share_statistics() -> None:
    failed: list[BaseException] = []

    def serve(seed: int) -> None:
        async def calls() -> None:
            rng = random.Random(seed)
            llm = HedgedLLMService([provider("a", *(rng.uniform(0.2, 0.3) for _ in range(40)))])
            async with Line(llm) as line:
                for _ in range(40):
                    await line.ask()

        try:
            loop = AutojumpLoop()
            loop.run_until_complete(calls())
            loop.close()
        except BaseException as e:  # a thread's own exception would go unseen
            failed.append(e)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert shared_stats().prior_weight(Backend("a", "gemma")) == pytest.approx((20 / 180) ** 2)


async def test_inference_is_hedged_by_whole_answer_latency() -> None:
    service = answers(0.2)
    service.run_inference = AsyncMock(return_value="A summary.")
    llm = HedgedLLMService([Provider("a", service)])
    async with Line(llm):
        for _ in range(30):
            await llm.run_inference(LLMContext([{"role": "user", "content": "Sum it up."}]))
    stats = shared_stats()
    assert stats.prior_weight(Backend("a", "gemma")) == 1.0
    assert stats.prior_weight(Backend("a", "gemma", measures="whole_answer")) < 0.2


async def test_hanging_first_provider_delays_five_seconds_at_most() -> None:
    dead = ScriptedLLMService([Wait(1e6)], model="gemma")
    llm = HedgedLLMService([Provider("a", dead), provider("b", 0.4)])
    async with Line(llm) as line:
        for _ in range(60):
            await line.ask()
        reports = [await line.report(number + 1) for number in range(60)]
    assert [report.winner for report in reports] == ["b"] * 60
    assert max(report.ttft_secs or 99 for report in reports) <= 5.5
    assert line.errors == []


async def test_silent_provider_causes_no_hedge_storm() -> None:
    """Twelve callers: four hedges, then replacements."""
    usual = [0.3 + 0.02 * (turn % 7) for turn in range(20)]
    callers = [
        HedgedLLMService([provider("a", *usual, 60.0), provider("b", 0.4)]) for _ in range(12)
    ]
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(llm)) for llm in callers]
        for _ in range(21):
            await asyncio.gather(*(line.ask() for line in lines))
            await asyncio.sleep(6.0)
        last = [(await line.report(21)).attempts[1] for line in lines]
    hedges = [a for a in last if a.launch_reason == "hedge"]
    replacements = [a for a in last if a.launch_reason == "stall"]
    assert len(hedges) in (4, 5), "and what comes in meanwhile"
    assert len(replacements) == 12 - len(hedges)
    assert max(a.launched_secs for a in hedges) < 2.99 < min(a.launched_secs for a in replacements)
    assert max(a.launched_secs for a in last) <= 4.6
    assert all((a.launch_detail or "").startswith("put off, ") for a in replacements)


async def test_slow_stream_loses_to_a_whole_sentence() -> None:
    usual = [Wait(0.4), Say("Yes. "), Wait(0.05), Say("Do come.")]
    dribble: list[Step] = [Wait(0.4)]
    dribble += [Say("and "), Wait(0.4)] * 70
    llm = HedgedLLMService(
        [
            Provider("a", ScriptedLLMService(*[usual] * 60, dribble, model="gemini-3.6-flash")),
            provider("b", 0.4),
        ],
        policy=HedgePolicy.adaptive(commit="first_sentence"),
    )
    async with Line(llm) as line:
        for _ in range(61):
            await line.ask()
        report = await line.report(61)
    assert report.winner == "b"
    assert report.ttfs_secs is not None
    assert report.ttfs_secs < 4.0


async def test_failing_store_and_log_end_no_call(tmp_path: Path) -> None:
    class Down:
        def load(self) -> str | None:
            raise ConnectionError("redis is down")

        def save(self, text: str) -> None:
            raise ConnectionError("redis is down")

        def set_aside(self, why: str) -> None:
            raise ConnectionError("redis is down")

    now = [0.0]
    stats = ProviderStats(Down(), clock=lambda: now[0])
    folder = tmp_path / "logs"
    folder.mkdir()
    llm = HedgedLLMService([provider("a", 0.2)], stats=stats, turn_log=folder / "turns.jsonl")
    async with Line(llm) as line:
        await line.ask()
        await line.report(1)
        (folder / "turns.jsonl").unlink(missing_ok=True)
        folder.rmdir()
        now[0] = 61.0
        await line.ask()
        assert (await line.report(2)).winner == "a"
    assert line.errors == []
