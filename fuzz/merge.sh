#!/usr/bin/env bash
# Takes into the corpora of the tree what earlier runs found (BUILD_FOLDER/found) and what reaches code that they don't
# reach. Inputs with a name of their own stay as they are.
# Usage: merge.sh BUILD_FOLDER [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
names=("$@")
if [ ${#names[@]} = 0 ]; then
    mapfile -t names < <(basename -s .c fuzz/fuzz_*.c | sed 's/^fuzz_//')
fi
for name in "${names[@]}"; do
    corpus=fuzz/corpus/$name
    mkdir -p "$corpus" "$build/found/$name"
    before=$(find "$corpus" -type f | wc -l)
    # Those merged earlier, named by their digest, must earn their place again.
    find "$corpus" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' \
        -exec mv -t "$build/found/$name" {} +
    # Without counters: new code counts, how often a loop went round doesn't.
    "$build/fuzz/fuzz_$name" -merge=1 -use_counters=0 "$corpus" "$build/found/$name" >"$build/found/$name.merge.log" 2>&1 ||
        { tail -n 20 "$build/found/$name.merge.log"; exit 1; }
    echo "merge $name: $before inputs before, $(find "$corpus" -type f | wc -l) now," \
        "$(find "$corpus" -type f -printf '%s\n' | awk '{sum += $1} END {print sum}') bytes"
done
