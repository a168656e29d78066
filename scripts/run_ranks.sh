#!/bin/bash
# Starts N ranks of a program on this machine:  scripts/run_ranks.sh N program [arguments]
#   RUN_RANKS_TIMEOUT=seconds  kills the job after that time (exit code 124)
#   RUN_RANKS_MPI_ARGS="..."   more arguments for mpirun
#   RUN_RANKS_VERBOSE=1        mpirun's own messages too
#
# TERM, INT and USR1 to this script reach every rank as USR1, which lets a training run finish its step and save; a
# second one ends the job at once. mpirun itself kills its ranks a second after TERM or INT. Its setting
# odls_base_sigkill_timeout would make that later, but then a job with a failed rank also ends late: measured with Open
# MPI 4.1.4 and a rank that was killed, 2.4 s by default, 9, 17 and 33 s with 4, 8 and 16.
set -euo pipefail

if [[ $# -lt 2 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: scripts/run_ranks.sh <number of ranks> <program> [arguments]" >&2
  exit 2
fi
ranks=$1
shift
if ! command -v mpirun >/dev/null; then
  echo "scripts/run_ranks.sh: mpirun was not found. On Debian: apt-get install openmpi-bin libopenmpi-dev" >&2
  exit 2
fi

program=$1
if ! command -v "$program" >/dev/null; then
  echo "scripts/run_ranks.sh: $program was not found or cannot be executed" >&2
  exit 2
fi

cores=$(env -u OMP_NUM_THREADS nproc) # nproc counts OMP_NUM_THREADS when that is set
settings=(--oversubscribe --bind-to none)
if [[ -z ${RUN_RANKS_VERBOSE:-} ]]; then # two boxes behind every error would hide what the program says
  settings+=(--quiet)
fi
if ((ranks > cores)); then
  settings+=(--mca mpi_yield_when_idle 1)
fi
# Threads x ranks stay within the cores; Open MPI does not hand this on to other hosts by itself.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
# A thread that waits gives its core up early: with libgomp's default, steps of one rank with two threads took 1.8 to 3.4 s
# on a shared machine, and 0.3 s under OMP_WAIT_POLICY=passive. This count lies between the two; it was not timed itself.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}
if [[ $(id -u) -eq 0 ]]; then # Open MPI asks twice before it runs as root, as it must in a container
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# In a session of its own, so that Ctrl-C reaches this script only.
# shellcheck disable=SC2086  # more arguments are words
setsid mpirun -np "$ranks" "${settings[@]}" ${RUN_RANKS_MPI_ARGS:-} "$@" <&0 &
mpirun=$!

ask() {
  kill -s "$signal" "$mpirun" 2>/dev/null || true
  signal=TERM
}
signal=USR1
trap ask TERM INT USR1

limit=
if [[ -n ${RUN_RANKS_TIMEOUT:-} ]]; then
  (
    sleep "$RUN_RANKS_TIMEOUT" >/dev/null 2>&1 # outlives a job that ends; holds no pipe of it open
    echo "scripts/run_ranks.sh: killed after $RUN_RANKS_TIMEOUT seconds" >&2
    kill -TERM "$mpirun"
  ) &
  limit=$!
fi

status=0
wait "$mpirun" || status=$?
while kill -0 "$mpirun" 2>/dev/null; do # a signal ended the wait, not mpirun
  status=0
  wait "$mpirun" || status=$?
done
if [[ -n $limit ]] && ! kill "$limit" 2>/dev/null; then
  status=124
fi
if ((status > 128)); then
  echo "scripts/run_ranks.sh: exit code $status: a rank was ended by SIG$(kill -l $((status - 128)) 2>/dev/null || echo ?)," \
    "or mpirun could not start it (RUN_RANKS_VERBOSE=1 shows what it says)" >&2
fi
exit "$status"
