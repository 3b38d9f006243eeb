"""The turn's report as Pipecat metrics."""

from __future__ import annotations

from pipecat.metrics.metrics import MetricsData

from pipecat_hedge.race.reports import TurnReport


class HedgeMetricsData(MetricsData):
    """A turn's report; sent in a ``MetricsFrame`` when metrics are enabled.

    Parameters:
        report: The turn's report. ``processor`` is the hedged service's name, ``model`` the
            winner's model.
    """

    report: TurnReport
