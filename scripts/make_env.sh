#!/bin/sh
# Creates the virtual environment with one of the extras: demo for the bot, dev for the checks.
# Takes the extra as its argument, and PYTHON (the interpreter, 3.11 or newer) and VENV (the folder) from the environment.
set -eu

fail() {
    printf 'pipecat-hedge: %s\n' "$*" >&2
    exit 1
}

folder=$VENV
while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
[ -w "$folder" ] ||
    fail "no permission to write to $(cd "$folder" && pwd). Name a folder of yours for the environment: make VENV=/path/to/folder"

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
printf 'pipecat-hedge: installing into %s (under a minute the first time)\n' "$VENV"
# pip's lines become one that counts: in a terminal it is overwritten, elsewhere there is one for every 20 packages.
# Bytecode is written when a module is first imported: most are never.
failed=$(mktemp)
{
    "$VENV/bin/python" -m pip install --no-compile --progress-bar off --disable-pip-version-check \
        -c constraints.txt -e ".[$1]" 2>"$failed.log" || echo failed >"$failed"
} | awk -v terminal="$([ -t 1 ] && echo 1 || echo 0)" '
    /^Collecting / {
        count++
        if (terminal) printf "\r\033[K%d packages: %s", count, $2
        else if (count % 20 == 0) printf "%d packages: %s\n", count, $2
    }
    /^Installing collected packages/ { printf "%sunpacking %d packages\n", terminal ? "\r\033[K" : "", count }
    { fflush() }
'
if [ -s "$failed" ]; then
    cat "$failed.log" >&2
    rm -f "$failed" "$failed.log"
    fail "pip could not install the packages; its messages are above"
fi
rm -f "$failed" "$failed.log"
