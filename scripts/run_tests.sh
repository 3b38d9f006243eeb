#!/bin/sh
# Runs the tests that `make test` excludes. Real-time tests mostly wait, so three run at a time, beside the others.
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
"$python" -m pytest --color "$color" -n 3 --dist worksteal -m realtime --ignore tests/no_harm >"$logs/realtime" 2>&1 &
realtime=$!
trap 'kill "$realtime" 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

{ "$python" -m pytest --color "$color" -n 2 --dist worksteal -m "live and not realtime" || touch "$logs/others_failed"; } | tee "$logs/others"
[ ! -e "$logs/others_failed" ] || failed=1
wait "$realtime" || failed=1
cat "$logs/realtime"
{ "$python" -m pytest --color "$color" -m realtime tests/no_harm || touch "$logs/harm_failed"; } | tee "$logs/harm"
[ ! -e "$logs/harm_failed" ] || failed=1
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$logs/slow" "$logs/others" "$logs/realtime" "$logs/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$logs/slow" "$logs/others" "$logs/realtime" "$logs/harm"
fi
exit "$failed"
