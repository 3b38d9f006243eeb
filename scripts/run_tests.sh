#!/bin/sh
# Runs the tests that `make test` excludes. Real-time tests mostly wait, so they run concurrently with the others.
# The no-harm tests need the whole machine, so they run alone at the end.
# Takes the interpreter and pytest's arguments; with arguments, everything runs sequentially.
# Failed tests are listed again at the end.
set -u

python="$1"
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi

logs=$(mktemp -d)
color=no
[ ! -t 1 ] || color=yes
failed=0
# Computed in virtual time, so that they use both cores.
{ "$python" -m pytest --color "$color" -n 2 -m "slow and not live and not realtime" || touch "$logs/slow_failed"; } |
    tee "$logs/slow"
[ ! -e "$logs/slow_failed" ] || failed=1
"$python" -m pytest --color "$color" -m realtime tests/live >"$logs/live" 2>&1 &
live=$!
"$python" -m pytest --color "$color" -m realtime --ignore tests/live --ignore tests/no_harm >"$logs/replay" 2>&1 &
replay=$!
trap 'kill "$live" "$replay" 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

{ "$python" -m pytest --color "$color" -n 2 --dist worksteal -m "live and not realtime" || touch "$logs/others_failed"; } | tee "$logs/others"
[ ! -e "$logs/others_failed" ] || failed=1
wait "$live" || failed=1
wait "$replay" || failed=1
cat "$logs/live" "$logs/replay"
{ "$python" -m pytest --color "$color" -m realtime tests/no_harm || touch "$logs/harm_failed"; } | tee "$logs/harm"
[ ! -e "$logs/harm_failed" ] || failed=1
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$logs/slow" "$logs/others" "$logs/live" "$logs/replay" "$logs/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$logs/slow" "$logs/others" "$logs/live" "$logs/replay" "$logs/harm"
fi
exit "$failed"
