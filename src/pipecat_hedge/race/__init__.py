"""One turn as a race: a pure state machine, and its drivers in real and virtual time."""
