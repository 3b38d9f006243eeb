"""Benchmarks (`bench`) and failure drills (`drill`)."""

from pipecat_hedge.tools.bench.percentiles import percentile
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline, run_worker

__all__ = ["TimedPipeline", "percentile", "run_worker"]
