#!/bin/sh
# Installs the system packages that `make test-all` uses, where it may: on Debian, as root. Without one
# of them the tests that need it are skipped, and each says so.
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
