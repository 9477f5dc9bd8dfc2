#!/usr/bin/env bash
# Runs clang-tidy over what is in BUILD_FOLDER's compile_commands.json. Usage: tidy.sh BUILD_FOLDER [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
files=("$@")
if [ ${#files[@]} = 0 ]; then
    # The tests and fuzzers use cmocka's and libFuzzer's idioms; the product's code is what is checked.
    mapfile -t files < <(find src tools examples -name '*.c' ! -name '*_test.c' | sort)
fi
printf '%s\n' "${files[@]}" |
    xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet --warnings-as-errors='*'
