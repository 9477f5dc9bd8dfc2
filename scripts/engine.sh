#!/usr/bin/env bash
# Brings SGLang 0.4.7 and all it needs as published wheels into a private folder (about 6 GB), installs kvferry's wheel
# beside it, then runs test/engine/run.py in network and mount namespaces of its own.
# Usage: engine.sh BUILD_FOLDER [argument of run.py...]
# Exit status: run.py's own, or 77 where this machine can't run it: the reason is its last line.
set -euo pipefail
mkdir -p "$1"
build=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/test/engine
packages=$build/engine
mkdir -p "$packages"

skip() { # skip WHY
    echo "engine: skipped: $*"
    exit 77
}

[ "$(uname -m)" = x86_64 ] || skip "nixl==0.3.1 is published for x86-64 only, this is $(uname -m)"
[ "$(id -u)" = 0 ] || skip "only root can give the servers network and mount namespaces of their own"
for tool in unshare ip mount ipcrm; do
    command -v "$tool" >/dev/null || skip "no $tool: apt-get install util-linux iproute2"
done
unshare --net --mount --pid --fork true 2>/dev/null || skip "this machine allows no new namespaces"
memory=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
[ "$memory" -ge 8 ] || skip "8 GiB of free memory are needed, $memory are there"
python=$(command -v python3.11 || true)
[ -n "$python" ] || skip "the wheels are pinned for Python 3.11, which isn't here"
"$python" -m pip --version >/dev/null 2>&1 || skip "no pip to bring the packages with: apt-get install python3-pip"

install() { # install ENVIRONMENT SECONDS ARGUMENT...: from wheels only, with every hash checked, in bounded time
    local environment=$1 seconds=$2
    shift 2
    timeout "$seconds" "$python" -m pip --python "$environment/bin/python" --disable-pip-version-check --quiet install \
        --timeout 10 --retries 1 --no-deps --only-binary=:all: --no-compile "$@" >"$packages/pip.log" 2>&1
}

bring() { # bring ENVIRONMENT SECONDS REQUIREMENTS: unless that was done before
    local environment=$packages/$1 seconds=$2 requirements=$3
    cmp -s "$requirements" "$environment/complete" && return
    rm -rf "$environment"
    echo "engine: fetching what ${requirements##*/} names"
    "$python" -m venv --without-pip "$environment" || skip "no python3-venv"
    if ! install "$environment" "$seconds" --no-cache-dir --require-hashes --requirement "$requirements"; then
        tail -n 3 "$packages/pip.log"
        if grep -q 'DO NOT MATCH THE HASHES' "$packages/pip.log"; then
            echo "engine: ${requirements##*/} doesn't name what PyPI has"
            exit 1
        fi
        skip "PyPI did not give what ${requirements##*/} names; log: ${packages##*/}/pip.log"
    fi
    cp "$requirements" "$environment/complete"
}

# The stock environment and, beside it, kvferry's: what isn't found in it comes from the stock one.
bring environment 1200 "$here/packages/environment.txt"
bring kvferry 300 "$root/packaging/ucx-wheel.txt"
folder=lib/python3.11/site-packages
echo "$packages/environment/$folder" >"$packages/kvferry/$folder/stock.pth"

status=0
PYTHON=$python "$root/scripts/wheel.sh" "$build" >"$packages/wheel.log" || status=$?
if [ "$status" -ne 0 ]; then
    tail -n 30 "$packages/wheel.log"
    [ "$status" -ne 77 ] || skip "$(tail -n 1 "$packages/wheel.log")"
    exit "$status"
fi
install "$packages/kvferry" 60 --force-reinstall "$(tail -n 1 "$packages/wheel.log")"

# Process 1 of a namespace takes all others with it when it ends. unshare passes no signal on, so it is done here.
cd "$here"
unshare --net --mount --pid --fork --kill-child --mount-proc \
    "$packages/environment/bin/python" -B -W ignore::FutureWarning run.py --build "$build" "$@" &
child=$!
trap 'kill -TERM $(cat "/proc/$child/task/$child/children") || true' INT TERM HUP
status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a signal came: it ends soon
    wait "$child" || status=$?
done
exit "$status"
