#!/bin/sh
# Runs the tests. Those that last as long as the calls they make, and mostly wait, run beside the others.
# Takes the interpreter and pytest's arguments; with any of these, everything runs one after the other.
set -u

python="$1"
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

told=$(mktemp)
"$python" -m pytest -m realtime >"$told" 2>&1 &
calls=$!
trap 'kill "$calls" 2>/dev/null; rm -f "$told"' EXIT
trap 'exit 130' INT TERM

"$python" -m pytest -m "not realtime"
others_failed=$?
wait "$calls"
calls_failed=$?
cat "$told"
[ "$others_failed" = 0 ] && [ "$calls_failed" = 0 ]
