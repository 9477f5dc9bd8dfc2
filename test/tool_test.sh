#!/usr/bin/env bash
# Drives the command as its users do: options and exit statuses, then a bootstrap server, a prefill and a decode
# worker over pipes with JSON lines.
# Usage: tool_test.sh SOURCE_ROOT BUILD_ROOT
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
    echo "tool: $scene: $*" >&2
    failures=$((failures + 1))
}

# run EXPECTED_STATUS PATTERN COMMAND...: PATTERN must be in what it prints.
run() {
    local expected=$1 pattern=$2 status=0 output
    shift 2
    output=$("$@" 2>&1 </dev/null) || status=$?
    [ "$status" -eq "$expected" ] || complain "\"$*\" ended with $status instead of $expected: $output"
    grep -qe "$pattern" <<<"$output" || complain "\"$*\" doesn't say \"$pattern\": $output"
}

# start NAME COMMAND...: its input and output become the descriptors in to[NAME] and from[NAME].
declare -A to from pid
start() {
    local name=$1 input output
    shift
    mkfifo "$work/$name.in" "$work/$name.out"
    "$@" <"$work/$name.in" >"$work/$name.out" 2>"$work/$name.err" &
    pid[$name]=$!
    started+=("$!")
    exec {input}>"$work/$name.in" {output}<"$work/$name.out"
    to[$name]=$input
    from[$name]=$output
    rm "$work/$name.in" "$work/$name.out"
}

tell() {
    printf '%s\n' "$2" >&"${to[$1]}"
}

# answer NAME PATTERN: the next line must match the (basic) pattern; it is left in $line.
line=
answer() {
    line=
    IFS= read -r -t 60 line <&"${from[$1]}" || complain "$1 is silent: $(cat "$work/$1.err")"
    grep -qe "$2" <<<"$line" || complain "$1 answered \"$line\", which lacks \"$2\""
}

# either WORKER PATTERN PATTERN: two answers, in either order.
either() {
    local first
    answer "$1" ''
    first=$line
    answer "$1" ''
    grep -qe "$2" <<<"$first"$'\n'"$line" || complain "$1 answered nothing with \"$2\": $first $line"
    grep -qe "$3" <<<"$first"$'\n'"$line" || complain "$1 answered nothing with \"$3\": $first $line"
}

# failed WORKER PATTERN: the room's failure, and what becomes of its pages, in the same line or one of its own.
failed() {
    answer "$1" "\"state\":\"failed\".*"
    grep -qe "$2" <<<"$line" || complain "$1 answered \"$line\", which lacks \"$2\""
    if grep -q '"safety":"in use","proof":"none"' <<<"$line"; then
        answer "$1" '^{"room":[0-9]*,"settled":true,"safety":"safe","proof":"[a-z ]*","settled_ns":[1-9][0-9]*}$'
    fi
    grep -qe '"safety":"safe","proof":"[a-z]' <<<"$line" || complain "$1: the pages are not safe: $line"
    grep -qe '"proof":"none"' <<<"$line" && complain "$1: safe without a proof: $line"
    return 0
}

# finish NAME EXPECTED_STATUS: ends its input and waits for it.
finish() {
    local status=0
    exec {to[$1]}>&-
    wait "${pid[$1]}" || status=$?
    exec {from[$1]}<&-
    [ "$status" -eq "$2" ] || complain "$1 ended with $status instead of $2: $(cat "$work/$1.err")"
}

shape=(--buffers 3 --pages 64 --item-len 1001 --aux-slots 8 --aux-item-len 72)
start_workers() {
    start prefill "$tool" prefill "${shape[@]}" --bootstrap "$bootstrap" --set advertise_address=127.0.0.1 "$@"
    start decode "$tool" decode "${shape[@]}" --bootstrap "$bootstrap" "$@"
    answer prefill '^{"ready":true,"role":"prefill","port":[1-9][0-9]*,"pid":[1-9]'
    answer decode '^{"ready":true,"role":"decode","port":[0-9]*,"pid":[1-9]'
}

