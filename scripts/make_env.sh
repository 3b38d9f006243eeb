#!/bin/sh
# Creates the virtual environment with everything that the bot and the checks need.
# Takes PYTHON (the interpreter, 3.11 or newer) and VENV (the folder) from the environment.
set -eu

fail() {
    printf 'pipecat-hedge: %s\n' "$*" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null 2>&1 ||
    fail "no '$PYTHON' found. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old: Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python3.11"

# Debian keeps the part that makes environments in a package of its own.
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
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'

# A browser, for the test of the bot's page; nothing else needs one.
has_browser() {
    for name in chromium chromium-browser google-chrome; do
        ! command -v "$name" >/dev/null 2>&1 || return 0
    done
    return 1
}

if ! has_browser && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } || true
fi
has_browser ||
    printf 'pipecat-hedge: no Chromium, so the test of the page is skipped. Run: sudo apt-get install chromium\n' >&2

# A Prometheus, for the tests of alerts and of the dashboard; nothing else needs one.
if ! command -v promtool >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; } || true
fi
command -v promtool >/dev/null 2>&1 ||
    printf 'pipecat-hedge: no Prometheus, so the tests of alerts are skipped. Run: sudo apt-get install prometheus\n' >&2

# A Redis, for the tests of what machines share; nothing else needs one.
if ! command -v redis-server >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; } || true
fi
command -v redis-server >/dev/null 2>&1 ||
    printf 'pipecat-hedge: no Redis, so its tests are skipped. Run: sudo apt-get install redis-server\n' >&2
