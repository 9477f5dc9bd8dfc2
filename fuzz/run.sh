#!/usr/bin/env bash
# Runs fuzzers for so many seconds each, from their corpora in the tree and from what earlier runs found, which stays
# in BUILD_FOLDER/found. Fails when one of them finds a fault; the input is then in BUILD_FOLDER/faults.
# Usage: run.sh BUILD_FOLDER SECONDS [NAME...]      (request for fuzz_request; none: all of them)
# Environment: JOBS, how many run at once (2)
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
duration=$2
shift 2
names=("$@")
if [ ${#names[@]} = 0 ]; then
    mapfile -t names < <(basename -s .c fuzz/fuzz_*.c | sed 's/^fuzz_//')
fi

# The first folder is where libFuzzer puts what is new.
fuzz() { # fuzz BUILD_FOLDER SECONDS NAME
    local program=$1/fuzz/fuzz_$3 found=$1/found/$3 log=$1/found/$3.log
    [ -x "$program" ] || { echo "fuzz: there is no $program"; return 1; }
    mkdir -p "$found" "$1/faults" "fuzz/corpus/$3"
    if "$program" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$1/faults/$3-" "$found" "fuzz/corpus/$3" >"$log" 2>&1; then
        echo "fuzz $3: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs," \
            "$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log") a second, no fault"
    else
        tail -n 60 "$log"
        echo "fuzz $3: FAILED; the whole log is $log"
        return 1
    fi
}

export -f fuzz
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-2}" -I NAME bash -c 'fuzz "$@"' - "$build" "$duration" NAME
