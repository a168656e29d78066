#!/bin/bash
# Starts N ranks of a program on this machine:  scripts/run_ranks.sh N program [arguments]
#   RUN_RANKS_TIMEOUT=seconds  ends the job after that time (exit code 124)
#   RUN_RANKS_MPI_ARGS="..."   more arguments for mpirun
# TERM and INT to this process reach mpirun, which passes them on to the ranks; they then have 10 minutes to finish
# their step and save (mpirun's default is 1 second).
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

cores=$(nproc)
settings=(--oversubscribe --bind-to none --mca odls_base_sigkill_timeout 600)
if ((ranks > cores)); then
  settings+=(--mca mpi_yield_when_idle 1)
fi
if ((ranks >= cores)); then
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi
if [[ $(id -u) -eq 0 ]]; then # Open MPI asks twice before it runs as root, as it must in a container
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

limit=()
if [[ -n ${RUN_RANKS_TIMEOUT:-} ]]; then
  limit=(timeout --kill-after=10 "$RUN_RANKS_TIMEOUT")
fi
# shellcheck disable=SC2086  # more arguments are words
exec "${limit[@]}" mpirun -np "$ranks" "${settings[@]}" ${RUN_RANKS_MPI_ARGS:-} "$@"
