#!/bin/sh
# Runs the fast tests against the newest Pipecat on the index instead of the pinned one, in an environment of its own.
# What it needs comes with it; all else stays at the tested versions. What it deprecates is a warning, not a failure.
# Takes pytest's arguments, and PYTHON (the interpreter) and VENV (the folder) from the environment.
set -eu

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
bin="$VENV/bin"
"$bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
"$bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pipecat-ai "pipecat-ai[anthropic,deepgram,runner,webrtc]"
pinned=$(sed -n 's/^pipecat-ai==//p' constraints.txt)
newest=$("$bin/python" -c 'from importlib.metadata import version; print(version("pipecat-ai"))')
said="pipecat-ai $newest from the index (tested: $pinned)"
echo "$said"
status=0
"$bin/python" -m pytest -n 2 -m "not live and not realtime and not slow" -W default::DeprecationWarning "$@" || status=$?
echo "$said: $([ $status = 0 ] && echo passes || echo fails)"
exit $status
