#!/bin/bash
# Everything that must hold before a change is kept; CI runs just this.
#   scripts/check.sh          format, include rules, builds, unit and mpi tests in release, CUDA code in the emulated build,
#                             unit tests under asan and tsan
#   scripts/check.sh --fast   the same without the sanitizers
#   scripts/check.sh --all    the same with the slow tests and the benches
# Every stage runs even when one before it failed; the exit code is 1 when any failed. Logs: build/check/STAGE.log
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

mode=normal
case "${1:-}" in
  "") ;;
  --fast) mode=fast ;;
  --all) mode=all ;;
  *) echo "usage: scripts/check.sh [--fast|--all]" >&2; exit 2 ;;
esac

mkdir -p build/check
rm -f build/check/*.log
cores=$(env -u OMP_NUM_THREADS nproc) # nproc counts OMP_NUM_THREADS when that is set
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # tests run side by side, one thread each
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
failed=0
summary=()

# stage NAME LIMIT COMMAND...: runs it with its output in a log, and notes time and outcome.
stage() {
  local name=$1 limit=$2 log="build/check/${1// /_}.log" start=$SECONDS outcome=ok
  shift 2
  echo "== $name"
  # Not in the foreground: at the limit timeout ends the whole process group, ranks of mpirun included.
  if ! timeout --kill-after=20 "$limit" "$@" >"$log" 2>&1; then
    outcome=FAILED
    failed=1
    tail -n 60 "$log"
  fi
  local counts
  counts=$(grep -E '^[0-9]+% tests passed|^check_includes' "$log" | tail -n 1)
  summary+=("$(printf '%-22s %-7s %5d s  %s' "$name" "$outcome" $((SECONDS - start)) "$counts")")
  echo "   ${summary[-1]}"
  [[ $outcome == ok ]]
}

# The programs behind the tests of one label in a build folder: all that a build for that label is asked for.
programs_of() {
  ctest --test-dir "$1" -N -L "$2" | sed -nE 's/^ *Test +#[0-9]+: (.*)$/\1/p' | while read -r name; do
    if ninja -C "$1" -t query "$name" >/dev/null 2>&1; then
      echo "$name"
    fi
  done
}

# build PRESET [LABEL]: everything, or only what the tests of a label run.
build() {
  cmake --preset "$1" || return 1
  local programs=()
  if [[ -n ${2:-} ]]; then
    mapfile -t programs < <(programs_of "build/$1" "$2")
    ((${#programs[@]} > 0)) || { echo "no tests with label $2 in build/$1"; return 1; }
  fi
  cmake --build --preset "$1" -j "$cores" ${programs:+--target "${programs[@]}"}
}
export -f build programs_of
export cores

# build_and_test PRESET LIMIT [LABEL]: tests only what was built.
build_and_test() {
  local preset=$1 limit=$2
  stage "build $preset" 2400 bash -c "set -o pipefail; build $preset ${3:-}" &&
    stage "test $preset" "$limit" "${runner[@]}" ctest --preset "$preset" -j "$cores" --no-tests=error
}

stage "setup" 900 scripts/setup.sh || { echo "check: without these packages nothing can be built"; exit 1; }
stage "format" 120 scripts/format.sh --check
stage "include rules" 60 scripts/check_includes.py

runner=()
build_and_test release 1200
if grep -q 'CUDA: NOT FOUND' build/check/build_release.log; then
  summary+=("test emulated          skipped: it needs the headers of the CUDA toolkit, which is not here")
else
  build_and_test emulated 1200 emulated
fi
if [[ $mode != fast ]]; then
  build_and_test asan 1500 unit
  # g++ 12's ThreadSanitizer ends at once ("unexpected memory mapping") where the kernel spreads addresses over more
  # than 28 bits, as kernels since 6.6 do by default; setarch -R switches that off for the tests.
  program=$(mktemp -d)
  echo 'int main() {}' >"$program/empty.cpp"
  if ! g++ -fsanitize=thread "$program/empty.cpp" -o "$program/empty" || ! "$program/empty" >/dev/null 2>&1; then
    runner=(setarch -R)
  fi
  for _ in 1 2 3 4 5; do # the mapping differs from start to start
    "$program/empty" >/dev/null 2>&1 || runner=(setarch -R)
  done
  if "${runner[@]}" "$program/empty" >/dev/null 2>&1; then
    build_and_test tsan 1500 unit
  else
    failed=1
    summary+=("test tsan              FAILED: ThreadSanitizer cannot start here; as root: sysctl vm.mmap_rnd_bits=28")
  fi
  rm -r "$program"
  runner=()
fi
if [[ $mode == all ]]; then
  # The preset leaves the slow tests out, so they are asked for by the folder.
  stage "test slow" 3600 ctest --test-dir build/release -L slow --output-on-failure
  stage "benches" 3600 scripts/bench.sh
fi

echo
echo "check: $SECONDS s on $cores cores"
printf '  %s\n' "${summary[@]}"
passed=$(grep -hE '^[0-9]+% tests passed' build/check/test_*.log 2>/dev/null |
  sed -E 's/.* ([0-9]+) tests failed out of ([0-9]+)/\1 \2/' | awk '{f += $1; n += $2} END {print n - f " passed, " f + 0 " failed"}')
echo "check: ctest: $passed; stages: $(printf '%s\n' "${summary[@]}" | grep -c ' ok ') ok, $(printf '%s\n' "${summary[@]}" | grep -c 'FAILED') failed"
exit $failed
