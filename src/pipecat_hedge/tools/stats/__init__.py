"""Exports what was learned."""
