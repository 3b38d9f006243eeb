#!/bin/sh
# Runs the tests that `make test` leaves out. Those that last as long as the calls they make, and mostly wait, run beside the others.
# Those that compare callers side by side have the machine to themselves, at the end: some of them burn it.
# Takes the interpreter and pytest's arguments; with any of these, everything runs one after the other.
# What failed is named once more at the very end, where whoever sees only the last lines finds it.
set -u

python="$1"
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

told=$(mktemp -d)
color=no
[ ! -t 1 ] || color=yes
"$python" -m pytest --color "$color" -m realtime tests/live >"$told/live" 2>&1 &
live=$!
"$python" -m pytest --color "$color" -m realtime --ignore tests/live --ignore tests/no_harm >"$told/replay" 2>&1 &
replay=$!
trap 'kill "$live" "$replay" 2>/dev/null; rm -rf "$told"' EXIT
trap 'exit 130' INT TERM

failed=0
{ "$python" -m pytest --color "$color" -m "(live or slow) and not realtime" || touch "$told/others_failed"; } | tee "$told/others"
[ ! -e "$told/others_failed" ] || failed=1
wait "$live" || failed=1
wait "$replay" || failed=1
cat "$told/live" "$told/replay"
{ "$python" -m pytest --color "$color" -m realtime tests/no_harm || touch "$told/harm_failed"; } | tee "$told/harm"
[ ! -e "$told/harm_failed" ] || failed=1
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$told/others" "$told/live" "$told/replay" "$told/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$told/others" "$told/live" "$told/replay" "$told/harm"
fi
exit "$failed"
