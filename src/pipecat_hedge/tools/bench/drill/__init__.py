"""Failure drills: a fleet on this machine, its providers' bad hours, and what callers noticed."""
