#!/bin/sh
# Runs the tests. Those that last as long as the calls they make, and mostly wait, run beside the others.
# Takes the interpreter and pytest's arguments; with any of these, everything runs one after the other.
set -u

python="$1"
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

told=$(mktemp -d)
"$python" -m pytest -m realtime tests/live >"$told/live" 2>&1 &
live=$!
"$python" -m pytest -m realtime --ignore tests/live >"$told/replay" 2>&1 &
replay=$!
trap 'kill "$live" "$replay" 2>/dev/null; rm -rf "$told"' EXIT
trap 'exit 130' INT TERM

"$python" -m pytest -m "not realtime"
others_failed=$?
wait "$live"
live_failed=$?
wait "$replay"
replay_failed=$?
cat "$told/live" "$told/replay"
[ "$others_failed" = 0 ] && [ "$live_failed" = 0 ] && [ "$replay_failed" = 0 ]
