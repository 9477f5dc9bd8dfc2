#!/usr/bin/env bash
# Builds the libraries that libkvferry uses for the Python wheel, from Debian's source packages and without what kvferry
# has no use for: TLS, Kerberos, LDAP, compression, multicast. Debian's own binaries bring 30 libraries more, 21 MB of
# them, a copy of OpenSSL and one of GnuTLS among them that nobody would update inside the wheel.
# Usage: wheel-libraries.sh FOLDER      (they are then in FOLDER/prefix, their licences in FOLDER/licenses)
# Exit status: 77 where this machine can't have the sources: the reason is the last line.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
prefix=$folder/prefix
packages=(curl libmicrohttpd zeromq3)
jobs=${JOBS:-$(nproc)}

skip() { # skip WHY
    echo "wheel: skipped: $*"
    exit 77
}

# The system's own places for packages, asked for sources instead. Other repositories may have none, so only those of
# Debian's releases.
source_places() {
    local release
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        awk -v release="$release" '$1 == "deb" && $0 ~ " " release { $1 = "deb-src"; print }' >"$folder/places.list"
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null |
        awk -v release="$release" 'BEGIN { RS = ""; ORS = "\n\n" }
            ("\n" $0) ~ "\nSuites: *" release { sub(/Types:[^\n]*/, "Types: deb-src"); print }' \
            >"$folder/places.sources"
}

fetch() { # into $folder/sources, a folder a package; apt checks the signatures
    mkdir -p "$folder/lists/partial" "$folder/places.d" "$folder/sources"
    source_places
    mv "$folder/places.list" "$folder/places.sources" "$folder/places.d"
    local apt=(apt-get -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$folder/places.d"
               -o "Dir::State::Lists=$folder/lists" -o APT::Sandbox::User=root -o Acquire::Retries=1)
    (cd "$folder/sources" && "${apt[@]}" update && "${apt[@]}" source --download-only "${packages[@]}") || return 1
    local package
    for package in "${packages[@]}"; do
        dpkg-source --no-check -x "$folder/sources/${package}"_*.dsc "$folder/sources/$package" || return 1
        install -D -m 644 "$folder/sources/$package/debian/copyright" "$folder/licenses/$package.txt"
    done
    rm -rf "$folder/lists" "$folder/places.d"
}

with_cmake() { # with_cmake PACKAGE OPTION...
    local package=$1
    shift
    cmake -S "$folder/sources/$package" -B "$folder/build-$package" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_RPATH="" "$@" &&
        cmake --build "$folder/build-$package" -j "$jobs" && cmake --install "$folder/build-$package"
}

build_curl() { # HTTP/1.1 in the clear, which is all that bootstrap servers speak
    with_cmake curl -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DCURL_ENABLE_SSL=OFF \
        -DCURL_ZLIB=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBSSH2=OFF \
        -DCURL_USE_LIBPSL=OFF -DCURL_DISABLE_LDAP=ON
}

build_zeromq() { # without CURVE and multicast
    with_cmake zeromq3 -DBUILD_STATIC=OFF -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOC=OFF -DWITH_LIBSODIUM=OFF \
        -DENABLE_CURVE=OFF -DENABLE_WS=OFF -DWITH_TLS=OFF -DWITH_LIBBSD=OFF
}

build_microhttpd() (
    cd "$folder/sources/libmicrohttpd"
    ./configure --prefix="$prefix" --libdir="$prefix/lib" --disable-static --disable-https --disable-curl \
        --disable-doc --disable-examples --disable-nls --disable-dependency-tracking --disable-silent-rules &&
        make -j "$jobs" -C src/microhttpd && make -C src/microhttpd install && make -C src/include install &&
        make install-pkgconfigDATA
)

[ ! -e "$folder/complete" ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-source >/dev/null; then
    skip "the wheel's libraries are built from Debian's source packages: needs apt-get and dpkg-dev"
fi
rm -rf "${folder:?}"/{prefix,sources,licenses,build-*}
fetch >"$folder/fetch.log" 2>&1 || {
    tail -n 3 "$folder/fetch.log"
    skip "Debian's sources of ${packages[*]} can't be had here"
}
{ build_curl && build_zeromq && build_microhttpd; } >"$folder/build.log" 2>&1 || {
    tail -n 30 "$folder/build.log"
    exit 1
}
rm -rf "$folder"/build-* "$folder/sources"
touch "$folder/complete"
