"""Failure drills: simulated providers fail under a fleet of callers.

`scenarios` defines the drills, `running` runs them, and `command` computes, checks and shows the
results.
"""
