#!/usr/bin/env bash
# docs/known-faults.md against the suite: every id has a row; every test it names is one that runs. In C it is in the
# table of a file that CMake makes a test of; in Python it is a function or a cell of a table; in shell a function.
# Usage: known_faults_test.sh SOURCE_ROOT BUILD_ROOT
set -euo pipefail
cd "$(dirname "$0")/.."
table=docs/known-faults.md
ctest=${2:?"usage: known_faults_test.sh SOURCE_ROOT BUILD_ROOT"}/CTestTestfile.cmake
ids="B01 B02 B03 B04 B05 B06 B07 B08 B09 B10 B11 B14 B15 B16 B17 B18 B19 B20 B21 B23 B24 B25 B27 B28 B29 B30 B31 B33 B34 B35 B36 B37 B38 B39 B40 B41 B42 B43 B45 B47 B49 B50 B51 B52 B53 B54 B55 B56 B57 B58 B59 B61 B62 B63 B65 B66 B67 B68 B69 B70 B71 B74 B75 B77 B78 B80 B81 B82 B83 B85 B86 B87 B88 B89 B90 B92 B94 B95 B96 B97 B98 B99 B100 B101 B102 B103 B104 B105 B106 B107 B108 B109 B110 B111"
bad=0

complain() {
    echo "$table: $*"
    bad=1
}

# The names in a C file's tables of tests, one a line; a macro that stands there counts for what it says.
registered() { # registered FILE
    awk '
        { text = text $0 "\n" }
        END {
            while ((start = index(text, "/*")) > 0) {
                rest = substr(text, start + 2)
                text = substr(text, 1, start - 1) " " substr(rest, index(rest, "*/") + 2)
            }
            gsub(/\\\n/, " ", text)
            count = split(text, lines, "\n")
            for (i = 1; i <= count; i++) {
                if (match(lines[i], /^#define [A-Za-z_0-9]+\(/))
                    macros[substr(lines[i], 9, RLENGTH - 9)] = substr(lines[i], RLENGTH)
                else if (lines[i] ~ /struct CMUnitTest [a-z_]+\[\] = \{/)
                    inside = 1
                if (inside)
                    tests = tests " " lines[i]
                if (lines[i] ~ /\};/)
                    inside = 0
            }
            for (round = 0; round < 3; round++)
                for (macro in macros)
                    if (!(macro in used) && tests ~ ("(^|[^A-Za-z_0-9])" macro "\\(")) {
                        used[macro] = 1
                        tests = tests " " macros[macro]
                    }
            gsub(/"[^"]*"/, " ", tests)
            gsub(/[^A-Za-z_0-9]+/, "\n", tests)
            print tests
        }' "$1"
}

is_built() { # is_built FILE: CTest has it, by its folder and its own name
    local name=${1%.c}
    name=$(basename "$(dirname "$name")")/$(basename "$name")
    grep -qE "^add_test\((\[=*\[|\")?$name(\]=*\]|\"|[[:space:]])" "$ctest"
}

check() { # check FILE NAME
    local name
    name=$(sed 's/[][\.*^$+?(){}|/]/\\&/g' <<<"$2")
    case $1 in
    *.c)
        registered "$1" | grep -qxF -- "$2" || complain "$1 has no test $2 in its table"
        is_built "$1" || complain "$1 is no test that CMake builds"
        ;;
    *.py)
        grep -qE "^ *def $name\(|^ *\((\"[^\"]*\", )*\"$name\",|^ *\"$name\": " "$1" ||
            complain "$1 defines no $2"
        ;;
    *.sh)
        grep -qE "^$name\(\) \{" "$1" || complain "$1 defines no function $2"
        ;;
    *)
        complain "$1 is no test"
        ;;
    esac
}

for id in $ids; do
    [ "$(grep -c "^| $id |" "$table")" = 1 ] || complain "$id has no row of its own"
done
[ "$(grep -c '^| B' "$table")" = "$(wc -w <<<"$ids")" ] || complain "a row has an unknown id"

named=0
while IFS=$'\t' read -r file name; do
    named=$((named + 1))
    if [ -f "$file" ]; then
        check "$file" "$name"
    else
        complain "$file doesn't exist"
    fi
done < <(grep '^| B' "$table" | grep -oE '`(src|test)/[^`]+`: `[^`]+`' | sed -E 's/^`([^`]+)`: `([^`]+)`$/\1\t\2/')
[ "$named" -ge 90 ] || complain "only $named tests are named"
[ "$named" = "$(grep '^| B' "$table" | grep -oE '`(src|test)/' | wc -l)" ] || complain "a file stands there without a test's name"

# A row without a test says why.
reasons=0
while IFS= read -r row; do
    [[ $row == *'| none: '?* || $row == *'`: `'* ]] || complain "neither test nor reason: $row"
    [[ $row != *'| none: '* ]] || reasons=$((reasons + 1))
done < <(grep '^| B' "$table")
[ "$bad" = 0 ] && echo "$(wc -w <<<"$ids") known faults, $named tests named, $reasons reasons why there is none"
exit "$bad"
