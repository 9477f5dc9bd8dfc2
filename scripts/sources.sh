#!/usr/bin/env bash
# Lists the project's C files, one a line.
set -euo pipefail
cd "$(dirname "$0")/.."
find include src sim tools examples test fuzz docs/man -name '*.[ch]' 2>/dev/null | sort