scene="options"
run 0 '^kvferry [0-9]' "$tool" --version
run 0 '^UCX [0-9]' "$tool" --version
run 0 'Exit status' "$tool" --help
run 0 'kvferry decode:' "$tool" help decode
run 0 'DeepSeek-V3' "$tool" prefill --help
run 0 'Every byte\|every byte' "$tool" demo --help
run 0 'waiting_timeout .* 5min ' "$tool" settings
run 0 '"environment": "KVFERRY_WAITING_TIMEOUT"' "$tool" settings --json
run 0 'waiting_timeout .* 5s .*default: 5min' env KVFERRY_WAITING_TIMEOUT=5s "$tool" settings
run 2 'Usage' "$tool"
run 2 'nearest is decode' "$tool" decod
run 2 'nearest is --pages' "$tool" decode --page 3
run 2 'number from 1' "$tool" decode --pages 0
run 2 'nearest is waiting_timeout' "$tool" decode --set waiting_timout=3s
run 2 'nearest is Llama-3.1-8B' "$tool" prefill --model llama-8b
run 2 'WAITING_TIMEOUT' env KVFERRY_WAITING_TIMEOUT=soon "$tool" prefill
run 2 'multiple of 16' "$tool" demo --tokens 100
run 2 'not an option' "$tool" bootstrap 8998

