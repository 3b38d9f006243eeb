"""Failure drills: providers break under a fleet of callers.

`scenarios` says what happens, `running` runs it, `worker` is one process of callers, `figures`
computes and checks what came of it, and `command` shows it.
"""

from pipecat_hedge.tools.bench.drill.redis_process import MISSING, RedisProcess, has_redis

__all__ = ["MISSING", "RedisProcess", "has_redis"]
