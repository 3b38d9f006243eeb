"""What the example bot is made of, decided from its environment."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples.voice_bot.choices import SETTINGS, LLMChoice, SettingError, choose
from examples.voice_bot.services import (
    check_installed,
    check_simulated_models,
    check_simulator,
    discover_models,
    keep_apart,
    make_llms,
    make_stt,
    make_tts,
    simulated_models,
)
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgePolicy, Slo, VLLMService
from pipecat_hedge.providers import Backend
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.tools.simulator import SimulatorProcess
from pipecat_hedge.voice.transcript_timing import model_of, name_of

ENV_EXAMPLE = Path(__file__).parents[2] / ".env.example"
SORRY = "I am sorry, I cannot answer right now. Please ask me again in a moment."
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
VLLM = {"VLLM_BASE_URL": "http://127.0.0.1:8000/v1", "VLLM_MODEL": "qwen"}
SIMULATED = {"SIMULATED_MODELS": "gemma-4-31b-baseten", "SIMULATOR_URL": "http://x"}
ALL = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", **AWS, **VLLM}
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.mark.parametrize(
    ("env", "kinds"),
    [
        ({}, ["simulated-openai", "simulated-anthropic"]),
        ({"ANTHROPIC_API_KEY": "k"}, ["anthropic"]),
        (AWS, ["bedrock"]),
        (VLLM, ["vllm"]),
        (ALL, ["anthropic", "openai", "bedrock", "vllm"]),
        (VLLM | SIMULATED, ["simulated-openai", "vllm"]),
        (VLLM | SIMULATED | {"OPENAI_API_KEY": "k"}, ["openai", "vllm"]),
    ],
)
def test_providers_with_keys_take_the_simulators_place(
    env: dict[str, str], kinds: list[str]
) -> None:
    """A vLLM needs no key, and is raced behind simulated models where those are named."""
    choices = choose(env)
    assert [llm.kind for llm in choices.llms] == kinds
    assert choices.simulated == kinds[0].startswith("simulated")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"stt": "pocketsphinx", "tts": "espeak", "turn_silence_secs": None, "traces": "off"}),
        ({"DEEPGRAM_API_KEY": "k"}, {"stt": "deepgram", "tts": "espeak"}),
        ({"CARTESIA_API_KEY": "k"}, {"stt": "pocketsphinx", "tts": "cartesia"}),
        ({"TURN_DETECTION": "0"}, {"turn_silence_secs": 0}),
        ({"TURN_DETECTION": "0.6"}, {"turn_silence_secs": 0.6}),
        ({CAPTURE: "true"}, {"traces": "off"}),
        (COLLECTOR, {"traces": "without text"}),
        (COLLECTOR | {CAPTURE: "True"}, {"traces": "with text"}),
        ({}, {"slo": Slo()}),
        ({"SLO": "off"}, {"slo": None}),
        (
            {"SLO": "ttft=none ttfs=1 share=0.9"},
            {"slo": Slo(ttft_secs=None, ttfs_secs=1.0, share=0.9)},
        ),
        ({"HEDGE_POLICY": "off"}, {"policy": None}),
        ({}, {"documents": None}),
        ({"DOCUMENTS": "examples"}, {"documents": "examples"}),
    ],
)
def test_the_environment_decides(env: dict[str, str], expected: dict[str, object]) -> None:
    """Offline speech unless there are keys; no text in traces unless asked for."""
    choices = choose(env)
    assert {name: getattr(choices, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        ({}, HedgePolicy.adaptive(0.5)),  # simulated providers race at once
        (ALL, HedgePolicy.adaptive(0.1, max_attempts=4)),  # each provider may be asked
        ({"HEDGE_POLICY": "adaptive:0.05"}, HedgePolicy.adaptive(0.05)),
        ({"HEDGE_POLICY": "race"}, HedgePolicy.race(2)),
        ({"HEDGE_POLICY": "race:3"}, HedgePolicy.race(3)),
        ({"HEDGE_POLICY": "after:0.5"}, HedgePolicy.after(0.5)),
        ({"HEDGE_POLICY": "after:0"}, HedgePolicy.after(0)),
        ({"HEDGE_POLICY": "fallback"}, HedgePolicy.fallback()),
        ({"FALLBACK_TEXT": "Oh."}, HedgePolicy.adaptive(0.5, fallback_text="Oh.")),
    ],
)
def test_a_policy_is_named_with_its_figure(env: dict[str, str], policy: HedgePolicy) -> None:
    assert choose(env).policy == replace(policy, fallback_text=policy.fallback_text or SORRY)


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_setting_that_is_there_but_empty_is_an_error(name: str, blank: str) -> None:
    with pytest.raises(SettingError, match=rf"{name} is set but empty: fill it in, or remove it"):
        choose({name: blank})


WRONG: dict[str, dict[str, str]] = {
    "HEDGE_POLICY": dict.fromkeys(
        ("often", "off:1", "after", "after:soon", "after:-1", "race:0", "fallback:2"), ""
    ),
    "TURN_DETECTION": dict.fromkeys(("-1", "clever", "60"), "write smart, or seconds"),
    "DOCUMENTS": {"nowhere": "there is no such folder"},
    "SLO": {
        "1.2": "'1.2' is not known.*; write ttft=0.8",
        "ttft=soon": "could not convert.*; write ttft=0.8",
        "share=95": "share must be above 0 and below 1.*; write ttft=0.8",
    },
}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        *(
            ({name: value}, f"{name}={value}: {message}")
            for name, values in WRONG.items()
            for value, message in values.items()
        ),
        (COLLECTOR | {CAPTURE: "some"}, f"{CAPTURE} must be true or false, got 'some'"),
        *(
            ({one: "x"}, f"{other} is not set, but {one} is: set both")
            for one, other in (tuple(AWS), tuple(AWS)[::-1])
        ),
    ],
)
def test_a_setting_that_cannot_work_is_an_error(env: dict[str, str], message: str) -> None:
    """The error names the setting, what it said and the remedy."""
    with pytest.raises(SettingError, match=message):
        choose(env)


def test_simulated_models_alternate_between_wire_formats() -> None:
    """An unknown one is an error with the known ones."""
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
    """A key without its package is an error at the start."""
    monkeypatch.setitem(sys.modules, "deepgram", None)
    with pytest.raises(SettingError, match=r'pip install -e "\.\[cloud\]"'):
        check_installed(choose({"DEEPGRAM_API_KEY": "k"}))


@pytest.mark.parametrize(
    ("env", "made"),
    [
        (
            {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
            [
                ("anthropic:claude-haiku-4-5", [AnthropicLLMService]),
                ("openai:gpt-4.1", [OpenAILLMService]),
            ],
        ),
        (VLLM, [("vllm:qwen", [VLLMService, VLLMService])]),  # one alone can race itself
        (
            {"SIMULATED_MODELS": "fixed?ttft=1 fixed?ttft=2 fixed", "SIMULATOR_URL": "http://x"},
            [
                ("openai:fixed", [OpenAILLMService]),
                ("anthropic:fixed", [AnthropicLLMService]),
                ("openai:fixed#2", [OpenAILLMService]),
            ],
        ),
    ],
)
async def test_the_services_are_those_that_were_chosen(env: dict[str, str], made: Any) -> None:
    """Each is named by its provider and model, without a simulated model's behaviour."""
    llms = make_llms(choose(env), env)
    assert [(llm.name, [type(each) for each in llm.services]) for llm in llms] == made
    for llm in llms:
        assert (llm.services[0].settings.model or "").startswith(llm.name.split(":")[1][:5])


