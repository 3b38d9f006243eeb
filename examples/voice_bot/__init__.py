"""A voice bot over WebRTC with racing LLM providers: `make bot`."""
