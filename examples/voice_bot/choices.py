"""Selects the bot's services from its environment.

Pure: it reads only the given mapping, and imports or creates no service. An invalid setting is an
error at the start, not at the first call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipecat_hedge import HedgePolicy, Slo

__all__ = ["Choices", "LLMChoice", "Setting", "SettingError", "choose"]

LLMKind = Literal[
    "anthropic", "openai", "bedrock", "vllm", "simulated-openai", "simulated-anthropic"
]
STTKind = Literal[
    "deepgram", "pocketsphinx", "simulated-deepgram", "simulated-openai", "simulated-hedged"
]
TTSKind = Literal["cartesia", "espeak", "simulated-cartesia", "simulated-hedged-voices"]


SIMULATED_POLICY = "adaptive:0.5"
"""The default policy if all providers are simulated: about half of the turns show a hedge."""


class SettingError(ValueError):
    """An invalid setting; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable of the bot.

    Parameters:
        name: The variable.
        meaning: Its effect, in one line.
        default: The default value; None without one.
    """

    name: str
    meaning: str
    default: str | None = None


SETTINGS = (
    Setting("ANTHROPIC_API_KEY", "race Claude over Anthropic's API"),
    Setting("ANTHROPIC_MODEL", "its model", "claude-haiku-4-5"),
    Setting("OPENAI_API_KEY", "race GPT over OpenAI's API"),
    Setting("OPENAI_MODEL", "its model", "gpt-4.1"),
    Setting("AWS_ACCESS_KEY_ID", "race a model on AWS Bedrock; needs AWS_SECRET_ACCESS_KEY too"),
    Setting("AWS_SECRET_ACCESS_KEY", "the other half of the AWS credentials"),
    Setting("AWS_SESSION_TOKEN", "only with temporary AWS credentials"),
    Setting("AWS_REGION", "the region of Bedrock", "us-east-1"),
    Setting("BEDROCK_MODEL", "its model", "us.amazon.nova-lite-v1:0"),
    Setting("VLLM_BASE_URL", "race a vLLM server of your own, such as http://localhost:8000/v1"),
    Setting("VLLM_API_KEY", "its key, if it was started with one"),
    Setting("VLLM_MODEL", "its model; without it the first one that the server lists"),
    Setting("DEEPGRAM_API_KEY", "speech to text with Deepgram; else offline with pocketsphinx"),
    Setting(
        "SIMULATED_STT",
        "deepgram, openai or hedged (both): simulated, with faults on the page",
    ),
    Setting("CARTESIA_API_KEY", "text to speech with Cartesia; else offline with espeak-ng"),
    Setting(
        "SIMULATED_TTS",
        "cartesia, or hedged (two connections): a simulated voice, with faults on the page",
    ),
    Setting("CARTESIA_VOICE_ID", "its voice", "71a7ad14-091c-4e8e-a314-022ece01c121"),
    Setting(
        "HEDGE_POLICY",
        "adaptive, adaptive:0.05 (share of turns), race, race:3, after:0.6 (secs), fallback or "
        "off; adaptive:0.5 if all providers are simulated",
        "adaptive",
    ),
    Setting(
        "SLO",
        "the callers' SLO, in secs and a share of turns (ttft=none: no such objective); or off",
        "ttft=0.8 ttfs=1.2 voice=1.5 share=0.95",
    ),
    Setting("TURN_LOG", "a file to which every turn is appended, for pipecat-hedge whatif"),
    Setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "send traces there by OTLP over HTTP, such as to http://localhost:4318",
    ),
    Setting(
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "true or false: whether traces contain the conversation",
        "false",
    ),
    Setting(
        "FALLBACK_TEXT",
        "the bot's text when every provider failed",
        "I am sorry, I cannot answer right now. Please ask me again in a moment.",
    ),
    Setting("TURN_DETECTION", "smart, or the seconds of silence that end a turn", "smart"),
    Setting(
        "DOCUMENTS",
        "a folder of text files, such as examples/voice_bot/documents: passages that fit are "
        "looked up while the caller speaks",
    ),
    Setting("SIMULATOR_URL", "a running simulator; without it one is started"),
    Setting(
        "SIMULATED_MODELS",
        "models raced without keys, over alternating wire formats; if set, also with a vLLM",
        "jagged claude-haiku-4-5",
    ),
)
"""All settings in the bot's environment; `.env.example` lists the same."""


