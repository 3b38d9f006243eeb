"""Examples that run from the root of the repository."""
