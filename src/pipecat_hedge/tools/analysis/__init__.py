"""What turn logs say (`report`), and what another policy would have done (`whatif`)."""

from pipecat_hedge.tools.analysis.comparison_rules import at_quantile, single_r
from pipecat_hedge.tools.analysis.reading_options import add_reading_options, read_as_asked
from pipecat_hedge.tools.analysis.replay_policies import draws_of
from pipecat_hedge.tools.analysis.report import Report, report_of
from pipecat_hedge.tools.analysis.turn_log import read_logs

__all__ = [
    "Report",
    "add_reading_options",
    "at_quantile",
    "draws_of",
    "read_as_asked",
    "read_logs",
    "report_of",
    "single_r",
]
