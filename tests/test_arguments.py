"""Invalid arguments are errors at construction: the message names the field and the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from pipecat.frames.frames import LLMServiceMetadataFrame
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMService
from pipecat.services.settings import LLMSettings

from pipecat_hedge import (
    ExactAnswers,
    FaqAnswers,
    FillerProcessor,
    HedgedLLMService,
    HedgeError,
    HedgePolicy,
    Provider,
    Slo,
    VLLMService,
)
from pipecat_hedge.answers import FaqEntry
from pipecat_hedge.policy import Adaptive, ComplexityRouter, OnlyOnFailure
from pipecat_hedge.policy.settings import as_settings
from pipecat_hedge.providers import CircuitBreakerSettings
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.retrieval import FolderRetriever, RetrievalProcessor
from pipecat_hedge.service.token_budget import TokenBudget
from pipecat_hedge.telemetry import AllowedOrigins, LiveFeed, LiveServer
from pipecat_hedge.testing import ScriptedLLMService
from pipecat_hedge.tools.analysis.comparison_rules import at_quantile, single_r
from pipecat_hedge.tools.analysis.whatif import Question
from pipecat_hedge.tools.replay import Caller, Network
from pipecat_hedge.tools.replay.bots import as_bot
from pipecat_hedge.voice import TurnLatencyObserver
from tests.service.builders import scripted

adaptive, race = HedgePolicy.adaptive, HedgePolicy.race
after, fallback = HedgePolicy.after, HedgePolicy.fallback


class Library:
    async def retrieve(self, query: str) -> Sequence[Any]:
        return []


class SpeechToSpeech(ScriptedLLMService):
    def service_metadata_frame(self) -> LLMServiceMetadataFrame:
        return LLMServiceMetadataFrame(service_name=self.name, is_realtime_service=True)


def custom(rule: Any) -> HedgePolicy:
    return HedgePolicy(rule, "mine")


def provider(name: Any = "a", services: Any = None, **options: Any) -> Provider:
    return Provider(name, scripted() if services is None else services, **options)


def hedged(**options: Any) -> HedgedLLMService:
    return HedgedLLMService([scripted()], **options)


def faq(**options: Any) -> FaqAnswers:
    async def embed(texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 1))

    entries = [FaqEntry(questions=["When do you open?"], answer="At noon.")]
    return FaqAnswers(entries, **{"embed": embed, **options})


def exact(ttl_secs: Any = 60, **options: Any) -> ExactAnswers:
    return ExactAnswers(ttl_secs, **options)


def retrieval(retriever: Any = None, **options: Any) -> RetrievalProcessor:
    return RetrievalProcessor(Library() if retriever is None else retriever, **options)


def folder(**options: Any) -> FolderRetriever:
    """The working folder, in which the test has put a text."""
    return FolderRetriever(".", **options)


def router(**options: Any) -> ComplexityRouter:
    return ComplexityRouter(**{"simple": "a", "complex": "b", **options})


def feed_server(**options: Any) -> LiveServer:
    return LiveServer(LiveFeed(), **options)


# ---- numbers and flags

SECS, SHARE, COUNT, FLAG = "a time", "a share", "a count", "a flag"
ALWAYS = ["1", b"1", [1], {}, math.nan]
WRONG: dict[str, list[Any]] = {
    SECS: [*ALWAYS, True, -1, -math.inf],
    SHARE: [*ALWAYS, True, -1, 2, math.inf, None],
    COUNT: [*ALWAYS, True, -1, 0, 1.5, math.inf],
    FLAG: [*ALWAYS, 0, 1],
}
"""Beyond these None and infinity are wrong where they are listed as such."""
NEVER: list[Any] = [None, math.inf]


@pytest.mark.parametrize(
    ("make", "kind", "fields", "also"),
    [
        (after, SECS, "seconds", []),
        (adaptive, SECS, "min_saving_secs", NEVER),
        (adaptive, SECS, "target_ttft_secs", [math.inf]),
        (adaptive, SECS, "stall_secs silence_secs", []),
        (race, SECS, "stall_secs silence_secs", []),
        (race, SECS, "deadline_secs", [math.inf]),
        (adaptive, SHARE, "budget drain_share", []),
        (race, SHARE, "drain_share", []),
        (adaptive, COUNT, "max_attempts", [None]),
        (race, COUNT, "max_attempts", [None]),
        (fallback, FLAG, "probes", [None]),
        (Slo, SECS, "ttft_secs ttfs_secs voice_to_voice_secs", [0, math.inf]),
        (Slo, SHARE, "share", [0, 1]),
        (provider, SECS, "stall_secs timeout_secs", [0]),
        (provider, FLAG, "short_tool_ids", []),
        (hedged, COUNT, "min_in_flight max_in_flight", []),
        (hedged, FLAG, "warm own_spans", [None]),
        (CircuitBreakerSettings, COUNT, "failures min_attempts", [None]),
        (CircuitBreakerSettings, SHARE, "failed_share", [0]),
        (CircuitBreakerSettings, SECS, "window_secs recovery_secs max_recovery_secs", [0, *NEVER]),
        (TokenBudget, COUNT, "prompt answer", []),
        (FillerProcessor, SECS, "after_secs margin_secs every_secs", NEVER),
        (FillerProcessor, COUNT, "per_turn not_before_turn", [None]),
        (VLLMService, FLAG, "warm strict_tools", [None]),
        (exact, SECS, "ttl_secs", [0, *NEVER]),
        (exact, SECS, "most_mb", [0, None]),
        (faq, SHARE, "threshold", []),
        (router, SHARE, "threshold", []),
        (retrieval, SECS, "deadline_secs max_tokens", [0, *NEVER]),
        (folder, COUNT, "documents", [None]),
        (LiveFeed, COUNT, "turns", [None]),
    ],
)
async def test_wrong_number_or_flag_is_an_error(
    make: Any, kind: str, fields: str, also: list[Any], in_a_folder: Path
) -> None:
    """Text, True, NaN, what is negative, and infinity and None where they mean nothing."""
    for field in fields.split():
        for value in WRONG[kind] + also:
            if make is faq and value is None:
                continue  # the default
            with pytest.raises(ConfigurationError, match=field):
                make(**{field: value})


@pytest.mark.parametrize("make", [adaptive, race])
def test_infinite_wait_is_written_to_the_turn_log(make: Any) -> None:
    policy = make(stall_secs=math.inf, silence_secs=math.inf)
    settings = json.loads(json.dumps(as_settings(policy), allow_nan=False))
    assert (settings["stall_secs"], settings["silence_secs"]) == (None, None)


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder has a text, and an inaudible sound."""
    (tmp_path / "README.md").write_text("words")
    soundfile.write(tmp_path / "silence.wav", np.full(16_000, 20, np.int16), 16_000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.int16), 16_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- whatever else


