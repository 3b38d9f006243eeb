"""Analyses turn logs: ``report`` shows what callers waited for, ``whatif`` tries other policies."""
