"""A proxy that races every request behind the Anthropic and OpenAI APIs."""

from pipecat_hedge.tools.proxy.command import tune_gc
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.proxy.settings import ProxySettings, read_settings

__all__ = [
    "ProxyServer",
    "ProxySettings",
    "read_settings",
    "tune_gc",
]
