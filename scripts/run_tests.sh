#!/bin/sh
# Runs the tests that `make test` excludes: those over sockets, two at a time; then the long
# simulations, whose time is virtual; then the no-harm tests, which compare callers in one process, one by one.
# Nothing runs beside those with real clocks: on a slow machine their event loops would be late.
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
color=no
[ ! -t 1 ] || color=yes
failed=0
alone=tests/no_harm/test_side_by_side.py

marked() { # the files with one of these markers: to collect all takes each worker 4 s longer
    grep -rlE "mark\.($1)\b" tests --include='test_*.py' --exclude-dir=vllm_server | grep -vx "$alone" | sort
}

run() { # NAME, pytest's arguments
    log="$logs/$1"
    shift
    { "$python" -m pytest --color "$color" "$@" || touch "$log.failed"; } | tee "$log"
    [ ! -e "$log.failed" ] || failed=1
}

run live -n 2 --dist worksteal -m "live or realtime" $(marked 'live|realtime')
run slow -n 2 --timeout 600 -m "slow and not live and not realtime" $(marked slow)
run harm "$alone"
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$logs/live" "$logs/slow" "$logs/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$logs/live" "$logs/slow" "$logs/harm"
fi
exit "$failed"
