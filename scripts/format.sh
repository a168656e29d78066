#!/bin/bash
# Formats the C++ sources with clang-format.
#   scripts/format.sh           rewrites them
#   scripts/format.sh --check   only lists lines that would change; exit code 1 when there are any
set -euo pipefail
cd "$(dirname "$0")/.."

command -v clang-format >/dev/null || { echo "format: clang-format is missing: run scripts/setup.sh" >&2; exit 1; }
case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
find runtime kernels parallel examples tests -name '*.h' -print0 -o -name '*.cpp' -print0 -o -name '*.cu' -print0 -o -name '*.cuh' -print0 |
  xargs -0 -r clang-format "${mode[@]}"
