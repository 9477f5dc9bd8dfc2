#!/usr/bin/env bash
# docs/known-faults.md against the suite: every id has a row; every test it names exists, by file and by name.
set -euo pipefail
cd "$(dirname "$0")/.."
table=docs/known-faults.md
ids="B01 B02 B03 B04 B05 B06 B07 B08 B09 B10 B11 B14 B15 B16 B17 B18 B19 B20 B21 B23 B24 B25 B27 B28 B29 B30 B31 B33 B34 B35 B36 B37 B38 B39 B40 B41 B42 B43 B45 B47 B49 B50 B51 B52 B53 B54 B55 B56 B57 B58 B59 B61 B62 B63 B65 B66 B67 B68 B69 B70 B71 B74 B75 B77 B78 B80 B81 B82 B83 B85 B86 B87 B88 B89 B90 B92 B94 B95 B96 B97 B98 B99 B100 B101 B102 B103 B104 B105 B106 B107 B108 B109 B110 B111"
bad=0

complain() {
    echo "$table: $*"
    bad=1
}

for id in $ids; do
    [ "$(grep -c "^| $id |" "$table")" = 1 ] || complain "$id has no row of its own"
done
[ "$(grep -c '^| B' "$table")" = "$(wc -w <<<"$ids")" ] || complain "a row has an unknown id"

named=0
while IFS=$'\t' read -r file name; do
    named=$((named + 1))
    if [ ! -f "$file" ]; then
        complain "$file doesn't exist"
    elif ! grep -qF -- "$name" "$file"; then
        complain "$file has no $name"
    fi
done < <(grep -oE '`(src|test)/[^`]+`: `[^`]+`' "$table" | sed -E 's/^`([^`]+)`: `([^`]+)`$/\1\t\2/')
[ "$named" -ge 90 ] || complain "only $named tests are named"

# A row without a test says why.
while IFS= read -r row; do
    [[ $row == *'| none: '?* || $row == *'`: `'* ]] || complain "neither test nor reason: $row"
done < <(grep '^| B' "$table")
[ "$bad" = 0 ] && echo "$(wc -w <<<"$ids") known faults, $named tests named"
exit "$bad"
