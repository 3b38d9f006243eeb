"""``pipecat-hedge top``: running bots, live in a terminal."""