def row(make: Any, message: str, **arguments: Any) -> Any:
    return pytest.param(make, arguments, message, id=message[:60])


def in_another_race() -> HedgedLLMService:
    service = scripted()
    HedgedLLMService([service])
    return HedgedLLMService([service])


def in_a_race() -> HedgedLLMService:
    return HedgedLLMService([hedged()])


ONE = scripted()
RULE = {"budget": 0.1, "min_saving_secs": 0.1, "target_ttft_secs": None, "order": "given"}
WEBSOCKET = OpenAIResponsesLLMService(api_key="k")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        # HedgePolicy
        row(after, "seconds must not be negative, got -0.5: 0 is at once", seconds=-0.5),
        row(after, "seconds is in seconds, .* if milliseconds .*, write 0.8", seconds=800),
        row(race, "max_attempts must be .* of at least 1, got 0: .* never hedges", max_attempts=0),
        row(race, "commit is not known, got 'late': write 'auto',", commit="late"),
        row(race, "losers is not known, got 'pay': write 'cancel'", losers="pay"),
        row(race, "drain_share must be from 0 to 1, got '1': 0.02 drains", drain_share="1"),
        row(race, "deadline_secs is infinite: None is never", deadline_secs=math.inf),
        row(race, "deadline_secs is 0, when every turn fails: None is", deadline_secs=0),
        row(
            *(after, "deadline_secs is 0.5, .* seconds=0.8: raise deadline_secs, or lower"),
            seconds=0.8,
            deadline_secs=0.5,
        ),
        row(race, "probes must be a bool, got 'false': write True or False", probes="false"),
        row(race, "fallback_text is empty: give the sentence", fallback_text=" "),
        row(race, "fallback_text must be a str, got 5: give the sentence", fallback_text=5),
        row(adaptive, "budget must be a share of turns, not negative.*: 0.1 is one", budget=-0.1),
        row(adaptive, "budget is 10 .*, write 0.1$", budget=10),
        row(adaptive, "budget is 1.5 .*, write 0.015$", budget=1.5),
        row(adaptive, "order is not known, got 'fast': write", order="fast"),
        row(adaptive, "min_saving_secs must not be negative, got -1: 0", min_saving_secs=-1),
        row(adaptive, "min_saving_secs is infinite: 0.15 is", min_saving_secs=math.inf),
        row(adaptive, "min_saving_secs is in .*, write 0.15$", min_saving_secs=150),
        row(adaptive, "target_ttft_secs is in .*, write 0.8", target_ttft_secs=800),
        row(adaptive, "deadline_secs is not .*: write target_ttft_secs", deadline_secs=1.2),
        row(adaptive, r"^budgt is no .*HedgePolicy.adaptive: did you mean budget\?", budgt=0.1),
        row(adaptive, "^wibble is no .* it takes budget, max_attempts, ", wibble=1),
        row(race, r"^loser is no .*HedgePolicy.race: did you mean losers\?", loser="drain"),
        row(fallback, r"^deadline is no .* did you mean deadline_secs\?", deadline=5),
        row(adaptive, "slo must be a Slo, got 0.8: write Slo", slo=0.8),
        row(adaptive, "route must be a function.*: write ComplexityRouter", route="large"),
        row(custom, "rule must have next_launch.*: write HedgePolicy", rule=None),
        row(custom, "rule must have next_launch.* got <class", rule=OnlyOnFailure),
        row(Adaptive, "budget must be .*0.5: 0.1 is", **(RULE | {"budget": -0.5})),
        row(Adaptive, "order is not known.*: write", **(RULE | {"order": "lerned"})),
        row(router, "threshold must be from 0 to 1, got 30: 0.3 is", threshold=30),
        row(router, "reasoning is no regular expression", reasoning="("),
        row(router, "correction is no regular expression", correction=5),
        row(router, "simple must be a provider's name, got None", simple=None),
        row(Slo, "ttft_secs is infinite: write None", ttft_secs=math.inf),
        row(Slo, "share must be above 0 and below 1, got '1': 0.95 is", share="1"),
        # HedgedLLMService and its providers
        row(HedgedLLMService, "llms is empty: give", llms=[]),
        row(HedgedLLMService, "llms must be a list", llms=scripted()),
        row(HedgedLLMService, r"llms\[0\] must be a Pipecat LLM service, got str", llms=["gpt"]),
        row(
            *(HedgedLLMService, r"llms\[1\] is the class.*: construct it"),
            llms=[scripted(), ScriptedLLMService],
        ),
        row(HedgedLLMService, "twice: one instance", llms=[ONE, ONE]),
        row(
            *(HedgedLLMService, "twice.* construct the service again"),
            llms=[provider("a", ONE), provider("b", [scripted(), ONE])],
        ),
        row(in_another_race, "already in a pipeline or in another race: construct"),
        row(HedgedLLMService, "speech-to-speech.*: use a text", llms=[SpeechToSpeech([])]),
        row(HedgedLLMService, "OpenAIResponsesHttpLLMService", llms=[WEBSOCKET]),
        row(in_a_race, "put its .* into the outer one"),
        row(HedgedLLMService, "one by one", llms=[LLMSwitcher([scripted()])]),
        row(
            *(HedgedLLMService, "names two providers alike: give each"),
            llms=[provider(), provider()],
        ),
        row(
            *(HedgedLLMService, "residency is 'eu', but provider 'b' has None: leave it out"),
            llms=[provider("a", residency="eu"), provider("b")],
            residency="eu",
        ),
        row(
            *(HedgedLLMService, "residency is 'eu', but provider 'b' has 'us': leave"),
            llms=[provider("b", residency="us")],
            residency="eu",
        ),
        row(hedged, "residency is 'eu', but provider 'scripted", residency="eu"),
        row(hedged, "min_in_flight must not exceed", min_in_flight=5, max_in_flight=4),
        row(hedged, "turn_log: there is no folder .*: make it first", turn_log="none/x"),
        row(hedged, "turn_log: .* is a folder: name a file in it", turn_log="."),
        row(hedged, "turn_log must be a str or PathLike, got 5: give", turn_log=5),
        row(hedged, "drained_log: there is no folder .*: make it first", drained_log="none/x"),
        row(
            *(hedged, "drained_log is the turn_log, x.jsonl: name another"),
            turn_log="x.jsonl",
            drained_log=Path("./x.jsonl"),
        ),
        row(hedged, "policy must be a HedgePolicy, got 'race': write", policy="race"),
        row(hedged, "stats must be a ProviderStats, got 'x': write", stats="x"),
        row(hedged, "settings must be a LLMSettings, got {}: write", settings={}),
        row(hedged, "settings.model cannot be shared", settings=LLMSettings(model="gpt")),
        row(hedged, "tier is not known, got 'gold': write 'premium'", tier="gold"),
        row(hedged, "admission is not known, got 'closed': write", admission="closed"),
        row(hedged, "slo must be a Slo, got 0.8: write Slo", slo=0.8),
        row(
            *(hedged, "but the policy states .*: give both the same"),
            slo=Slo(),
            policy=adaptive(slo=Slo(ttft_secs=0.5)),
        ),
        row(hedged, "token_budget must be a TokenBudget", token_budget=6_000),
        row(hedged, "token_budget must be .* TokenBudget", token_budget={"gold": TokenBudget()}),
        row(hedged, "answers must be objects with name, find and", answers=["faq.toml"]),
        row(hedged, r"answers must be a list or tuple, got None: write \[Exact", answers=None),
        row(hedged, r"^stall_secs belongs .*: write policy=HedgePolicy.adaptive\(st", stall_secs=1),
        row(hedged, r"^budget belongs .*: write policy=HedgePolicy.adaptive\(bu", budget=1),
        row(hedged, r"^seconds belongs .*: write policy=HedgePolicy.after\(seco", seconds=1),
        row(provider, "name must be a non-empty string, got '': write", name=""),
        row(provider, "name must be a non-empty string, got None: write", name=None),
        row(provider, "services of provider 'a' is empty: give", services=[]),
        row(provider, "services of provider 'a' must be a Pipecat", services="gpt"),
        *(
            row(provider, r"usd_per_mtok of provider 'a' must be \(input, output\)", usd_per_mtok=p)
            for p in (3, (1, -1), ("1", 1), (True, 1), (1, math.inf), (1, math.nan))
        ),
        row(provider, "breaker of provider 'a'.* got 3: write CircuitBreaker", breaker=3),
        row(provider, "region of provider 'a' must be a str, got 1: write", region=1),
        row(provider, "residency of provider 'a' must be a str, got 1: write", residency=1),
        row(CircuitBreakerSettings, "failed_share must be at most 1, got 50: 0.5", failed_share=50),
        row(CircuitBreakerSettings, "raise max_recovery_secs, too", recovery_secs=120),
        row(TokenBudget, "prompt of TokenBudget must be a number.* None", prompt=0),
        # voice
        row(FillerProcessor, "after_secs must be seconds, not negative, got -1: ", after_secs=-1),
        row(FillerProcessor, "per_turn must be a whole number, at least 1, got 0: ", per_turn=0),
        row(FillerProcessor, r'phrases must be lists .*as \{"slow"', phrases="Hm."),
        row(FillerProcessor, "slow must be a list of phrases", phrases={"slow": ["Hm.", " "]}),
        row(FillerProcessor, "'late' is no cause: give", phrases={"late": ["Hm."]}),
        row(FillerProcessor, "stats must be a ProviderStats, got 'x': write", stats="x"),
        row(FillerProcessor, "rng must be a Random, got 5: write random.Random", rng=5),
        row(FillerProcessor, r"after is no argument .*: did you mean after_secs\?", after=1),
        row(FillerProcessor, "wibble is no argument .*: it takes after_secs, margin_", wibble=1),
        row(FillerProcessor, r"^earcon: none.wav: no such file\. .* Or omit it", earcon="none.wav"),
        row(FillerProcessor, "^earcon: README.md: not an audio .* Name a WAV", earcon="README.md"),
        row(FillerProcessor, "^earcon must be the path .*, got '': omit it to use", earcon=""),
        row(FillerProcessor, "^earcon must be the path .*, got b'x': omit it", earcon=b"x"),
        row(FillerProcessor, "^earcon: .*silent or empty. .* omit it to use", earcon="silence.wav"),
        row(FillerProcessor, "^earcon: .*silent or empty. .* omit it", earcon="empty.wav"),
        row(TurnLatencyObserver, "log: there is no folder none: make it", log="none/turns.jsonl"),
        row(TurnLatencyObserver, r"logs is no argument of .* did you mean log\?", logs="x"),
        # vLLM
        row(VLLMService, "base_url must be an HTTP .*http://localhost:8000/v1", base_url="gpu:80"),
        row(VLLMService, "write http://gpu:8000/v1", base_url="http://gpu:8000"),
        row(VLLMService, "base_url must be a string", base_url=None),
        row(VLLMService, "priority must be a whole number.* or None", priority=0.5),
        row(VLLMService, "base_ur is no argument.*did you mean base_url", base_ur="x"),
        row(VLLMService, r"model: write settings=VLLMService.Settings\(model=", model="tiny"),
        row(VLLMService, "settings must be a OpenAILLMSettings, got {}: write", settings={}),
        row(VLLMService, "api_key must be a str, got 5: give", api_key=5),
        # answers and documents
        row(exact, "ttl_secs must be positive and finite, got 0: 3600", ttl_secs=0),
        row(exact, "most_mb must be positive, got 0: 16.0 is", most_mb=0),
        row(exact, "tenant must be a str, got None: write", tenant=None),
        row(exact, "path must be a str or PathLike, got 5: give", path=5),
        row(exact, "path: none/x cannot be used, .*: name another file", path="none/x"),
        row(exact, "path: README.md cannot be used, .*: name another", path="README.md"),
        row(exact, "redis_url: .*: write redis://", redis_url="localhost"),
        row(exact, "redis_url must be a str, got 5: write", redis_url=5),
        row(
            *(exact, "path and redis_url exclude each other: give"),
            path="answers.sqlite",
            redis_url="redis://localhost",
        ),
        row(faq, "threshold compares embeddings: give embed", threshold=0.92, embed=None),
        row(faq, "threshold must be from 0 to 1, got 92: 0.92 is", threshold=92),
        row(retrieval, "retriever must have a method.*: write Folder", retriever="documents"),
        row(retrieval, "retriever is empty: give", retriever=[]),
        row(retrieval, "deadline_secs must be positive and finite, got 0: ", deadline_secs=0),
        row(retrieval, "must have a fixed rule.*: write HedgePolicy", policy=adaptive()),
        row(retrieval, "policy must be a HedgePolicy, got 'x': write", policy="x"),
        row(retrieval, "instruction must be a str, got None: give", instruction=None),
        row(folder, "language: .*: write 'english'", language="klingon"),
        row(FolderRetriever, r"has no text: put files \*\.md", folder="nothing"),
        # the live feed
        row(feed_server, "port must be a number from 0 to 65535, got 70000: 0 is", port=70000),
        row(feed_server, "host must be a str, got None: write", host=None),
        *(
            row(AllowedOrigins, "allow_origin: .* is no origin: write a scheme", named=[named])
            for named in ("*", "https://*.example.com", "bot.example.com", "https://", "null")
        ),
        row(AllowedOrigins, "allow_origin: .* is no origin: write a", named=["https://a/b"]),
        row(AllowedOrigins, "allow_origin: .* is no origin: write a", named=["a:b:c"]),
        # tools
        row(at_quantile, "p must be above 0 and below 1, got 1.0: 0.95 is", p=1.0),
        row(single_r, "percentile must be above 0 and below 1, got 0", percentile=0),
        row(single_r, "budget must be above 0 and below 1, got 1", budget=1),
        row(Question, "attempts must be at least 2 to hedge, got 1", attempts=1),
        row(Question, "deadline_secs must be above 0 and .* 60 s, got -1", deadline_secs=-1),
        row(Question, "slo_secs must be above 0 and at most 60 s, got 800", slo_secs=800),
        row(Question, "min_saving_secs must not be negative, got -1", min_saving_secs=-1),
        row(Question, "prompt_tokens must be positive, got nan", prompt_tokens=math.nan),
        row(Question, "usd_per_mtok must be two prices, not", usd_per_mtok=(1.0, -1.0)),
        row(Question, "turns must be at least 1000, got 10", max_turns=10),
        row(Question, "both set the time of an answer", slo_secs=0.8, deadline_secs=1.0),
        row(Question, "one of the other policies makes more", others=(("three", race(3)),)),
        row(as_bot, "command is empty", given=""),
        row(as_bot, "command: No closing quotation in .*: close", given="python 'bot.py"),
        row(as_bot, "a bot is an address such as .*; got 7860", given=7860),
        row(as_bot, "a bot is an address such as .*; got b'python", given=b"python bot.py"),
        row(as_bot, "start_secs must be positive, got 0", given="python bot.py", start_secs=0),
        row(as_bot, "start_secs applies to", given="http://127.0.0.1:1", start_secs=5),
        *(
            row(Caller, r"url must be like http://127\.0\.0\.1:7860", url=url)
            for url in ("127.0.0.1:7860", "ftp://127.0.0.1", "http://[::1", "")
        ),
        row(Network, "loss must be a share from 0 to below 1, got nan", loss=math.nan),
        row(Network, "jitter_secs must be from 0 to 1 s, got -0.1", jitter_secs=-0.1),
    ],
)
async def test_invalid_argument_names_its_remedy(
    make: Any, arguments: dict[str, Any], message: str, in_a_folder: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(**arguments)
    assert isinstance(caught.value, HedgeError)
