#!/usr/bin/env bash
# Checks the two structural promises of docs/architecture.md:
#   1. includes point downwards only;
#   2. plan/, wire/ and room/ are pure: their objects call nothing but the allowed functions below and one
#      another, and hold no writable globals.
# Usage: layers_test.sh SOURCE_ROOT BUILD_ROOT
set -euo pipefail
source_root=$1
build_root=$2
failures=0

complain() {
    echo "layers: $*" >&2
    failures=$((failures + 1))
}

# ---- 1. includes ----
declare -A rank=([base]=0 [wire]=1 [plan]=2 [room]=3 [data]=4 [control]=5 [bootstrap]=5 [manager]=6)
checked=0
while IFS= read -r file; do
    layer=$(basename "$(dirname "$file")")
    [ -n "${rank[$layer]:-}" ] || { complain "$file is in no known layer"; continue; }
    checked=$((checked + 1))
    while IFS= read -r target; do
        [ -n "${rank[$target]:-}" ] || continue
        if [ "$target" != "$layer" ] && [ "${rank[$target]}" -ge "${rank[$layer]}" ]; then
            complain "$file includes from $target/, which is not below $layer/"
        fi
    done < <(sed -n 's/^#include "\([a-z]*\)\/.*/\1/p' "$file")
done < <(find "$source_root/src" -name '*.[ch]' | sort)
[ "$checked" -gt 10 ] || complain "only $checked source files found under $source_root/src"

# ---- 2. symbols ----
# Pure functions of libc, jansson's in-memory JSON, xxHash; base/ parts that are pure themselves.
allowed='^(mem(cpy|move|set|cmp|chr)|str(len|cmp|ncmp|chr|rchr|spn|cspn|str|nlen)|malloc|calloc|realloc|free'
allowed+='|v?snprintf|qsort|bsearch|json_[a-z0-9_]+|XXH[A-Za-z0-9_]+|__stack_chk_fail'
allowed+='|__(mem|str|v?snprintf)[a-z]*_chk|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan|sanitizer|sancov)_.*)$'
pure_base='error|bytes|text'
objects=$(find "$build_root" -path '*src/*.c.o' -path '*kvf_objects*')
pure=$(grep -E '/src/(plan|wire|room)/[a-z_]+\.c\.o$' <<<"$objects" || true)
pure_and_base=$(grep -E "/src/((plan|wire|room)/[a-z_]+|base/($pure_base))\.c\.o$" <<<"$objects" || true)
[ -n "$pure" ] || complain "no objects of plan/, wire/ or room/ under $build_root"

defined=$(for object in $pure_and_base; do nm --defined-only "$object" | awk '{print $3}'; done | sort -u)
for object in $pure_and_base; do
    while IFS= read -r symbol; do
        if ! grep -qE "$allowed" <<<"$symbol" && ! grep -qxF "$symbol" <<<"$defined"; then
            complain "${object##*/src/} calls $symbol, which a pure part may not"
        fi
    done < <(nm --undefined-only "$object" | awk '{print $2}')
    # .data.rel.ro is constant after relocation; sanitizers add sections of their own.
    writable=$(objdump -t "$object" |
        awk '$2 ~ /[lg]/ && $3 == "O" && ($4 ~ /^\.(data|bss)/ || $4 == "*COM*") {print $4, $NF}' |
        grep -vE '^\.data\.rel\.ro|__(asan|ubsan|tsan|sancov)|\.Lubsan' || true)
    [ -z "$writable" ] || complain "${object##*/src/} holds writable globals: $writable"
done

[ "$failures" -eq 0 ] || { echo "layers: $failures complaints" >&2; exit 1; }
echo "layers: $checked files point downwards, $(wc -w <<<"$pure") pure objects are pure"
