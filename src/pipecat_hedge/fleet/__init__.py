"""Sharing statistics between machines, through Redis."""
