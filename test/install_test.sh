#!/usr/bin/env bash
# Installs into a folder of its own and uses what lies there as a stranger would: pkg-config, a C and a C++
# compiler, the example, the manual. Usage: install_test.sh SOURCE_ROOT BUILD_ROOT
set -euo pipefail
source_root=$1
build_root=$2
header=$source_root/include/kvferry/kvferry.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
checks=0

check() { # check WHAT COMMAND...
    local what=$1
    shift
    checks=$((checks + 1))
    if ! "$@" >"$work/log" 2>&1; then
        echo "install: $what" >&2
        sed 's/^/    /' "$work/log" >&2
        failures=$((failures + 1))
    fi
}

# ---- lay it down, then move it: nothing may know where it was ----
cmake --install "$build_root" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mv "$work/first" "$work/moved"
root=$work/moved
pc=$(find "$root" -name kvferry.pc)
library=$(find "$root" -name 'libkvferry.so.0' | head -n 1)
[ -n "$pc" ] && [ -n "$library" ] || { echo "install: no kvferry.pc or no libkvferry.so.0" >&2; exit 1; }
libdir=$(dirname "$library")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs kvferry)
# Words are meant to split.
# shellcheck disable=SC2086
compile() { # compile COMPILER... SOURCE OUTPUT
    local output=${*: -1}
    "${@:1:$#-1}" -o "$output" $flags -Wl,-rpath,"$libdir"
}

# ---- what leaves the library ----
declared=$("${CC:-cc}" -E -P "-I$source_root/include" "$header" | tr '\n' ' ' | tr ';' '\n' |
    grep 'visibility' | grep -oE '\bkvf_[a-z_]+ ?\(' | tr -d '( ' | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort)
listed=$(grep -oE '\bkvf_[a-z_]+;' "$source_root/packaging/kvferry.map" | tr -d ';' | sort)
check "the library exports other functions than the header declares (<: declared, >: exported)" \
    diff <(echo "$declared") <(echo "$exported")
check "packaging/kvferry.map lists other functions than the header declares (<: declared, >: listed)" \
    diff <(echo "$declared") <(echo "$listed")
check "every exported function has the symbol version of its release" \
    bash -c "! nm -D --defined-only '$library' | grep ' T ' | grep -v '@@KVFERRY_'"

# ---- what it is called and what it needs ----
dynamic=$(readelf -d "$library")
has() {
    grep -qF -- "$1" <<<"$2"
}
lacks() {
    ! grep -E -- "$1" <<<"$2"
}
check "the SONAME is not libkvferry.so.0" has 'soname: [libkvferry.so.0]' "$dynamic"
check "the library needs C++ or Python" lacks 'NEEDED.*(stdc\+\+|libc\+\+|python)' "$dynamic"
check "the library's run path names the build folder" lacks "(RPATH|RUNPATH).*$build_root" "$dynamic"
check "something the library needs is not found" bash -c "! ldd '$library' | grep 'not found'"
if [ -d "$libdir/kvferry/ucx" ]; then
    check "the library doesn't use the UCX installed with it" \
        bash -c "! ldd '$library' | grep libucp | grep -vF '$libdir/kvferry/ucx'"
fi

# ---- pkg-config ----
check "kvferry.pc: not the header's version" \
    [ "$(pkg-config --modversion kvferry)" = "$(sed -n 's/^project(kvferry VERSION \([0-9.]*\).*/\1/p' "$source_root/CMakeLists.txt")" ]
check "kvferry.pc: doesn't follow the tree that was moved" has "$root" "$flags"
check "kvferry.pc: doesn't say which UCX" bash -c "pkg-config --variable=ucx_version kvferry | grep -E '^[0-9]+[.][0-9]+'"

# ---- compilers ----
cat >"$work/version.c" <<'END'
#include <kvferry/kvferry.h>
#include <stdio.h>
int main(void)
{
    return printf("%s %s\n", kvf_version(), kvf_status_name(KVF_OK)) < 0;
}
END
cp "$work/version.c" "$work/version.cc"
check "C11 -pedantic" compile "${CC:-cc}" -std=c11 -pedantic -Wall -Wextra -Werror "$work/version.c" "$work/version"
check "a program linked with it doesn't run" "$work/version"
if command -v g++ >/dev/null; then
    check "C++17 -pedantic" compile g++ -std=c++17 -pedantic -Wall -Wextra -Werror "$work/version.cc" "$work/version++"
    check "a C++ program linked with it doesn't run" "$work/version++"
else
    echo "install: no g++, so the header was not tried as C++"
fi
for example in "$root"/share/doc/kvferry/examples/*.c; do
    [ -e "$example" ] || continue
    name=$(basename "$example" .c)
    check "example $name doesn't compile" \
        compile "${CC:-cc}" -std=c11 -pedantic -Wall -Werror -pthread "$example" "$work/$name"
    check "example $name doesn't run" timeout 60 "$work/$name"
done
if [ -e "$root/bin/kvferry" ]; then
    check "the installed command doesn't run" "$root/bin/kvferry" settings
    check "something the command needs is not found" bash -c "! ldd '$root/bin/kvferry' | grep 'not found'"
    check "the command and the library use different UCXes" [ \
        "$(realpath "$(ldd "$root/bin/kvferry" | sed -n 's/.*libucp.* => //p' | cut -d' ' -f1)")" = \
        "$(realpath "$(ldd "$library" | sed -n 's/.*libucp.* => //p' | cut -d' ' -f1)")" ]
fi

# ---- the manual ----
if [ -d "$root/share/man" ]; then
    for function in $declared; do
        check "no manual page for $function" test -s "$root/share/man/man3/$function.3"
    done
    if command -v mandoc >/dev/null; then
        check "the manual is not clean" env MANPATH="$root/share/man" bash -c "
            ! mandoc -Tlint -W warning '$root'/share/man/man?/* 2>&1 | grep ."
    fi
    if [ -e "$root/bin/kvferry" ]; then
        for command in $("$root/bin/kvferry" help 2>&1 | sed -n 's/^  \([a-z]\{2,\}\)  .*/\1/p'); do
            check "kvferry(1) doesn't speak of the command $command" \
                grep -qE "Cm $command( |\$)" "$root/share/man/man1/kvferry.1"
        done
    fi
fi

[ "$failures" -eq 0 ] || { echo "install: $failures of $checks checks failed" >&2; exit 1; }
echo "install: $checks checks passed, UCX $(pkg-config --variable=ucx_version kvferry) ($(pkg-config --variable=ucx_from kvferry))"