@dataclass(frozen=True, slots=True)
class LLMChoice:
    """One LLM to race.

    Parameters:
        kind: The service.
        model: The model; None for a vLLM whose model is not known yet.
    """

    kind: LLMKind
    model: str | None

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator serves it."""
        return self.kind.startswith("simulated")


@dataclass(frozen=True, slots=True)
class Choices:
    """The bot's services and options.

    Parameters:
        stt: Speech to text.
        tts: Text to speech.
        llms: The racing LLMs, in their order.
        policy: The hedging policy; None uses the first LLM alone, without hedging.
        slo: The callers' SLO, or None.
        turn_log: The file to which every turn is appended, or None.
        turn_silence_secs: The silence that ends the caller's turn; None uses the smart-turn model.
        traces: Whether traces are exported, and with which content.
        documents: The folder in which passages for each turn are looked up, or None.
    """

    stt: STTKind
    tts: TTSKind
    llms: tuple[LLMChoice, ...]
    policy: HedgePolicy | None
    slo: Slo | None
    turn_log: str | None
    turn_silence_secs: float | None
    traces: Literal["off", "without text", "with text"] = "off"
    documents: str | None = None

    @property
    def simulated(self) -> bool:
        """Whether any LLM is simulated."""
        return any(llm.is_simulated for llm in self.llms)

    @property
    def needs_simulator(self) -> bool:
        """Whether any LLM, the recogniser or the voice is simulated."""
        return self.simulated or any(it.startswith("simulated") for it in (self.stt, self.tts))


def choose(env: Mapping[str, str]) -> Choices:
    """Select services by the keys in the environment, with fallbacks that need none.

    Raises:
        SettingError: If a setting is empty, is half of a pair, or has an unknown value.
    """
    for setting in SETTINGS:
        if setting.name in env and not env[setting.name].strip():
            raise SettingError(
                f"{setting.name} is set but empty: fill it in, or remove it (unset "
                f"{setting.name}; in .env put a # before it)"
            )
    llms = _llms(env)
    return Choices(
        stt=_stt(env),
        tts=_tts(env),
        llms=llms,
        policy=_policy(env, llms),
        slo=_slo(setting_in(env, "SLO")),
        turn_log=env.get("TURN_LOG"),
        turn_silence_secs=_turn_silence(setting_in(env, "TURN_DETECTION")),
        traces=_traces(env),
        documents=_folder(env.get("DOCUMENTS")),
    )


def _stt(env: Mapping[str, str]) -> STTKind:
    match env.get("SIMULATED_STT"):
        case None:
            return "deepgram" if "DEEPGRAM_API_KEY" in env else "pocketsphinx"
        case "deepgram":
            return "simulated-deepgram"
        case "openai":
            return "simulated-openai"
        case "hedged":
            return "simulated-hedged"
        case other:
            raise SettingError(f"SIMULATED_STT={other}: write deepgram, openai or hedged")


def _tts(env: Mapping[str, str]) -> TTSKind:
    match env.get("SIMULATED_TTS"):
        case None:
            return "cartesia" if "CARTESIA_API_KEY" in env else "espeak"
        case "cartesia":
            return "simulated-cartesia"
        case "hedged":
            return "simulated-hedged-voices"
        case other:
            raise SettingError(f"SIMULATED_TTS={other}: write cartesia or hedged")


def _folder(path: str | None) -> str | None:
    if path is not None and not Path(path).is_dir():
        raise SettingError(f"DOCUMENTS={path}: there is no such folder; name one with text files")
    return path


def _traces(env: Mapping[str, str]) -> Literal["off", "without text", "with text"]:
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    with_text = setting_in(env, name).lower()
    if with_text not in ("true", "false"):
        raise SettingError(f"{name} must be true or false, got {env[name]!r}")
    if "OTEL_EXPORTER_OTLP_ENDPOINT" not in env:
        return "off"
    return "with text" if with_text == "true" else "without text"


def setting_in(env: Mapping[str, str], name: str) -> str:
    """Return a setting's value, or its default.

    Args:
        env: The environment.
        name: A setting that is set or has a default.
    """
    default = next(setting.default for setting in SETTINGS if setting.name == name)
    value = env.get(name, default)
    assert value is not None, f"{name} is not set and has no default"
    return value.strip()


def _llms(env: Mapping[str, str]) -> tuple[LLMChoice, ...]:
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [name for name in pair if name not in env]
    if len(missing) == 1:
        raise SettingError(f"{missing[0]} is not set, but {_other(pair, missing[0])} is: set both")
    found: list[LLMChoice] = []
    if "ANTHROPIC_API_KEY" in env:
        found.append(LLMChoice("anthropic", setting_in(env, "ANTHROPIC_MODEL")))
    if "OPENAI_API_KEY" in env:
        found.append(LLMChoice("openai", setting_in(env, "OPENAI_MODEL")))
    if not missing:
        found.append(LLMChoice("bedrock", setting_in(env, "BEDROCK_MODEL")))
    if "VLLM_BASE_URL" in env:
        # A vLLM needs no key, so it may race with simulated providers instead of hosted ones.
        if not found and "SIMULATED_MODELS" in env:
            found += _simulated(setting_in(env, "SIMULATED_MODELS"))
        found.append(LLMChoice("vllm", env.get("VLLM_MODEL")))
    return tuple(found) or _simulated(setting_in(env, "SIMULATED_MODELS"))


def _other(pair: tuple[str, str], name: str) -> str:
    return pair[1] if name == pair[0] else pair[0]


def _simulated(models: str) -> tuple[LLMChoice, ...]:
    """Simulated models, alternating between the two wire formats."""
    wires: tuple[LLMKind, LLMKind] = ("simulated-openai", "simulated-anthropic")
    return tuple(LLMChoice(wires[n % 2], model) for n, model in enumerate(models.split()))


def _policy(env: Mapping[str, str], llms: Sequence[LLMChoice]) -> HedgePolicy | None:
    value = setting_in(env, "HEDGE_POLICY")
    if "HEDGE_POLICY" not in env and all(llm.is_simulated for llm in llms):
        value = SIMULATED_POLICY
    if value == "off":
        return None
    policy = _policy_of(value, attempts=max(2, len(llms)))
    return dataclasses.replace(policy, fallback_text=setting_in(env, "FALLBACK_TEXT"))


def _policy_of(value: str, *, attempts: int) -> HedgePolicy:
    name, _, argument = value.partition(":")
    try:
        if name == "adaptive":
            return HedgePolicy.adaptive(float(argument or 0.1), max_attempts=attempts)
        if name == "race":
            return HedgePolicy.race(int(argument) if argument else 2)
        if name == "after" and argument:
            return HedgePolicy.after(float(argument), max_attempts=attempts)
        if name == "fallback" and not argument:
            return HedgePolicy.fallback(max_attempts=attempts)
    except ValueError as error:  # ConfigurationError is one
        raise SettingError(f"HEDGE_POLICY={value}: {error}") from None
    raise SettingError(
        f"HEDGE_POLICY={value}: not a policy; write adaptive, adaptive:0.05, race, race:3, "
        "after:0.6, fallback or off"
    )


_SLO_FIELDS = {
    "ttft": "ttft_secs",
    "ttfs": "ttfs_secs",
    "voice": "voice_to_voice_secs",
    "share": "share",
}


def _slo(text: str) -> Slo | None:
    if text == "off":
        return None
    try:
        targets = {
            _SLO_FIELDS[name]: None if value == "none" and name != "share" else float(value)
            for name, _, value in (setting.partition("=") for setting in text.split())
        }
        return Slo(**targets)  # pyright: ignore[reportArgumentType]
    except (KeyError, ValueError) as error:  # ConfigurationError is a ValueError
        why = f"{error} is not known" if isinstance(error, KeyError) else str(error)
        raise SettingError(
            f"SLO={text}: {why}; write ttft=0.8 ttfs=1.2 voice=1.5 share=0.95, or off"
        ) from None


def _turn_silence(value: str) -> float | None:
    if value == "smart":
        return None
    try:
        secs = float(value)
    except ValueError:
        secs = -1.0
    if not 0 <= secs < 10:
        raise SettingError(
            f"TURN_DETECTION={value}: write smart, or seconds of silence from 0 to 10"
        )
    return secs
