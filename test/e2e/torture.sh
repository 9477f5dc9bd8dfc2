#!/usr/bin/env bash
# The command's own torture, briefly: it keeps its promises, and notices when they are broken on purpose.
# Usage: torture.sh BUILD
set -euo pipefail
tool=$1/kvferry
failures=0

complain() {
    echo "torture: $*" >&2
    failures=$((failures + 1))
}

# keeps OPTIONS...: every promise is kept.
keeps() {
    local output status=0
    output=$("$tool" torture "$@" 2>&1) || status=$?
    [ "$status" -eq 0 ] || complain "\"$*\" ended with $status: $output"
    grep -E '^(BROKEN|Every promise|rooms|pages corrupted|aborted by decode)' <<<"$output" || true
}

# shows OPTIONS...: a promise is broken, and corrupted pages show it.
shows() {
    local output status=0
    output=$("$tool" torture --aborts 300 --json "$@" 2>&1) || status=$?
    [ "$status" -eq 1 ] || complain "\"$*\" ended with $status instead of 1: $output"
    grep -qE '"pages_corrupted": [1-9]' <<<"$output" || complain "\"$*\" corrupts nothing: $output"
}

status=0
"$tool" torture --faults kill-everybody 2>/dev/null || status=$?
[ "$status" -eq 2 ] || complain "an unknown fault ended with $status"
for transport in shm tcp; do
    keeps --duration 15 --transports $transport --seed 7
    keeps --aborts 1000 --transports $transport
    keeps --aborts 300 --peers stock --transports $transport
    shows --plant ack-early --transports $transport
    shows --fence off --transports $transport
done
[ "$failures" -eq 0 ] || exit 1
