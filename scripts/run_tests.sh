#!/bin/sh
# Runs the tests that `make test` excludes. Those over sockets mostly wait, so four of them run at a time.
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
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM
color=no
[ ! -t 1 ] || color=yes
failed=0
alone=tests/no_harm/test_side_by_side.py

run() { # NAME, pytest's arguments
    log="$logs/$1"
    shift
    { "$python" -m pytest --color "$color" "$@" || touch "$log.failed"; } | tee "$log"
    [ ! -e "$log.failed" ] || failed=1
}

# Computed in virtual time, so that they use both cores.
run slow -n 2 -m "slow and not live and not realtime"
run live -n 4 --dist worksteal -m "live or realtime" --ignore "$alone"
run harm "$alone"
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$logs/slow" "$logs/live" "$logs/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$logs/slow" "$logs/live" "$logs/harm"
fi
exit "$failed"
