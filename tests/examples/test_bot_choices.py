"""What the example bot is made of, decided from its environment."""

import dataclasses
import re
from pathlib import Path

import pytest
from examples.voice_bot.choices import SETTINGS, LLMChoice, SettingError, choose
from examples.voice_bot.services import (
    check_installed,
    check_simulated_models,
    check_simulator,
    discover_models,
    make_llms,
)
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgePolicy, Slo, VLLMService
from pipecat_hedge.tools.simulator import Simulator, SimulatorProcess

ENV_EXAMPLE = Path(__file__).parents[2] / ".env.example"
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
SORRY = "I am sorry, I cannot answer right now. Please ask me again in a moment."
VLLM = {"VLLM_BASE_URL": "http://127.0.0.1:8000/v1", "VLLM_MODEL": "qwen"}


def test_without_keys_everything_is_offline_and_both_wires_are_raced() -> None:
    """No key is needed: offline speech, simulated providers, a policy that hedges."""
    choices = choose({})
    assert (choices.stt, choices.tts) == ("pocketsphinx", "espeak")
    assert [llm.kind for llm in choices.llms] == ["simulated-openai", "simulated-anthropic"]
    assert choices.simulated
    assert choices.policy == HedgePolicy.adaptive(0.1, fallback_text=SORRY)
    assert choices.turn_silence_secs is None


def test_traces_are_sent_where_a_collector_is_named_and_hold_no_text_unless_asked() -> None:
    """Both by OpenTelemetry's own variables; a word that is neither true nor false is refused."""
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    text = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert choose({}).traces == "off"
    assert choose({text: "true"}).traces == "off"
    assert choose(collector).traces == "without text"
    assert choose({**collector, text: "True"}).traces == "with text"
    with pytest.raises(SettingError, match=f"{text} must be true or false, got 'some'"):
        choose({**collector, text: "some"})


