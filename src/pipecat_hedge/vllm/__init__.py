"""A vLLM server of one's own, as a Pipecat LLM service."""
