"""Creates the selected Pipecat services; only those are imported."""

from __future__ import annotations

import importlib
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from examples.voice_bot.choices import Choices, LLMChoice, SettingError, STTKind, setting_in
from pipecat_hedge import HedgedSTTService, HedgedTTSService, Provider, VLLMService, Voice

if TYPE_CHECKING:
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.services.llm_service import LLMService
    from pipecat.services.stt_service import STTService
    from pipecat.services.tts_service import TTSService

__all__ = [
    "check_installed",
    "check_simulated_models",
    "check_simulator",
    "discover_models",
    "keep_apart",
    "make_llms",
    "make_stt",
    "make_tts",
    "simulated_models",
]

_NEEDS = {
    "deepgram": ("deepgram", "cloud"),
    "simulated-deepgram": ("deepgram", "cloud"),
    "simulated-openai": ("pocketsphinx", "demo"),
    "simulated-hedged": ("deepgram", "cloud"),
    "cartesia": ("websockets", "cloud"),
    "simulated-cartesia": ("websockets", "cloud"),
    "simulated-hedged-voices": ("websockets", "cloud"),
    "bedrock": ("aioboto3", "cloud"),
    "pocketsphinx": ("pocketsphinx", "demo"),
    "espeak": ("espeakng_loader", "demo"),
    "traces": ("opentelemetry.exporter.otlp.proto.http", "tracing"),
}
"""The module that a service needs, and the extra that installs it."""


SIMULATED_STT = {"simulated-deepgram": "nova-3-general", "simulated-openai": "gpt-transcribe"}
"""The models of the simulated recognisers."""
SIMULATED_TTS = {"voice-1": "sonic-3", "voice-2": "sonic-3?region=second"}
"""The models of the simulated voices, of which a bare one is the first."""


def check_installed(choices: Choices) -> None:
    """Check that the packages of all selected services are installed.

    Raises:
        SettingError: If one is missing; the message has the command that installs it.
    """
    traces = () if choices.traces == "off" else ("traces",)
    for chosen in (choices.stt, choices.tts, *(llm.kind for llm in choices.llms), *traces):
        module, extra = _NEEDS.get(chosen, (None, ""))
        if module is None:
            continue
        try:
            importlib.import_module(module)
        except ImportError:
            raise SettingError(
                f"{chosen} was chosen, but the package {module} is not installed: "
                f'run pip install -e ".[{extra}]"'
            ) from None


def discover_models(choices: Choices, env: Mapping[str, str], timeout_secs: float = 5) -> Choices:
    """Read a vLLM server's model, if none is configured.

    Args:
        choices: The choices; unchanged without a vLLM, or if its model is configured.
        env: The environment.
        timeout_secs: The longest wait for the server.

    Raises:
        SettingError: If the server does not answer, or serves nothing.
    """
    if not any(llm.kind == "vllm" and llm.model is None for llm in choices.llms):
        return choices
    base_url = setting_in(env, "VLLM_BASE_URL").rstrip("/")
    try:
        key = env.get("VLLM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{base_url}/models", headers=headers)
        with urllib.request.urlopen(request, timeout=timeout_secs) as answer:
            model: str = json.load(answer)["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingError(
            f"VLLM_BASE_URL={base_url}: no model could be read from {base_url}/models "
            f"({error}): start the server, correct the address, or set VLLM_API_KEY or VLLM_MODEL"
        ) from None
    llms = (replace(llm, model=model) if llm.kind == "vllm" else llm for llm in choices.llms)
    return replace(choices, llms=tuple(llms))


def check_simulated_models(choices: Choices) -> None:
    """Check that the simulator knows all simulated models.

    Raises:
        SettingError: With the list of known ones.
    """
    if not choices.simulated:
        return
    from pipecat_hedge.tools.simulator import BehaviourError, parse_model

    for llm in choices.llms:
        if not llm.is_simulated:
            continue
        try:
            parse_model(llm.model or "")
        except BehaviourError as error:
            raise SettingError(f"SIMULATED_MODELS, {llm.model}: {error}") from None


