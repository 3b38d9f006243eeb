"""The former place of ``SloBoard``, which is in ``slo_tracker``."""

from pipecat_hedge.telemetry.slo_tracker import SloBoard

__all__ = ["SloBoard"]
