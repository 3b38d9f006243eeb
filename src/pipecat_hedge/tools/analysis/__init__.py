"""What turn logs say (`report`), and what another policy would have done (`whatif`)."""

from pipecat_hedge.tools.analysis.comparison_rules import at_quantile, single_r
from pipecat_hedge.tools.analysis.report import Report, report_of
from pipecat_hedge.tools.analysis.turn_log import read_logs

__all__ = ["Report", "at_quantile", "read_logs", "report_of", "single_r"]
