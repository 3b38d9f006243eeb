"""Compares this library with others, for slow and failing providers: `make benchmarks`."""
