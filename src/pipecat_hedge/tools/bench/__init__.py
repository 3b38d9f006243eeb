"""Benchmarks and drills."""
