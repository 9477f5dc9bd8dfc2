#!/usr/bin/env bash
# Builds the Python wheel, installs it into a fresh virtual environment and runs python/tests there.
# Usage: python-test.sh BUILD_FOLDER [unittest name...]
# Exit status: the tests', or 77 where this machine can't have the packages: the reason is the last line.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
scripts/wheel.sh "$build"
build=$(cd "$build" && pwd)
folder=$build/python-test
log=$build/python-test.log
wheel=$(echo "$build"/wheel/dist/*.whl)
python=${PYTHON:-python3}

pip() { # pip ARGUMENT...: into the environment, from wheels only, in bounded time
    timeout 300 "$python" -m pip --python "$folder/bin/python" --disable-pip-version-check --quiet install \
        --timeout 5 --retries 1 --no-deps --only-binary=:all: "$@" >>"$log" 2>&1
}

rm -rf "$folder"
"$python" -m venv --without-pip "$folder" >"$log" 2>&1
if ! pip --require-hashes --requirement packaging/ucx-wheel.txt --requirement python/tests/requirements.txt; then
    tail -n 3 "$log"
    grep -q 'DO NOT MATCH THE HASHES' "$log" && exit 1
    echo "python-test: skipped: PyPI did not give UCX and numpy"
    exit 77
fi
pip "$wheel" || {
    tail -n 3 "$log"
    exit 1
}
export KVF_SOURCE_ROOT=$PWD KVF_WHEEL=$wheel PYTHONDONTWRITEBYTECODE=1
cd python/tests
if [ $# -gt 0 ]; then
    exec "$folder/bin/python" -m unittest "$@"
fi
exec "$folder/bin/python" -m unittest discover
