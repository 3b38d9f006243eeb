"""One turn as a race: a pure state machine, and the drivers that run it."""
