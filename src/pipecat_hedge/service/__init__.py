"""The hedged LLM service: one processor in the pipeline, several providers behind it."""
