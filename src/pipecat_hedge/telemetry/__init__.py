"""Metrics, traces, SLOs and the live feed."""
