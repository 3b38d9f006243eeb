"""``VLLMService``: a self-hosted vLLM server as a Pipecat LLM service, with its load."""

from pipecat_hedge.vllm.errors import VLLMError
from pipecat_hedge.vllm.service import VLLMService, VLLMSettings

__all__ = [
    "VLLMError",
    "VLLMService",
    "VLLMSettings",
]
