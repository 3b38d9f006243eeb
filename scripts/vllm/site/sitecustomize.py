"""Stops vLLM's processes from busy-waiting on machines with few cores.

They wait for each other by calling ``sched_yield`` in a loop, which on two cores starves other
processes for seconds. A short sleep works equally well.
"""

import os
import time

os.sched_yield = lambda: time.sleep(20e-6)
