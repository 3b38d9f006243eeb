"""Command-line tools: simulator, replay, analysis, benchmarks and a terminal view."""
