"""Benchmarks: what hedging changes and costs (`bench`), what failures do to callers (`drill`)."""