@pytest.mark.parametrize(
    ("env", "kinds"),
    [
        ({"ANTHROPIC_API_KEY": "k"}, ["anthropic"]),
        ({"OPENAI_API_KEY": "k"}, ["openai"]),
        (AWS, ["bedrock"]),
        (VLLM, ["vllm"]),
        (
            {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", **AWS, **VLLM},
            ["anthropic", "openai", "bedrock", "vllm"],
        ),
    ],
)
def test_providers_with_keys_take_the_simulators_place(
    env: dict[str, str], kinds: list[str]
) -> None:
    """Every provider whose key is there is raced, and no simulated one beside it."""
    choices = choose(env)
    assert [llm.kind for llm in choices.llms] == kinds
    assert not choices.simulated


def test_a_vllm_needs_no_key_and_is_raced_behind_simulated_ones() -> None:
    """Where simulated models are named, and no provider with a key is there."""
    env = {**VLLM, "SIMULATED_MODELS": "gemma-4-31b-baseten", "SIMULATOR_URL": "http://x"}
    choices = choose(env)
    assert [llm.kind for llm in choices.llms] == ["simulated-openai", "vllm"]
    assert choices.simulated
    check_simulated_models(choices)
    _, local = make_llms(choices, env)
    assert isinstance(local.services[0], VLLMService)
    assert local.name == "vllm:qwen"
    with_key = choose({**env, "OPENAI_API_KEY": "k"})
    assert [llm.kind for llm in with_key.llms] == ["openai", "vllm"]


def test_all_providers_may_be_asked_in_one_turn() -> None:
    """With four providers a turn may make four requests before it fails."""
    assert choose({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", **AWS, **VLLM}).policy == (
        HedgePolicy.adaptive(0.1, max_attempts=4, fallback_text=SORRY)
    )


def test_cloud_speech_where_its_keys_are() -> None:
    """Each key brings its service, whether the other is there or not."""
    assert choose({"DEEPGRAM_API_KEY": "k"}).stt == "deepgram"
    assert choose({"DEEPGRAM_API_KEY": "k"}).tts == "espeak"
    assert choose({"CARTESIA_API_KEY": "k"}).tts == "cartesia"


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_setting_that_is_there_but_empty_is_an_error(name: str, blank: str) -> None:
    """The error names the setting and both remedies."""
    with pytest.raises(SettingError, match=rf"{name} is set but empty: fill it in, or remove it"):
        choose({name: blank})


@pytest.mark.parametrize(("set_one", "missing"), [tuple(AWS), tuple(AWS)[::-1]])
def test_half_of_the_aws_credentials_is_an_error(set_one: str, missing: str) -> None:
    """The error names the half that is missing."""
    with pytest.raises(SettingError, match=f"{missing} is not set, but {set_one} is: set both"):
        choose({set_one: "x"})


@pytest.mark.parametrize(
    ("said", "policy"),
    [
        ("adaptive", HedgePolicy.adaptive()),
        ("adaptive:0.05", HedgePolicy.adaptive(0.05)),
        ("race", HedgePolicy.race(2)),
        ("race:3", HedgePolicy.race(3)),
        ("after:0.5", HedgePolicy.after(0.5)),
        ("after:0", HedgePolicy.after(0)),
        ("fallback", HedgePolicy.fallback()),
    ],
)
def test_policies(said: str, policy: HedgePolicy) -> None:
    """HEDGE_POLICY names each of the policies."""
    env = {"HEDGE_POLICY": said, "FALLBACK_TEXT": "Sorry."}
    assert choose(env).policy == dataclasses.replace(policy, fallback_text="Sorry.")


def test_hedging_can_be_off() -> None:
    """Then there is no policy: the first LLM answers alone."""
    assert choose({"HEDGE_POLICY": "off"}).policy is None


@pytest.mark.parametrize(
    "said",
    [
        "often",
        "off:1",
        "after",
        "after:soon",
        "after:-1",
        "race:0",
        "race:x",
        "fallback:2",
        "adaptive:-1",
    ],
)
def test_a_policy_that_cannot_work_is_an_error(said: str) -> None:
    """The error names the setting and what it said."""
    with pytest.raises(SettingError, match=f"HEDGE_POLICY={said}: "):
        choose({"HEDGE_POLICY": said})


def test_turn_detection() -> None:
    """Seconds, or the model; anything else is an error with the two ways to write it."""
    assert choose({"TURN_DETECTION": "0"}).turn_silence_secs == 0
    assert choose({"TURN_DETECTION": "0.6"}).turn_silence_secs == 0.6
    for said in ("-1", "clever", "nan", "60"):
        with pytest.raises(SettingError, match=f"TURN_DETECTION={said}: write smart, or seconds"):
            choose({"TURN_DETECTION": said})


def test_what_callers_are_promised() -> None:
    """The defaults, some of them, none."""
    assert choose({}).slo == Slo()
    assert choose({"SLO": "off"}).slo is None
    some = choose({"SLO": "ttft=none ttfs=1 share=0.9"}).slo
    assert some == Slo(ttft_secs=None, ttfs_secs=1.0, share=0.9)
    for said, why in (
        ("1.2", "'1.2' is not known"),
        ("ttft=soon", "could not convert"),
        ("share=none", "could not convert"),
        ("share=95", "share must be above 0 and below 1"),
    ):
        with pytest.raises(SettingError, match=f"SLO={said}: {why}.*; write ttft=0.8"):
            choose({"SLO": said})


def test_simulated_models() -> None:
    """Models follow each other on the two wires; an unknown one is an error with the known ones."""
    choices = choose({"SIMULATED_MODELS": "fixed?ttft=0.1 fixed gpt-4.1"})
    assert choices.llms == (
        LLMChoice("simulated-openai", "fixed?ttft=0.1"),
        LLMChoice("simulated-anthropic", "fixed"),
        LLMChoice("simulated-openai", "gpt-4.1"),
    )
    check_simulated_models(choices)
    with pytest.raises(SettingError, match=r"SIMULATED_MODELS, gpt-9: .*unknown profile.*gpt-4\.1"):
        check_simulated_models(choose({"SIMULATED_MODELS": "fixed gpt-9"}))


def test_every_setting_is_in_the_example_file_once() -> None:
    """`.env.example` names every setting in a line of its own, commented out."""
    named = re.findall(r"^# ([A-Z_]+)=", ENV_EXAMPLE.read_text(), flags=re.MULTILINE)
    assert named == [setting.name for setting in SETTINGS]


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key without its package is told at the start."""
    monkeypatch.setitem(__import__("sys").modules, "deepgram", None)
    with pytest.raises(SettingError, match=r'pip install -e "\.\[cloud\]"'):
        check_installed(choose({"DEEPGRAM_API_KEY": "k"}))


async def test_the_services_are_those_that_were_chosen() -> None:
    """Each choice becomes its service with its model and key; one alone can race itself."""
    env = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    first, second = make_llms(choose(env), env)
    assert (first.name, second.name) == ("anthropic:claude-haiku-4-5", "openai:gpt-4.1")
    assert isinstance(first.services[0], AnthropicLLMService)
    assert first.services[0].settings.model == "claude-haiku-4-5"
    assert isinstance(second.services[0], OpenAILLMService)
    assert second.services[0].settings.model == "gpt-4.1"
    (alone,) = make_llms(choose(VLLM), VLLM)
    assert (alone.name, len(alone.services)) == ("vllm:qwen", 2)
    assert not getattr(alone.services[0], "supports_developer_role", None)


async def test_simulated_providers_are_named_by_wire_and_profile() -> None:
    """Without what the model name asks for beside it; a third of the same name is numbered."""
    env = {"SIMULATED_MODELS": "fixed?ttft=1 fixed?ttft=2 fixed", "SIMULATOR_URL": "http://x"}
    names = [provider.name for provider in make_llms(choose(env), env)]
    assert names == ["openai:fixed", "anthropic:fixed", "openai:fixed#2"]


def test_a_vllm_is_asked_for_its_model() -> None:
    """Without VLLM_MODEL the first model that the server lists is used."""
    with SimulatorProcess() as simulator:
        env = {"VLLM_BASE_URL": simulator.openai_url}
        (llm,) = discover_models(choose(env), env).llms
    assert llm == LLMChoice("vllm", "gpt-4.1")


def test_a_simulator_that_does_not_answer_is_an_error() -> None:
    """At the start, not on the first call."""
    choices = choose({})
    with SimulatorProcess() as simulator:
        check_simulator(choices, {"SIMULATOR_URL": simulator.url})
    for url in (simulator.url, "simulator"):
        with pytest.raises(SettingError, match=r"SIMULATOR_URL=.*: start it"):
            check_simulator(choices, {"SIMULATOR_URL": url})


async def test_a_vllm_that_does_not_answer_is_an_error() -> None:
    """The error names the address and the remedies."""
    async with Simulator() as simulator:
        env = {"VLLM_BASE_URL": simulator.refused_url}
        with pytest.raises(SettingError, match="start the server, correct the address, or set"):
            discover_models(choose(env), env)
