"""Race several LLM providers in a Pipecat pipeline and stream the first usable answer."""
