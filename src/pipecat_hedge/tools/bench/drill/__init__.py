"""Failure drills: providers break under a fleet of callers.

`scenarios` says what happens, `running` runs it, `worker` is one process of callers, `figures`
computes and checks what came of it, and `command` shows it.
"""
