#!/bin/bash
# What this project does on a real GPU, within minutes: correctness first, then figures beside limits of the same run.
#   scripts/gpu_check.sh                    builds, then runs here
#   scripts/gpu_check.sh --build-only       builds and packs build/gpu_check and build/gpu_check.tar.gz; needs no GPU
#   scripts/gpu_check.sh --run-only DIR     runs what was packed, where nothing can be installed (DIR/gpu_check.sh is a copy)
#   scripts/gpu_check.sh --emulated         everything with tiny sizes in the emulated build: tries this script, no figures
# Further: --steps a,b,..  only these (in this order: kernels, kernels_ptx, conformance, sanitizer, matmul, attention, torch,
#          bandwidth, train, grid, nccl);  --out DIR  for logs and JSON (build/gpu_check_results; with --run-only
#          gpu_check_results in the current folder);  --build DIR  packs what is built there.
#
# The GPU machine needs an x86-64 CPU with AVX2, a glibc as new as the building machine's, an NVIDIA driver for the CUDA
# version that was built with (13: R580 or newer, 12: R525 or newer), and that version's libcublasLt.so (540 MB, so not packed) and
# libnccl.so.2. They are looked for on LD_LIBRARY_PATH, in /usr/local/cuda*/lib64, in the loader's own folders, and in the nvidia/*/lib
# folders of Python's packages (pip's and torch's wheels bring them). No MPI and no compiler: ranks are threads.
#
# Steps are processes of their own; one that fails does not stop the rest. Exit code 1: some step failed, 2: nothing ran.
# Results: OUT/gpu_check.json, a list with an entry for each step, and OUT/STEP.log.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all_steps=(kernels kernels_ptx conformance sanitizer matmul attention torch bandwidth train grid nccl)
mode=both bundle="" out="" emulated=0 build="" steps=("${all_steps[@]}")
while (($# > 0)); do
  case $1 in
    --build-only) mode=build ;;
    --run-only) mode=run bundle=${2:?--run-only needs the packed folder} && shift ;;
    --emulated) emulated=1 ;;
    --build) build=$(realpath -m "${2:?--build needs a build folder}") && shift ;;
    --out) out=$(realpath -m "${2:?--out needs a folder}") && shift ;;
    --steps) IFS=, read -r -a steps <<<"${2:?--steps needs names}" && shift ;;
    --help | -h) sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' && exit 0 ;;
    *) echo "gpu_check: unknown argument $1; --help lists them" >&2 && exit 2 ;;
  esac
  shift
done
for step in "${steps[@]}"; do
  [[ " ${all_steps[*]} " == *" $step "* ]] || { echo "gpu_check: no step $step; there are: ${all_steps[*]}" >&2; exit 2; }
done

# Builds without -march=native and oneDNN: the GPU machine may have another CPU, and what is timed there is the GPU.
make_build() {
  if ((emulated)); then
    build=build/emulated
    cmake --preset emulated >/dev/null || return 1
  else
    build=build/gpu
    cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DASHLAR_NATIVE=OFF -DASHLAR_ONEDNN=OFF \
      -DCMAKE_CXX_FLAGS=-march=x86-64-v3 | grep -E -- '--   (CUDA|NCCL)' || return 1
  fi
  cmake --build $build --target gpu_check -j "$(env -u OMP_NUM_THREADS nproc)" || return 1
}

# The program, this script, and the libraries that are neither the system's C library nor NVIDIA's.
pack() {
  local program=$build/bin/gpu_check
  [[ -x $program ]] || { echo "gpu_check: $program is not there; CUDA's kernels were not built" >&2; return 1; }
  rm -rf "$bundle" && mkdir -p "$bundle/bin" "$bundle/lib" || return 1
  cp "$program" "$bundle/bin/" && strip --strip-debug "$bundle/bin/gpu_check" || return 1
  cp scripts/gpu_check.sh tests/gpu/torch_attention.py "$bundle/" || return 1
  git describe --always --dirty >"$bundle/BUILT" 2>/dev/null || date -u +%F >"$bundle/BUILT"
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|cuda|cudart|cublas|cublasLt|nccl|nvidia[^/]*))\.so' |
    xargs -r cp -L -t "$bundle/lib/" || return 1
  # The cuBLASLt that the program will open; compilers leave beginnings of such a text about, so the longest.
  strings -n 8 "$program" | grep -oE 'libcublasLt\.so\.[0-9]+' | sort -u | tail -n 1 >"$bundle/CUBLASLT"
  if ((!emulated)); then
    tar -C "$(dirname "$bundle")" -czf "$bundle.tar.gz" "$(basename "$bundle")" || return 1
    local megabytes=$(($(stat -c %s "$bundle.tar.gz") / 1000000))
    echo "gpu_check: packed $bundle, $(du -sm "$bundle" | cut -f1) MB, and $bundle.tar.gz, $megabytes MB"
    ((megabytes < 60)) || { echo "gpu_check: the packed file has 60 MB or more" >&2; return 1; }
  fi
}

# Folders that may hold NVIDIA's libraries, the likeliest first.
library_folders() {
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  ls -d /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 2>/dev/null
  python3 -c 'import glob, sys; print("\n".join(d for p in sys.path for d in sorted(glob.glob(p + "/nvidia/*/lib"))))' 2>/dev/null
  ldconfig -p 2>/dev/null | sed -nE 's/.*=> (\/.*)\/lib(cublasLt|nccl)\.so.*/\1/p'
}

