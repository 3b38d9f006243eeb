#!/bin/sh
# Installs the system packages for `make test-all`, on Debian as root. Tests whose package is missing
# are skipped with a message.
set -u

missing=""
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || missing="$missing chromium"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
printf 'pipecat-hedge: tests that need them are skipped, not installed:%s. Run: sudo apt-get install%s\n' "$missing" "$missing" >&2