def check_simulator(choices: Choices, env: Mapping[str, str], timeout_secs: float = 5) -> None:
    """Check that the configured simulator answers.

    Raises:
        SettingError: If it does not.
    """
    if not choices.needs_simulator or "SIMULATOR_URL" not in env:
        return
    url = setting_in(env, "SIMULATOR_URL").rstrip("/")
    try:
        with urllib.request.urlopen(f"{url}/ledger", timeout=timeout_secs) as answer:
            json.load(answer)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"SIMULATOR_URL={url}: no simulator answers there ({error}): start it with "
            "pipecat-hedge simulate, correct the address, or leave the setting out"
        ) from None


def keep_apart(choices: Choices) -> None:
    """Keep what is learned of simulated recognisers and voices out of real ones' statistics.

    A simulated LLM's responses say by themselves that they are simulated.
    """
    from pipecat_hedge.providers import Backend
    from pipecat_hedge.service import shared_stats

    simulated: list[tuple[str, str | None]] = []
    if choices.stt.startswith("simulated"):
        deepgram, openai = SIMULATED_STT.values()
        simulated += [("deepgram", deepgram), ("openai", openai), ("openai (rescue)", openai)]
        simulated += [("deepgram+openai", None)]
    if choices.tts.startswith("simulated"):
        simulated += [(name, f"{model}/simulated") for name, model in SIMULATED_TTS.items()]
    for provider, model in simulated:
        shared_stats().mark_simulated(Backend(provider, model))


def make_stt(choices: Choices, env: Mapping[str, str]) -> FrameProcessor:
    """Create the speech-to-text service."""
    if choices.stt == "simulated-hedged":
        return HedgedSTTService(
            lambda: _stt("simulated-deepgram", env), _stt("simulated-openai", env)
        )
    return _stt(choices.stt, env)


def _stt(kind: STTKind, env: Mapping[str, str]) -> STTService:
    if kind == "deepgram":
        from pipecat.services.deepgram.stt import DeepgramSTTService

        return DeepgramSTTService(api_key=setting_in(env, "DEEPGRAM_API_KEY"))
    if kind == "simulated-deepgram":
        from pipecat.services.deepgram.stt import DeepgramSTTService

        return DeepgramSTTService(
            api_key="simulated",
            base_url=setting_in(env, "SIMULATOR_URL"),
            settings=DeepgramSTTService.Settings(model=SIMULATED_STT[kind]),
        )
    if kind == "simulated-openai":
        from pipecat.services.openai.stt import OpenAISTTService

        return OpenAISTTService(
            api_key="simulated",
            base_url=f"{setting_in(env, 'SIMULATOR_URL')}/v1",
            settings=OpenAISTTService.Settings(model=SIMULATED_STT[kind]),
        )
    from examples.voice_bot.speech import PocketsphinxSTTService

    return PocketsphinxSTTService()


def make_tts(choices: Choices, env: Mapping[str, str]) -> TTSService:
    """Create the text-to-speech service."""
    if choices.tts == "cartesia":
        from pipecat.services.cartesia.tts import CartesiaTTSService

        return CartesiaTTSService(
            api_key=setting_in(env, "CARTESIA_API_KEY"),
            settings=CartesiaTTSService.Settings(voice=setting_in(env, "CARTESIA_VOICE_ID")),
        )
    if choices.tts == "simulated-cartesia":
        return _simulated_voice("voice-1", env)
    if choices.tts == "simulated-hedged-voices":
        return HedgedTTSService(
            [
                Voice(name, _simulated_voice(name, env), same_voice=name != "voice-1")
                for name in SIMULATED_TTS
            ]
        )
    from examples.voice_bot.speech import EspeakTTSService

    return EspeakTTSService()


def _simulated_voice(name: str, env: Mapping[str, str]) -> TTSService:
    from pipecat.services.cartesia.tts import CartesiaTTSService

    url = setting_in(env, "SIMULATOR_URL").replace("http", "ws", 1)
    return CartesiaTTSService(
        api_key="simulated",
        url=f"{url}/tts/websocket",
        settings=CartesiaTTSService.Settings(model=SIMULATED_TTS[name], voice="simulated"),
    )


