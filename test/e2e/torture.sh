#!/usr/bin/env bash
# The command's own torture, briefly: it keeps its promises, injects what it was asked to in the order that the seed
# gives, and notices when promises are broken on purpose.
# Usage: torture.sh BUILD
set -euo pipefail
tool=$1/kvferry
failures=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

complain() {
    echo "torture: $*" >&2
    failures=$((failures + 1))
}

# has REPORT CONDITION: the condition, in Python, holds for the JSON document r.
has() {
    python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$1" "$2"
}

# keeps NAME OPTIONS...: every promise is kept, and each kind of fault was there.
keeps() {
    local report=$folder/$1 status=0
    shift
    "$tool" torture --json "$@" >"$report" || status=$?
    [ "$status" -eq 0 ] || complain "\"$*\" ended with $status: $(cat "$report")"
    has "$report" 'r["kept"] and r["rooms"] > 0 and r["bytes_verified"] > 0' ||
        complain "\"$*\" has not looked at anything: $(cat "$report")"
    has "$report" 'all(fault["injected"] > 0 for fault in r["faults"].values())' ||
        complain "\"$*\" leaves faults out: $(cat "$report")"
    echo "$*: $(grep -E '"(rooms|aborts|bytes_verified|kept)"' "$report" | tr -d '\n')"
}

# shows OPTIONS...: a promise is broken, and corrupted pages show it.
shows() {
    local status=0
    "$tool" torture --aborts 300 --json "$@" >"$folder/shows" || status=$?
    [ "$status" -eq 1 ] || complain "\"$*\" ended with $status instead of 1: $(cat "$folder/shows")"
    has "$folder/shows" 'r["pages_corrupted"] > 0' || complain "\"$*\" corrupts nothing: $(cat "$folder/shows")"
}

# ends STATUS OPTIONS...
ends() {
    local expected=$1 status=0
    shift
    "$tool" torture --duration 1 "$@" >/dev/null 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || complain "\"$*\" ended with $status instead of $expected"
}

# A transfer that stalls for longer than a room may take is held against both sides.
hangs() {
    local status=0
    "$tool" torture --faults slow --room-limit 1 --set waiting_timeout=3s --duration 4 --json >"$folder/hangs" ||
        status=$?
    [ "$status" -eq 1 ] || complain "a room that hangs ended with $status instead of 1: $(cat "$folder/hangs")"
    for side in sender receiver; do
        has "$folder/hangs" "any('the $side of room' in text for text in r['broken'])" ||
            complain "nobody notices the $side that hangs: $(cat "$folder/hangs")"
    done
}

# await_processes PID COUNT: until it has started so many.
await_processes() {
    local -A seen=()
    local try child children
    for ((try = 0; try < 600 && ${#seen[@]} < $2; try++)); do
        read -ra children <"/proc/$1/task/$1/children" || true
        for child in "${children[@]}"; do
            seen[$child]=1
        done
        sleep 0.05
    done
}

# interrupted REPORT OPTIONS...: it is wound up at the first signal, after its second new process, and says so.
interrupted() {
    local report=$1 status=0 run
    shift
    "$tool" torture --duration 60 --json "$@" >"$report" &
    run=$!
    await_processes $run 5
    kill -INT $run
    wait $run || status=$?
    [ "$status" -eq 0 ] || complain "the interrupted run ended with $status: $(cat "$report")"
    has "$report" 'r["interrupted"] and r["kept"] and r["rooms"] > 0 and r["seconds"] < 50' ||
        complain "the interrupted run isn't wound up: $(cat "$report")"
}

# common_start REPORT REPORT: how many faults both have had, if they were the same ones; else "different".
common_start() {
    python3 - "$@" <<'END'
import json, sys
first, second = (json.load(open(path))["schedule"] for path in sys.argv[1:])
common = min(len(first), len(second))
print(common if first[:common] == second[:common] else "different")
END
}

ends 2 --faults kill-everybody
ends 2 --faults all --aborts 10
ends 2 --set no_such_setting=1
ends 3 --transports no_such_transport
for transport in shm tcp; do
    keeps all-$transport --duration 18 --transports $transport --seed 282
    keeps aborts --aborts 1000 --transports $transport
    keeps stock --aborts 300 --peers stock --transports $transport
    shows --plant ack-early --transports $transport
    shows --fence off --transports $transport
done
hangs
start=$(common_start "$folder/all-shm" "$folder/all-tcp")
if [ "$start" = different ] || [ "$start" -lt 3 ]; then
    complain "the same seed gave two schedules, or too short ones: $start"
fi
interrupted "$folder/other" --seed 66
start=$(common_start "$folder/all-shm" "$folder/other")
[ "$start" = different ] || complain "another seed gave the same $start faults"
[ "$failures" -eq 0 ] || exit 1
