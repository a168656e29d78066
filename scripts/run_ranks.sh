#!/bin/bash
# Starts N ranks of a program on this machine:  scripts/run_ranks.sh N program [arguments]
#   RUN_RANKS_TIMEOUT=seconds  kills the job after that time (exit code 124)
#   RUN_RANKS_MPI_ARGS="..."   more arguments for mpirun
#   RUN_RANKS_VERBOSE=1        mpirun's own messages too
#
# TERM, INT and USR1 to this script reach every rank as USR1, which lets a training run finish its step and save; a
# second one ends the job at once: mpirun gets TERM and, as Open MPI 4.1's can hang for good on ranks that die inside
# MPI_Init, five seconds later all that is left of the job gets KILL.
# mpirun itself kills its ranks a second after TERM or INT. Its setting odls_base_sigkill_timeout would make that later,
# but then a job with a failed rank also ends late: measured with Open MPI 4.1.4 and a rank that was killed, 2.4 s by
# default, 9, 17 and 33 s with 4, 8 and 16.
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

# pretrain_gpt takes USR1 from the first line of its main() on; until then, while its libraries load, it would die of it.
hold=()
if [[ ${program##*/} == pretrain_gpt ]] && env --block-signal=USR1 true 2>/dev/null; then
  hold=(env --block-signal=USR1)
fi

# In a session of its own, so that Ctrl-C reaches this script only, and so that all of the job can be found.
# shellcheck disable=SC2086  # more arguments are words
setsid mpirun -np "$ranks" "${settings[@]}" ${RUN_RANKS_MPI_ARGS:-} "${hold[@]}" "$@" <&0 &
mpirun=$!

kill_session() {
  local file line fields
  for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    read -r -a fields <<<"${line##*) }" # state, parent, group, session
    if [[ ${fields[3]} == "$mpirun" ]]; then
      kill -KILL "${line%% *}" || true
    fi
  done 2>/dev/null
}

end_now() {
  trap '' TERM INT USR1 ALRM # bash would begin anew at each
  kill -TERM "$mpirun" 2>/dev/null || true
  local tenths
  for ((tenths = 0; tenths < 50; ++tenths)); do
    kill -0 "$mpirun" 2>/dev/null || return 0
    sleep 0.1 || true
  done
  echo "scripts/run_ranks.sh: mpirun did not end within 5 seconds of TERM; it and all its ranks are killed" >&2
  kill_session
}

asked=
ask() {
  if [[ -z $asked ]]; then
    asked=1
    kill -USR1 "$mpirun" 2>/dev/null || true
  else
    end_now
  fi
}
trap ask TERM INT USR1

timed_out=
limit=
if [[ -n ${RUN_RANKS_TIMEOUT:-} ]]; then
  end_at_limit() {
    timed_out=1
    echo "scripts/run_ranks.sh: killed after $RUN_RANKS_TIMEOUT seconds" >&2
    end_now
  }
  trap end_at_limit ALRM
  (
    sleep "$RUN_RANKS_TIMEOUT" >/dev/null 2>&1 # outlives a job that ends; holds no pipe of it open
    kill -ALRM $$
  ) &
  limit=$!
fi

while kill -0 "$mpirun" 2>/dev/null; do # a signal ends the wait, too
  wait "$mpirun" || true
done
status=0
wait "$mpirun" || status=$?
if [[ -n $limit ]]; then
  kill "$limit" 2>/dev/null || true
fi
if [[ -n $timed_out ]]; then
  status=124
fi
if ((status > 128)); then
  echo "scripts/run_ranks.sh: exit code $status: a rank was ended by SIG$(kill -l $((status - 128)) 2>/dev/null || echo ?)," \
    "or mpirun could not start it (RUN_RANKS_VERBOSE=1 shows what it says)" >&2
fi
exit "$status"
