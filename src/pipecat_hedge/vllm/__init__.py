"""A vLLM server of one's own, as a Pipecat LLM service that reads the server's load."""

from pipecat_hedge.vllm.errors import VLLMError
from pipecat_hedge.vllm.service import VLLMService, VLLMSettings

__all__ = [
    "VLLMError",
    "VLLMService",
    "VLLMSettings",
]