scene="bootstrap server"
start bootstrap "$tool" bootstrap --listen 127.0.0.1:0
answer bootstrap '^listening on 127.0.0.1:[1-9][0-9]*$'
bootstrap=${line#listening on }
run 3 "${bootstrap##*:}" "$tool" bootstrap --listen "$bootstrap"

scene="rooms"
start_workers
tell prefill '{"room":1,"pages":[3,4,5,9,8,63],"chunks":[2,1,3],"aux_slot":7}'
tell prefill '{"room":2,"pages":{"range":[10,20]}}'
tell decode '{"room":1,"pages":[0,1,2,60,61,62],"source_pages":[3,4,5,9,8,63],"aux_slot":1,"source_aux_slot":7}'
tell decode '{"room":2,"pages":{"range":[20,20]},"source_pages":{"range":[10,20]}}'
good='"state":"success","status":"ok","reason":"","bytes":[1-9].*"verified":true,"safety":"safe"'
either decode "\"room\":1,$good" "\"room\":2,$good"
either prefill '"room":1,"state":"success".*"verified":null' '"room":2,"state":"success".*"verified":null'
tell decode '{"statistics":true}'
answer decode '"statistics":{"rooms_open":0,"rooms_opened":2,"rooms_succeeded":2,"rooms_failed":0'
tell prefill '{"statistics":true}'
answer prefill '"pages_sent":26,'
tell decode '{"poison":true}'
answer decode '^{"poisoned":true}$'
tell decode '{"room":3,"pages":[9],"source_pages":[9],"address":"'"$bootstrap"'"}' # the sender comes later
tell prefill '{"room":3,"pages":[9]}'
answer decode "\"room\":3,$good"
answer prefill '"room":3,"state":"success"'
finish decode 0
finish prefill 0

scene="failures"
start_workers --set bootstrap_timeout=60s
tell decode 'hello'
answer decode '^{"error":"not JSON.*"line":1}$'
tell decode ''
tell decode '{"room":5,"page":[1]}'
answer decode '"error":"unknown key .*nearest is .*"line":3,"room":5}'
tell decode '{"abort":5}'
answer decode '"error":"no such room is open"'
tell decode '{"room":4,"pages":[64]}'
answer decode '"room":4,"state":"failed","status":"out of range","reason":".*64.*","bytes":0.*"verified":null,"safety":"safe"'
tell decode '{"room":5,"pages":[1,2]}' # no sender ever opens it
tell decode '{"room":5,"pages":[3]}'
answer decode '"error":"the room is open already.*"room":5}'
tell decode '{"poison":true}'
answer decode '"error":"rooms are open'
tell decode '{"abort":5}'
failed decode '"room":5,"state":"failed","status":"aborted"'
tell decode '{"abort":5}'
answer decode '"error":"no such room is open"'
tell prefill '{"room":6,"pages":[1,2]}'
tell prefill '{"abort":6}'
failed prefill '"room":6,"state":"failed","status":"aborted"'
tell prefill '{"room":7,"pages":[1,2]}'
tell decode '{"room":7,"pages":[1,2],"source_pages":[1,3]}' # a claim that isn't true
answer decode '"room":7,"state":"success".*"verified":false.*"mismatch":"buffer 0, page 2: byte 0 is'
answer prefill '"room":7,"state":"success"'
tell decode '{"room":9,"pages":[40]}' # open at the end of the input: finished first
tell prefill '{"room":9,"pages":[40]}'
answer decode '"room":9,"state":"success".*"verified":true'
answer prefill '"room":9,"state":"success"'
finish decode 1
finish prefill 1

scene="without comparing"
start_workers --set bootstrap_timeout=60s
exec {to[decode]}>&- # ends by itself: nothing is open
wait "${pid[decode]}" || complain "decode ended with $?"
start unchecked "$tool" decode "${shape[@]}" --bootstrap "$bootstrap" --no-verify
answer unchecked '"ready":true'
tell unchecked '{"room":1,"pages":[5]}'
tell prefill '{"room":1,"pages":[6]}'
answer unchecked '"room":1,"state":"success".*"verified":null'
answer prefill '"room":1,"state":"success"'
tell unchecked '{"room":2,"pages":[5]}'
tell unchecked '{"quit":true}'
answer unchecked '"room":2,"state":"failed","status":"aborted"'
finish unchecked 1
kill -TERM "${pid[prefill]}"
finish prefill 0

scene="sides that disagree"
start_workers
tell prefill '{"room":8,"pages":[1,2]}'
tell decode '{"room":8,"pages":[1,2,3]}'
failed prefill '"room":8,"state":"failed","status":"mismatch"'
failed decode '"room":8,"state":"failed","status":"peer failed","reason":".*mismatch'
finish decode 1
finish prefill 1

scene="pages that nobody proves safe"
start held "$tool" prefill "${shape[@]}" --bootstrap "$bootstrap" --set advertise_address=127.0.0.1 --set extensions=off
start hasty "$tool" decode "${shape[@]}" --bootstrap "$bootstrap" --set fence_timeout=50ms
answer held '"ready":true'
answer hasty '"ready":true'
tell hasty '{"room":1,"pages":[5]}'
until tell held '{"statistics":true}' && answer held '"statistics"' && grep -q '"requests_held":1' <<<"$line"; do
    continue
done
tell hasty '{"abort":1}'
answer hasty '"room":1,"state":"failed","status":"aborted".*"safety":"in use","proof":"none"'
exec {to[hasty]}>&- # the end of the input waits for what becomes of the pages
answer hasty '^{"room":1,"settled":true,"safety":"released","proof":"none","settled_ns":'
finish held 0
status=0
wait "${pid[hasty]}" || status=$?
[ "$status" = 1 ] || complain "decode ended with $status instead of 1"

scene="a library that writes to descriptor 1"
lines=$(UCX_NO_SUCH_VARIABLE=1 "$tool" decode "${shape[@]}" --bootstrap "$bootstrap" 2>/dev/null <<<'{"quit":true}')
[ "$(grep -cv '^{' <<<"$lines")" = 0 ] || complain "UCX's warnings are among the JSON lines: $lines"

scene="a bootstrap server that isn't there"
start decode "$tool" decode "${shape[@]}" --bootstrap 127.0.0.1:1 --set bootstrap_timeout=5s
answer decode '"ready":true'
tell decode '{"room":1,"pages":[5]}'
answer decode '"room":1,"state":"failed","status":"bootstrap","reason":".*127.0.0.1:1'
finish decode 1

scene="bootstrap server"
kill -TERM "${pid[bootstrap]}"
finish bootstrap 0

[ "$failures" -eq 0 ] || { echo "tool: $failures complaints" >&2; exit 1; }
echo "tool: options, rooms, failures and exit statuses are as documented"
