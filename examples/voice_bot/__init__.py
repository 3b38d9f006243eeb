"""A voice bot whose LLM providers race, over WebRTC: `make bot`."""
