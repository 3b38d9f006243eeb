#!/bin/sh
# Runs the tests that `make test` excludes. Those over sockets mostly wait, so four of them run at a time, and
# the long simulations, whose time is virtual, use what processor time they leave.
# The no-harm tests compare callers in one process, so two of them run at a time, at the end.
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

# The lowest priority: the clocks of the others are real.
nice -n 19 "$python" -m pytest --color "$color" -n 2 --timeout 600 -m "slow and not live and not realtime" \
    $(marked slow) >"$logs/slow" 2>&1 &
slow=$!
trap 'kill "$slow" 2>/dev/null; exit 130' INT TERM
run live -n 4 --dist worksteal -m "live or realtime" $(marked 'live|realtime')
wait "$slow" || failed=1
cat "$logs/slow"
run harm -n 2 --maxschedchunk 1 "$alone"
if [ "$failed" = 1 ]; then
    printf '\nFailed:\n'
    colors=$(printf '\033')'\[[0-9;]*m'
    sed "s/$colors//g" "$logs/slow" "$logs/live" "$logs/harm" | grep -E '^(FAILED|ERROR) ' ||
        tail -n 5 "$logs/slow" "$logs/live" "$logs/harm"
fi
exit "$failed"
