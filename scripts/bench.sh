#!/bin/bash
# Runs the bench programs of a release build, one after the other, and keeps what they print.
#   scripts/bench.sh [name ...]   all of build/release/bin/bench_*, or those named; output also in build/bench/NAME.txt
# Numbers depend on the machine and on what else runs there; compare only figures of one run.
set -euo pipefail
cd "$(dirname "$0")/.."

for name in "$@"; do
  [[ $name == bench_* ]] || { echo "bench: no bench program is called $name; usage: scripts/bench.sh [bench_NAME ...]" >&2; exit 2; }
done
bin=build/release/bin
if [[ ! -d $bin ]]; then
  cmake --preset release >/dev/null && cmake --build --preset release
fi
names=("$@")
if ((${#names[@]} == 0)); then
  for program in "$bin"/bench_*; do
    [[ -x $program ]] && names+=("$(basename "$program")")
  done
fi
((${#names[@]} > 0)) || { echo "bench: no bench programs in $bin; build with cmake --build --preset release" >&2; exit 1; }

mkdir -p build/bench
failed=0
for name in "${names[@]}"; do
  echo "== $name"
  if ! timeout 1800 "$bin/$name" | tee "build/bench/$name.txt"; then
    echo "bench: $name failed" >&2
    failed=1
  fi
done
exit $failed
