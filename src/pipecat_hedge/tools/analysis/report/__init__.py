"""What turn logs say: what callers heard, who was slow, what hedging bought, what would help."""

from pipecat_hedge.tools.analysis.report.figures import Figures, figures_of
from pipecat_hedge.tools.analysis.report.reading import read_logs
from pipecat_hedge.tools.analysis.report.turns import Log, LoggedTurn

__all__ = ["Figures", "Log", "LoggedTurn", "figures_of", "read_logs"]