def make_llms(choices: Choices, env: Mapping[str, str]) -> list[Provider]:
    """Create the LLM providers of one call.

    A single provider gets two instances, so that it can race itself.
    """
    if len(choices.llms) == 1:
        alone = choices.llms[0]
        return [Provider(_name(alone), [_llm(alone, env), _llm(alone, env)])]
    names = _names(choices.llms)
    return [Provider(name, _llm(llm, env)) for name, llm in zip(names, choices.llms, strict=True)]


def parts(choices: Choices) -> dict[str, Any]:
    """Return what the page names above a call: its services and the policy."""
    names = _names(choices.llms)
    return {
        "stt": choices.stt,
        "tts": choices.tts,
        "llms": names if choices.policy else names[:1],
        "policy": choices.policy.name if choices.policy else "off",
        "simulated": choices.simulated,
    }


def simulated_models(choices: Choices) -> dict[str, str]:
    """Return the model of each simulated provider, recogniser and voice, by its name."""
    named = zip(_names(choices.llms), choices.llms, strict=True)
    models = {name: llm.model or "" for name, llm in named if llm.is_simulated}
    if choices.tts == "simulated-hedged-voices":
        models |= SIMULATED_TTS
    elif choices.tts == "simulated-cartesia":
        models["voice-1"] = SIMULATED_TTS["voice-1"]
    if choices.stt == "simulated-hedged":
        return models | SIMULATED_STT
    if choices.stt in SIMULATED_STT:
        models[choices.stt] = SIMULATED_STT[choices.stt]
    return models


def _names(llms: Sequence[LLMChoice]) -> list[str]:
    """Return the providers' names; duplicates are numbered."""
    names = [_name(llm) for llm in llms]
    seen: Counter[str] = Counter()
    for number, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            names[number] = f"{name}#{seen[name]}"
    return names


def _name(llm: LLMChoice) -> str:
    model = (llm.model or "").partition("?")[0]  # of a simulated model only its profile
    return f"{llm.kind.removeprefix('simulated-')}:{model}"


def _llm(choice: LLMChoice, env: Mapping[str, str]) -> LLMService[Any]:
    match choice.kind:
        case "anthropic":
            from pipecat.services.anthropic.llm import AnthropicLLMService

            return AnthropicLLMService(
                api_key=setting_in(env, "ANTHROPIC_API_KEY"),
                settings=AnthropicLLMService.Settings(model=choice.model),
            )
        case "openai":
            return _openai(choice, api_key=setting_in(env, "OPENAI_API_KEY"))
        case "bedrock":
            from pipecat.services.aws.llm import AWSBedrockLLMService

            return AWSBedrockLLMService(
                aws_access_key=setting_in(env, "AWS_ACCESS_KEY_ID"),
                aws_secret_key=setting_in(env, "AWS_SECRET_ACCESS_KEY"),
                aws_session_token=env.get("AWS_SESSION_TOKEN"),
                aws_region=setting_in(env, "AWS_REGION"),
                settings=AWSBedrockLLMService.Settings(model=choice.model),
            )
        case "vllm":
            return VLLMService(
                base_url=setting_in(env, "VLLM_BASE_URL"),
                api_key=env.get("VLLM_API_KEY"),
                settings=VLLMService.Settings(model=choice.model),
            )
        case "simulated-openai":
            url = setting_in(env, "SIMULATOR_URL")
            return _openai(choice, api_key="simulated", base_url=f"{url}/v1")
        case "simulated-anthropic":
            from anthropic import AsyncAnthropic
            from pipecat.services.anthropic.llm import AnthropicLLMService

            return AnthropicLLMService(
                api_key="simulated",
                client=AsyncAnthropic(
                    api_key="simulated", base_url=setting_in(env, "SIMULATOR_URL")
                ),
                settings=AnthropicLLMService.Settings(model=choice.model),
            )


def _openai(choice: LLMChoice, *, api_key: str, base_url: str | None = None) -> Any:
    from pipecat.services.openai.llm import OpenAILLMService

    return OpenAILLMService(
        api_key=api_key,
        base_url=base_url,
        settings=OpenAILLMService.Settings(model=choice.model),
    )
