"""Turn logs: what would other policies have done, and what did callers hear."""
