"""What the caller hears: fillers, and where the time of a turn went."""
