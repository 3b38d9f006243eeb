"""Compares what others offer for slow and failing providers with this library: `make benchmarks`."""
