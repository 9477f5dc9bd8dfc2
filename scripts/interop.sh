#!/usr/bin/env bash
# Brings the stock packages as published wheels into a private folder, then runs test/interop/run.py.
# Usage: interop.sh BUILD_FOLDER [argument of run.py...]
# Exit status: run.py's own, or 77 where this machine can't have the packages: the reason is its last line.
set -euo pipefail
build=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")/.." && pwd)/test/interop
packages=$build/interop
mkdir -p "$packages"

skip() { # skip WHY
    echo "interop: skipped: $*"
    exit 77
}

[ "$(uname -m)" = x86_64 ] || skip "nixl==0.3.1 is published for x86-64 only, this is $(uname -m)"
python=
for candidate in python3.11 python3.12 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || skip "nixl==0.3.1 is published for Python 3.11 and 3.12 only, and neither is here"
if ! "$python" -m pip --version >/dev/null 2>&1; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends python3-pip >/dev/null 2>&1 ||
        skip "no pip to bring the packages with: apt-get install python3-pip"
fi

pip() { # pip COMMAND ARGUMENT...: from wheels only, with every hash checked, in bounded time
    local command=$1
    shift
    timeout 300 "$python" -m pip --disable-pip-version-check --quiet ${venv_python:+--python "$venv_python"} \
        "$command" --timeout 5 --retries 1 --no-deps --only-binary=:all: --require-hashes "$@" \
        >"$packages/pip.log" 2>&1
}

bring() { # bring NAME FUNCTION: runs it with an empty folder, unless that was done before
    local folder=$packages/$1
    [ -e "$folder/complete" ] && return
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "interop: fetching $1"
    if ! "$2" "$1" "$folder"; then
        rm -rf "$folder"
        tail -n 3 "$packages/pip.log"
        if grep -q 'DO NOT MATCH THE HASHES' "$packages/pip.log"; then
            echo "interop: $1 isn't what test/interop/packages says"
            exit 1
        fi
        skip "PyPI did not give $1; log: ${packages##*/}/pip.log"
    fi
    touch "$folder/complete"
}

# The packages that everything imports go into a virtual environment. It needs no pip of its own.
environment() {
    "$python" -m venv --without-pip "$2" || return 1
    venv_python=$2/bin/python pip install --no-compile --requirement "$here/packages/common.txt"
}

beside() { # one version of NIXL, in a folder of its own
    pip install --no-compile --target "$2/lib" --requirement "$here/packages/$1.txt"
}

# Only the connector of SGLang's wheel: the rest of it wants what nobody here has.
connector() {
    pip download --dest "$2" --requirement "$here/packages/$1.txt" &&
        { "$python" "$here/unpack.py" "$2"/*.whl "$2/lib" sglang/srt/disaggregation/ || exit 1; } &&
        rm "$2"/*.whl
}

ucx() {
    local requirements=$here/packages/$1.txt
    [ -e "$requirements" ] || requirements=$here/../../packaging/ucx-wheel.txt
    pip download --dest "$2" --requirement "$requirements" &&
        { "$python" "$here/unpack.py" "$2"/*.whl "$2" libucx/lib/ || exit 1; } &&
        rm "$2"/*.whl
}

venv_python=
bring environment environment
for version in 0.4.7 0.4.7.post1; do
    bring "sglang-$version" connector
done
for version in 0.3.1 0.5.1 0.7.1 1.5.1; do
    bring "nixl-$version" beside
done
for version in 1.18.1 1.19.0; do
    bring "ucx-$version" ucx
done
# The newest is the one that scripts/ucx.sh brings, and may have brought.
[ -e "$build/ucx-1.22.0/complete" ] || bring ucx-1.22.0 ucx

mkdir -p "$packages/no-cuda"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$packages/no-cuda/libcuda.so.1" "$here/standins/libcuda.c"

# What was built against an old UCX must run on newer ones.
if pkg-config --exists ucx; then
    cmake -S "$here/../.." -B "$packages/system" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DUCX_ROOT=system \
        >"$packages/system.log" && cmake --build "$packages/system" --target kvferry >>"$packages/system.log" || {
        tail -n 20 "$packages/system.log"
        exit 1
    }
fi

# Compiling what every worker imports takes longer than most rooms: keep it.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$packages/bytecode
exec "$packages/environment/bin/python" "$here/run.py" --build "$build" \
    --document "$here/../../docs/compatibility.md" "$@"