def test_a_server_is_looked_for_at_the_start() -> None:
    """A vLLM is asked for its model; what does not answer is an error with the remedies."""
    choices, vllm = choose({}), choose({"VLLM_BASE_URL": "x"})
    with SimulatorProcess() as simulator:
        check_simulator(choices, {"SIMULATOR_URL": simulator.url})
        env = {"VLLM_BASE_URL": simulator.openai_url}
        assert discover_models(vllm, env).llms == (LLMChoice("vllm", "gpt-4.1"),)
    for url in (simulator.url, "simulator"):
        with pytest.raises(SettingError, match=r"SIMULATOR_URL=.*: start it"):
            check_simulator(choices, {"SIMULATOR_URL": url})
    with pytest.raises(SettingError, match="start the server, correct the address, or set"):
        discover_models(vllm, env)


@pytest.mark.parametrize("wire", ["deepgram", "openai", "hedged"])
def test_a_simulated_recognizer_needs_the_simulator(wire: str) -> None:
    """It takes the place of Deepgram's, and has a row of faults of its own."""
    choices = choose({"SIMULATED_STT": wire, "DEEPGRAM_API_KEY": "k", "OPENAI_API_KEY": "k"})
    assert (choices.stt, choices.simulated) == (f"simulated-{wire}", False)
    assert choices.needs_simulator
    both = ["simulated-deepgram", "simulated-openai"]
    assert list(simulated_models(choices)) == (both if wire == "hedged" else [choices.stt])
    with pytest.raises(SettingError, match="write deepgram, openai or hedged"):
        choose({"SIMULATED_STT": "whisper"})


@pytest.mark.parametrize(("how", "voices"), [("cartesia", 1), ("hedged", 2)])
def test_a_simulated_voice_needs_the_simulator(how: str, voices: int) -> None:
    """It takes the place of Cartesia's, and each connection has a row of faults of its own."""
    choices = choose({"SIMULATED_TTS": how, "CARTESIA_API_KEY": "k", "OPENAI_API_KEY": "k"})
    assert choices.needs_simulator
    assert list(simulated_models(choices)) == ["voice-1", "voice-2"][:voices]
    with pytest.raises(SettingError, match="write cartesia or hedged"):
        choose({"SIMULATED_TTS": "espeak"})


@pytest.mark.parametrize("stt", ["deepgram", "openai", "hedged"])
def test_simulated_speech_is_kept_out_of_real_statistics(stt: str) -> None:
    """A recogniser's and a voice's sockets do not say that they are simulated."""
    env = {"SIMULATED_STT": stt, "SIMULATED_TTS": "hedged", "SIMULATOR_URL": "http://127.0.0.1:9"}
    choices = choose(env)
    keep_apart(choices)
    made: Any = make_stt(choices, env)
    if stt == "hedged":
        backends = [made._host._backend, made._host._spare]
    else:
        backends = [Backend(name_of(made.name), model_of(made))]
    voices: Any = make_tts(choices, env)
    backends += [each.backend for each in voices._voices]
    assert len(backends) >= 3
    assert all(shared_stats().is_simulated(each) for each in backends)
