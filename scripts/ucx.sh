#!/usr/bin/env bash
# Decides which UCX to build against. Prints one line for a person on standard error and the UCX_ROOT for
# CMake on standard output (empty: the system's).
# Usage: ucx.sh BUILD_FOLDER
# Environment: UCX or UCX_ROOT = a path, or "system"; nothing: the system's from 1.19 on, else the pinned wheel.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")/.." && pwd)
requirements=$here/packaging/ucx-wheel.txt
wheel_version=$(sed -n 's/^libucx-cu12==\([0-9.]*\).*/\1/p' "$requirements")
oldest_good=1.19

say() {
    echo "UCX: $*" >&2
}

at_least() { # at_least HAVE WANT
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

system=$(pkg-config --modversion ucx 2>/dev/null || true)

# Without one of its own there is nothing left to fall back on.
fall_back() { # fall_back WHY
    if [ -z "$system" ]; then
        say "none: $1, and the system has none. Install libucx-dev or name one with UCX_ROOT=/path"
        exit 1
    fi
    say "$system of the system ($1; stock NIXL peers need $oldest_good or newer)"
    echo
    exit 0
}

choice=${UCX:-${UCX_ROOT:-}}
case $choice in
system) [ -n "$system" ] || fall_back "UCX=system was asked for"
    say "$system of the system (asked for)"
    echo
    exit 0 ;;
?*) [ -e "$choice/include/ucp/api/ucp.h" ] || {
        say "$choice holds no include/ucp/api/ucp.h: not a UCX installation"
        exit 1
    }
    choice=$(cd "$choice" && pwd)
    say "the one at $choice (asked for)"
    echo "$choice"
    exit 0 ;;
esac

if [ -n "$system" ] && at_least "$system" "$oldest_good"; then
    say "$system of the system ($oldest_good or newer)"
    echo
    exit 0
fi

mkdir -p "$build"
build=$(cd "$build" && pwd)
unpacked=$build/ucx-$wheel_version
tried=$build/ucx-$wheel_version.unreachable
why="system has ${system:-none}"

if [ ! -e "$unpacked/complete" ]; then
    [ "$(find "$tried" -mmin -60 2>/dev/null)" ] && fall_back "$(cat "$tried")"
    case $(uname -m) in
    x86_64 | aarch64) ;;
    *) fall_back "no wheel libucx-cu12 for $(uname -m)" ;;
    esac
    command -v python3 >/dev/null || fall_back "no python3 to fetch the wheel libucx-cu12 with"
    if ! python3 -m pip --version >/dev/null 2>&1; then
        # Only pip's `download` is used: nothing is ever installed into the system's Python.
        as_root=()
        [ "$(id -u)" = 0 ] || as_root=(sudo -n)
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends python3-pip >/dev/null 2>&1 ||
            fall_back "no pip to fetch the wheel libucx-cu12 with: apt-get install python3-pip"
    fi
    rm -rf "$unpacked"
    mkdir -p "$unpacked/download"
    if ! timeout 180 python3 -m pip --disable-pip-version-check --quiet download \
        --timeout 5 --retries 0 --no-deps --only-binary=:all: --require-hashes \
        --requirement "$requirements" --dest "$unpacked/download" >"$unpacked.log" 2>&1; then
        rm -rf "$unpacked"
        reason="PyPI did not give the wheel libucx-cu12==$wheel_version; log: ${unpacked##*/}.log"
        echo "$reason" >"$tried"
        fall_back "$reason"
    fi
    python3 -m zipfile -e "$unpacked"/download/*.whl "$unpacked"
    rm -rf "$unpacked/download" "$unpacked.log" "$tried"
    # zipfile drops the modes.
    chmod +x "$unpacked"/libucx/bin/*
    find "$unpacked" -name '*.so*' -exec chmod +x {} +
    touch "$unpacked/complete"
fi
# The wheel comes without the RDMA transports.
[ -z "$(ls /sys/class/infiniband 2>/dev/null)" ] ||
    why="$why; it can't use this machine's RDMA devices: for those name a UCX of yours with UCX_ROOT=/path"
say "$wheel_version from the wheel libucx-cu12 ($why)"
echo "$unpacked/libucx"
