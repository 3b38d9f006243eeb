#!/bin/sh
# Creates the virtual environment with one of the extras: demo for the bot, dev for the checks.
# Takes the extra as its argument, and PYTHON (the interpreter, 3.11 or newer) and VENV (the folder) from the environment.
set -eu

fail() {
    printf 'pipecat-hedge: %s\n' "$*" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null 2>&1 ||
    fail "no '$PYTHON' found. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old: Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python3.11"

# Debian packages venv separately.
if ! "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -qq && apt-get install -y -qq python3-venv
    else
        fail "Python's venv module is missing. Run: sudo apt-get install python3-venv"
    fi
fi

"$PYTHON" -c 'import os, sys; sys.exit(not os.path.exists(os.path.join(sys.argv[1], "bin", "python")))' "$VENV" ||
    "$PYTHON" -m venv "$VENV"
printf 'pipecat-hedge: installing into %s (about a minute the first time)\n' "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$1]"
