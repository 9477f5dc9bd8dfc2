#!/usr/bin/env bash
# Installs what is missing of Debian's packages; touches the network only when something is.
# Usage: deps.sh [ci | wheel]      (ci: also what .ci/run needs; wheel: also what the Python wheel needs)
set -euo pipefail

packages=(gcc g++ libc6-dev make cmake ninja-build pkg-config binutils python3
          libzmq3-dev libmicrohttpd-dev libcurl4-openssl-dev libjansson-dev uuid-dev libxxhash-dev
          uthash-dev libcmocka-dev libucx-dev)
case ${1:-} in
wheel | ci)
    packages+=(dpkg-dev python3-pip) ;;
esac
if [ "${1:-}" = ci ]; then
    packages+=(clang clang-format clang-tidy libclang-rt-dev llvm valgrind mandoc git util-linux iproute2)
fi

if ! command -v dpkg-query >/dev/null; then
    echo "deps: not a Debian system; please see to it that these are installed, under the names they" \
         "have here: ${packages[*]}" >&2
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    # Debian names pkgconf's successor package differently from release to release.
    if [ "$package" = pkg-config ] && command -v pkg-config >/dev/null; then
        continue
    fi
    # A Python that isn't Debian's may have brought its own pip.
    if [ "$package" = python3-pip ] && python3 -m pip --version >/dev/null 2>&1; then
        continue
    fi
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ "$status" == installed* ]] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: these packages are missing, and there is neither root nor sudo to install them:" >&2
        echo "    apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "deps: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q >/dev/null || echo "deps: apt-get update failed; trying with the old lists" >&2
if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "deps: could not install; please install by hand: apt-get install ${missing[*]}" >&2
    exit 1
fi
