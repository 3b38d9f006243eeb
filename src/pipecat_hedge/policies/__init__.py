"""Decisions without I/O: each policy takes facts and the time, and returns a value."""
