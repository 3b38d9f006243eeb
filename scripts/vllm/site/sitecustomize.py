"""Keeps vLLM's processes from spinning, where a machine has few cores.

They wait for each other by calling ``sched_yield`` in a loop, which on two cores keeps every other
process off the processor for seconds. A short sleep waits just as well.
"""

import os
import time

os.sched_yield = lambda: time.sleep(20e-6)
