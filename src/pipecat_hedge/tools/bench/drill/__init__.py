"""Failure drills: simulated providers fail under a fleet of callers.

`scenarios` defines the drills, `running` runs them, `worker` is one process of callers, `figures`
computes and checks the results, and `command` prints them.
"""

from pipecat_hedge.tools.bench.drill.redis_process import MISSING, RedisProcess, has_redis

__all__ = ["MISSING", "RedisProcess", "has_redis"]