find_libraries() {
  local name folder found=()
  for name in "$(cat "$bundle/CUBLASLT")" libnccl.so.2; do
    while read -r folder; do
      if [[ -n $folder && -e $folder/$name ]]; then
        found+=("$folder")
        echo "gpu_check: $name in $folder"
        continue 2
      fi
    done < <(library_folders)
    echo "gpu_check: $name was not found (searched: $(library_folders | sort -u | tr '\n' ' ')); put its folder on LD_LIBRARY_PATH" >&2
  done
  local IFS=:
  libraries+=${found[*]:+:${found[*]}}
}

is() { (($1)) && echo true || echo false; }

# check STEP LIMIT COMMAND...: runs it, with its output on screen and in a log. Code 3: it cannot run here.
summary=() failed=0 ran=0
check() {
  local step=$1 limit=$2 start=$SECONDS outcome=ok
  shift 2
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$out/$step.log" |
    awk 'NR <= 200 {print substr($0, 1, 300)} END {if (NR > 200) print "  .. and " NR - 200 " lines more in the log"}'
  local code=${PIPESTATUS[0]}
  case $code in
    0) ran=1 ;;
    3) outcome="not here" ;;
    *) outcome="FAILED ($code)" failed=1 ran=1 ;;
  esac
  if [[ ! -s $out/$step.json ]]; then
    printf '{"step": "%s", "emulated": %s, "passed": %s, "skipped": %s, "exit_code": %d}\n' "$step" \
      "$(is $((emulated == 1)))" "$(is $((code == 0)))" "$(is $((code == 3)))" "$code" >"$out/$step.json"
  fi
  summary+=("$(printf '%-12s %-13s %4d s' "$step" "$outcome" $((SECONDS - start)))")
}

# A few cases with small shapes under compute-sanitizer, where CUDA's tool is.
sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
  [[ -n $tool ]] || { echo "sanitizer: compute-sanitizer is not here"; return 3; }
  local each
  for each in memcheck racecheck; do
    LD_LIBRARY_PATH=$libraries "$tool" --tool "$each" --error-exitcode 9 "$bundle/bin/gpu_check" kernels --cases "$small_cases" ||
      return 1
  done
}
export -f sanitizer

run_steps() {
  export bundle small_cases='CudaCast.*:CudaGemm/0.TheResidualMayBeTheOutput'
  export libraries=$bundle/lib # for our program alone: Python brings its own
  mkdir -p "$out" && rm -f "$out"/*.json "$out"/*.log
  local some=() ours=(--cases 'Cuda*') tiny=()
  if ((emulated)); then
    some=(--cases "$small_cases") ours=("${some[@]}") tiny=(--tiny)
  else
    find_libraries
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv 2>/dev/null | tee "$out/machine.log"
  fi
  libraries+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local step program=(env LD_LIBRARY_PATH="$libraries" "$bundle/bin/gpu_check")
  for step in "${steps[@]}"; do
    case $step in
      kernels) check kernels 300 "${program[@]}" kernels --out "$out/kernels.json" "${some[@]}" ;;
      # The A100's code on whatever GPU is here, made from its PTX. cuBLASLt brings no PTX, so without what calls it.
      kernels_ptx) CUDA_FORCE_PTX_JIT=1 check kernels_ptx 600 "${program[@]}" kernels --name kernels_ptx --out "$out/kernels_ptx.json" "${ours[@]}" ;;
      sanitizer) check sanitizer 300 bash -c sanitizer ;;
      torch) check torch 300 python3 "$bundle/torch_attention.py" --out "$out/torch.json" "${tiny[@]}" ;;
      *) check "$step" 300 "${program[@]}" "$step" --out "$out/$step.json" "${tiny[@]}" ;;
    esac
  done
  {
    echo '['
    local between=""
    for step in "${steps[@]}"; do
      printf '%s' "$between" && cat "$out/$step.json" && between=','
    done
    echo ']'
  } >"$out/gpu_check.json"
  echo
  echo "gpu_check: $(cat "$bundle/BUILT"), $SECONDS s, results in $out$( ((emulated)) && echo '   [emulated: no figures]')"
  printf '  %s\n' "${summary[@]}"
  ((ran)) || { echo "gpu_check: nothing ran" >&2; exit 2; }
}

if [[ $mode == run ]]; then
  out=${out:-$PWD/gpu_check_results}
else
  cd "$here/.." || exit 2
  out=${out:-$PWD/build/gpu_check_results}
  if [[ -z $build ]]; then
    make_build || { echo "gpu_check: the build failed" >&2; exit 2; }
  fi
  bundle=$PWD/build/gpu_check$( ((emulated)) && echo _emulated)
  pack || exit 2
fi
if [[ $mode != build ]]; then
  bundle=$(cd "$bundle" 2>/dev/null && pwd) || { echo "gpu_check: --run-only: no such folder" >&2; exit 2; }
  [[ -x $bundle/bin/gpu_check ]] || { echo "gpu_check: $bundle holds no bin/gpu_check; --build-only packs it" >&2; exit 2; }
  run_steps
fi
exit $failed
