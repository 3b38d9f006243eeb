"""The peers: what is installed for each, how it is set up, and what stands in the table."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.sections import VOICES, Section, sections

OURS = ("-c", "constraints.txt", "-e", ".[proxy]", "pipecat-ai[cartesia,deepgram]")
LIVEKIT = [f"livekit-{name}==1.8.9" for name in ("agents", "plugins-openai")]
LIVEKIT += [f"livekit-plugins-{name}==1.8.9" for name in ("cartesia", "deepgram")]
ENVIRONMENTS = {
    "pipecat": OURS,
    "livekit": tuple(LIVEKIT),
    # Newer releases need packages of their own for the proxy that are not on every index.
    "litellm": ("litellm[proxy]==1.106.12",),
    "hedge-python": ("hedge-python[httpx]==0.3.0", "openai==2.54.0"),
}
"""What pip installs in each environment."""
VERSIONS = {"pipecat": "pipecat-ai", "livekit": "livekit-agents", "litellm": "litellm"}
"""The distribution that names an environment's version; others have their own name."""


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Parameters:
        name: As its users call it.
        environment: Where it is installed.
        module: The module that speaks to it.
        kind: What that module sets up.
        setup: Its configuration, in one line.
        proxy: The proxy in front of the providers, if it is one.
    """

    name: str
    environment: str
    module: str
    kind: str
    setup: str
    proxy: str = ""

    @property
    def environments(self) -> list[str]:
        """What must be installed for it."""
        of_proxy = {"pipecat-hedge": ["pipecat"]}.get(self.proxy, [])
        return [self.environment, *of_proxy]

    def played(self, turns: int) -> list[Section]:
        """The sections for so many turns of a usual day."""
        heard = {"tts": "silent_voice", "stt": "late_transcript"}.get(self.kind[:3])
        return [VOICES[heard]] if heard else sections(turns)


def _pipecat(name: str, kind: str, setup: str) -> Peer:
    return Peer(name, "pipecat", "benchmarks.speak_pipecat", kind, setup)


def _livekit(name: str, kind: str, setup: str) -> Peer:
    return Peer(name, "livekit", "benchmarks.speak_livekit", kind, setup)


def _proxy(name: str, proxy: str, setup: str, environment: str = "pipecat") -> Peer:
    return Peer(name, environment, "benchmarks.speak_openai", "sdk", setup, proxy)


def _openai(name: str, kind: str, setup: str, environment: str = "pipecat") -> Peer:
    return Peer(name, environment, "benchmarks.speak_openai", kind, setup)


MODELS = (
    _openai("OpenAI's SDK", "sdk", "`AsyncOpenAI()`, its 2 retries and 600 s; one provider"),
    _pipecat("Pipecat `OpenAILLMService`", "llm bare", "as it is; one provider"),
    _pipecat(
        "Pipecat `LLMSwitcher`, failover",
        "llm switcher",
        "`LLMSwitcher([a, b], ServiceSwitcherStrategyFailover)`",
    ),
    _livekit(
        "LiveKit `openai.LLM`",
        "llm",
        "as an `AgentSession` asks: `APIConnectOptions()`, 3 retries, 10 s; one provider",
    ),
    _livekit(
        "LiveKit `agents.llm.FallbackAdapter`",
        "llm fallback",
        "`FallbackAdapter([a, b])`: `attempt_timeout=5.0`, `max_retry_per_llm=0`, "
        "`retry_on_chunk_sent=False`",
    ),
    _livekit(
        "LiveKit `agents.llm.FallbackAdapter`, tuned",
        "llm tuned",
        "`FallbackAdapter([a, b], attempt_timeout=1, retry_on_chunk_sent=True)`",
    ),
    _openai(
        "LiteLLM `Router`",
        "router",
        '`Router(model_list, fallbacks=[{"a": ["b"]}])`, its 2 retries',
        "litellm",
    ),
    _openai(
        "LiteLLM `Router`, tuned",
        "router tuned",
        "the same with `stream_timeout=1, num_retries=0`",
        "litellm",
    ),
    _openai(
        "hedge-python",
        "hedge-python",
        "`HedgedHttpxTransport` under OpenAI's SDK, as its README has it; one provider. "
        "It hedges GET, not POST, so it asks once",
        "hedge-python",
    ),
    _pipecat(
        "pipecat-hedge `race(2)`", "llm race(2)", "two providers, `policy=HedgePolicy.race(2)`"
    ),
    _pipecat(
        "pipecat-hedge `adaptive(0.05)`",
        "llm adaptive(0.05)",
        "the same with `adaptive(0.05)`; nothing is learned before",
    ),
    _pipecat(
        "pipecat-hedge `adaptive(0.1)`", "llm adaptive(0.1)", "the same with the default policy"
    ),
    _proxy("plain pass-through", "pass-through", "a page of aiohttp; one provider"),
    _proxy("LiteLLM's proxy", "litellm", "`litellm --config`, fallbacks a → b", "litellm"),
    _proxy(
        "stand-in for a hedging proxy",
        "two-requests",
        "a page of aiohttp with the rule of AnthropicRequestHedging: two requests, the first "
        "response wins, the other one runs on; one provider",
    ),
    _proxy(
        "pipecat-hedge's proxy",
        "pipecat-hedge",
        '`pipecat-hedge proxy`, `policy = "adaptive(0.1)"`, `continue = true`',
    ),
    Peer(
        "LiveKit `openai.LLM` at that proxy",
        "livekit",
        "benchmarks.speak_livekit",
        "llm",
        "`openai.LLM(base_url=...)`",
        "pipecat-hedge",
    ),
)
"""Those that answer as an LLM. "One provider" means that only a is asked."""
_CARTESIA, _DEEPGRAM = "two of Cartesia's", "two of Deepgram's"
SPEECH = (
    _pipecat("Pipecat `CartesiaTTSService`", "tts bare", "as it is"),
    _pipecat("Pipecat `ServiceSwitcher`, voices", "tts switcher", f"failover, {_CARTESIA}"),
    _livekit("LiveKit `cartesia.TTS`", "tts", "`APIConnectOptions()`, as an `AgentSession`"),
    _livekit(
        "LiveKit `agents.tts.FallbackAdapter`",
        "tts fallback",
        f"`max_retry_per_tts=2`, {_CARTESIA}",
    ),
    _livekit(
        "LiveKit `agents.tts.FallbackAdapter`, tuned",
        "tts tuned",
        f"`max_retry_per_tts=0`, `APIConnectOptions(timeout=2)`, {_CARTESIA}",
    ),
    _pipecat("pipecat-hedge `HedgedTTSService`", "tts hedged", f"{_CARTESIA}, `same_voice=True`"),
    _pipecat("Pipecat `DeepgramSTTService`", "stt bare", "as it is"),
    _pipecat("Pipecat `ServiceSwitcher`, recognisers", "stt switcher", f"failover, {_DEEPGRAM}"),
    _livekit("LiveKit `deepgram.STT`", "stt", "`APIConnectOptions()`"),
    _livekit(
        "LiveKit `agents.stt.FallbackAdapter`",
        "stt fallback",
        f"`attempt_timeout=10.0`, `max_retry_per_stt=1`, {_DEEPGRAM}",
    ),
    _pipecat("pipecat-hedge `HedgedSTTService`", "stt hedged", _DEEPGRAM),
)
"""Voices and recognisers."""

PEERS = (*MODELS, *SPEECH)
