#!/usr/bin/env bash
# Runs clang-tidy over the product's code (the tests and fuzzers use cmocka's and libFuzzer's idioms), as it is compiled
# in BUILD_FOLDER. scripts/tidy-accepted.txt names what it is wrong about. Usage: tidy.sh BUILD_FOLDER [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
files=("$@")
if [ ${#files[@]} = 0 ]; then
    mapfile -t files < <(scripts/sources.sh | grep -E '^(src|tools|examples)/.*\.c$' | grep -v '_test\.c$')
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

tidy() { # tidy CLANG_TIDY_ARGUMENT... (files on standard input)
    # It fails on errors, which are in the log and counted below.
    xargs -r -P "$(nproc)" -n 3 clang-tidy -p "$build" --quiet "$@" >>"$log" 2>&1 || true
}

# error.c defines what analyzer.h redefines; what is outside src/ doesn't know it.
plain='^src/base/error\.c$|^(tools|examples)/'
tidy --extra-arg=-include --extra-arg="$PWD/scripts/analyzer.h" < <(printf '%s\n' "${files[@]}" | grep -vE "$plain")
tidy < <(printf '%s\n' "${files[@]}" | grep -E "$plain")

findings=$(grep -E ': (warning|error): ' "$log" | sed "s|^$PWD/||" | sort -u || true)
accepted=0
while read -r file check _; do
    case $file in '' | '#'*) continue ;; esac
    hits=$(grep -E "^$file:.*\[$check\]$" <<<"$findings" | grep -c . || true)
    accepted=$((accepted + hits))
    findings=$(grep -vE "^$file:.*\[$check\]$" <<<"$findings" || true)
done <scripts/tidy-accepted.txt
if [ -n "$findings" ]; then
    grep -vE '^[0-9]+ warnings? generated' "$log"
    echo "tidy: in short:"
    echo "$findings"
    exit 1
fi
echo "tidy: ${#files[@]} files are clean; $accepted findings were left out (scripts/tidy-accepted.txt)"
