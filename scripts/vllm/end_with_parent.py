"""Runs a command until it ends, or until the parent process does.

The parent holds the other end of standard input, which the kernel closes however it ends.
(`PR_SET_PDEATHSIG` would end the command with the *thread* that started it.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

STOP_SECS = 20


def main() -> int:
    """Run the command in the arguments; returns its exit status."""
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: command.terminate())

    def watch() -> None:
        sys.stdin.buffer.read()
        command.terminate()
        try:
            command.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(0, signal.SIGKILL)  # all of its processes, and this one

    threading.Thread(target=watch, daemon=True).start()
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
