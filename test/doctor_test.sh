#!/usr/bin/env bash
# Drives `kvferry doctor`: fine here, each thing that can be wrong, and a transfer between two of it.
# Usage: doctor_test.sh SOURCE_ROOT BUILD_ROOT
set -euo pipefail
tool=$2/kvferry
work=$(mktemp -d)
started=()
failures=0
scene=

cleanup() {
    for process in "${started[@]}"; do
        kill -KILL "$process" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT

complain() {
    echo "doctor: $scene: $*" >&2
    failures=$((failures + 1))
}

# doctor EXPECTED_STATUS PATTERN ARGUMENT...: what it prints, as one line, must match. NAME=VALUE before the
# options goes into the environment.
doctor() {
    local expected=$1 pattern=$2 status=0 output environment=()
    shift 2
    while [ $# -gt 0 ] && [[ $1 != --* ]]; do
        environment+=("$1")
        shift
    done
    output=$(env "${environment[@]}" timeout 100 "$tool" doctor "$@" 2>&1 </dev/null) || status=$?
    output=$(tr -s ' \n' ' ' <<<"$output")
    [ "$status" -eq "$expected" ] || complain "\"$*\" ended with $status instead of $expected: $output"
    grep -qe "$pattern" <<<"$output" || complain "\"$*\" doesn't say \"$pattern\": $output"
}

# wait_until COMMAND...: at most 30 s
wait_until() {
    local waited=0
    until "$@"; do
        sleep 0.05
        waited=$((waited + 1))
        [ "$waited" -lt 600 ] || { complain "in vain: $*"; return 0; }
    done
}

# start NAME PATTERN ARGUMENT...: waits until it prints the pattern; its output is in $work/NAME.
declare -A pid
mkfifo "$work/input"
exec {input}<>"$work/input" # never ends
start() {
    local name=$1 pattern=$2
    shift 2
    "$tool" "$@" >"$work/$name" 2>&1 <&"$input" &
    pid[$name]=$!
    started+=("$!")
    wait_until grep -qe "$pattern" "$work/$name"
}

# stop NAME EXPECTED_STATUS
stop() {
    local status=0
    kill -TERM "${pid[$1]}"
    wait "${pid[$1]}" || status=$?
    [ "$status" -eq "$2" ] || complain "$1 ended with $status instead of $2: $(cat "$work/$1")"
}

here=(--set advertise_address=127.0.0.1)

scene="options and settings"
doctor 0 'Exit status: 0 fine' --help
doctor 2 'nearest is --serve' --serv
doctor 2 'needs --serve' --listen 127.0.0.1:0
doctor 2 'leave out --peer' --serve --peer 127.0.0.1:1
doctor 2 'not HOST:PORT' --peer here
doctor 2 'nearest is waiting_timeout' --set waiting_timout=3s
doctor 2 'WAITING_TIMEOUT' KVFERRY_WAITING_TIMEOUT=soon --json
doctor 3 'listen on' --serve --listen 192.0.2.77:0

scene="this machine"
doctor 0 'problems: 0' "${here[@]}"
doctor 0 'UCX version [1-9][0-9]*\.[0-9]*\.[0-9]* (/.*libucp.*built with [1-9]' "${here[@]}"
doctor 0 'fine ZeroMQ 4\.' "${here[@]}"
doctor 0 'fine UCX transports .*tcp (.*limited by the setting transports' "${here[@]}" --set transports=tcp,self
doctor 0 'fine control port any free one, now [1-9]' "${here[@]}"
doctor 0 'fine bootstrap server .*nothing to ask' "${here[@]}"
doctor 0 'warning advertised address .*127.0.0.1 port [1-9].*loopback.*-> .*set advertise_address' "${here[@]}"

scene="UCX"
doctor 1 'problem UCX transports .*limited by the setting transports.*-> Allow more' --set transports=nothing
doctor 1 'problem UCX transports .*limited by UCX_TLS' UCX_TLS=nothing
doctor 0 'warning UCX transports no transport to another machine' --set transports=posix,sysv,self "${here[@]}"
doctor 0 'warning UCX environment .*UCX_RNDV_THRESH other than inf' UCX_RNDV_THRESH=8 "${here[@]}"
doctor 0 'warning UCX environment .*overrules UCX_TLS' UCX_TLS=tcp "${here[@]}" --set transports=tcp,self

scene="addresses"
doctor 1 'problem advertised address .*192\.0\.2\.77' --set advertise_address=192.0.2.77
doctor 1 'problem control port .*-> ' --set control_address=192.0.2.77

scene="limits"
(ulimit -n 200 && exec "$tool" doctor "${here[@]}") >"$work/limits" 2>&1 || complain "few files: $(cat "$work/limits")"
grep -q '^warning  open files  *200$' "$work/limits" || complain "few files: $(cat "$work/limits")"

scene="JSON"
"$tool" doctor --json "${here[@]}" >"$work/json" || complain "ended with $?"
if command -v python3 >/dev/null; then
    python3 - "$work/json" <<'END' || complain "not as documented: $(cat "$work/json")"
import json, sys
found = json.load(open(sys.argv[1]))
assert found["state"] in ("ok", "warning"), found["state"]
assert len(found["checks"]) == 12 and found["kvferry"] and found["ucx"] and found["machine"]
for check in found["checks"]:
    assert sorted(check) == ["advice", "name", "state", "text"] and check["text"], check
    assert check["state"] in ("ok", "warning") and (check["state"] == "ok") == (check["advice"] == ""), check
END
else
    grep -q '"name": "zeromq"' "$work/json" || complain "no check in $(cat "$work/json")"
fi
doctor 1 '"state": "problem".*"name": "bootstrap_server", "state": "problem"' --json --set bootstrap_address=127.0.0.1:1

scene="bootstrap server"
doctor 1 'problem bootstrap server 127.0.0.1:1: nobody listens.*-> Start' --set bootstrap_address=127.0.0.1:1
doctor 1 'problem bootstrap server "localhost" names no port -> Write host:port' --set bootstrap_address=localhost
start bootstrap listening bootstrap --listen 127.0.0.1:0
bootstrap=$(sed -n 's/^listening on //p' "$work/bootstrap")
port=${bootstrap##*:}
doctor 0 "fine bootstrap server $bootstrap: kvferry's .*no prefill rank" "${here[@]}" --set "bootstrap_address=$bootstrap"
doctor 1 "problem control port .*$port is taken.*-> Stop" "${here[@]}" --set "control_port=$port"
doctor 1 'problem transfer .*nothing was sent.*-> Run .kvferry doctor --serve' --peer "$bootstrap"
half_registered() {
    "$tool" doctor "${here[@]}" --set "bootstrap_address=$bootstrap" | tr -s ' \n' ' ' |
        grep -q "warning bootstrap server $bootstrap: .* 1 of 2 prefill ranks have not registered"
}
start prefill ready prefill --tp 2 --bootstrap "$bootstrap" "${here[@]}"
wait_until half_registered
doctor 1 'problem transfer .*nothing was sent' --peer "$bootstrap"
kill -STOP "${pid[bootstrap]}"
doctor 1 "problem bootstrap server .*doesn't answer.*-> What listens there hangs" --set "bootstrap_address=$bootstrap"
kill -CONT "${pid[bootstrap]}"
stop prefill 0
stop bootstrap 0

scene="transfer"
start serve --peer doctor --serve --listen 127.0.0.1:0 "${here[@]}"
peer=$(sed -n 's/^on the other machine: kvferry doctor --peer //p' "$work/serve")
right='fine transfer 2097216 bytes from 127.0.0.1 port [1-9][0-9]*, every one right: [0-9]'
doctor 0 "$right" "${here[@]}" --peer "$peer"
doctor 0 "$right" "${here[@]}" --peer "$peer" --set transports=tcp,self
doctor 0 '"name": "peer", "state": "ok"' "${here[@]}" --peer "$peer" --json
doctor 0 "fine bootstrap server .*tp 1, dp 1; ranks registered: 1, all kvferry" "${here[@]}" --set "bootstrap_address=$peer"
[ "$(grep -c '^sent 2097216 bytes$' "$work/serve")" -eq 6 ] || complain "served $(cat "$work/serve")"
kill -STOP "${pid[serve]}"
doctor 1 "problem transfer .*doesn't answer" --peer "$peer"
kill -CONT "${pid[serve]}"
doctor 0 "$right" "${here[@]}" --peer "$peer"
stop serve 0
doctor 1 'problem transfer .*nobody listens there' --peer "$peer"

scene="a prefill rank that isn't the doctor's"
start bootstrap listening bootstrap --listen 127.0.0.1:0
bootstrap=$(sed -n 's/^listening on //p' "$work/bootstrap")
start prefill ready prefill --bootstrap "$bootstrap" "${here[@]}"
registered() {
    "$tool" doctor "${here[@]}" --set "bootstrap_address=$bootstrap" | grep -q 'tp 1, dp 1'
}
wait_until registered
doctor 1 'problem transfer 127.0.0.1 port [1-9].*timeout.*-> See that it is .kvferry doctor --serve' \
    --peer "$bootstrap" --timeout 1
stop prefill 0
stop bootstrap 0

[ "$failures" -eq 0 ] || { echo "doctor: $failures complaints" >&2; exit 1; }
echo "doctor: each check finds what is wrong, and every byte of the transfers"
