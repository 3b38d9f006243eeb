"""The former place of ``SloStatus``, which is in ``slo_tracker``."""

from pipecat_hedge.telemetry.slo_tracker import WINDOWS_SECS, SloStatus, WindowCount

__all__ = ["WINDOWS_SECS", "SloStatus", "WindowCount"]
