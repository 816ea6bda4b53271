#!/usr/bin/env bash
# start.sh LIBRARY [RUNS]: how long it takes to load LIBRARY, to make a communicator of two processes with it, and, where
# mpicc and mpirun are, to MPI_Init two processes: one of each after the other, RUNS times (50), and the medians in µs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "${1:?usage: ${0##*/} LIBRARY [RUNS]}")
runs=${2:-50}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cc -O2 "$here/start.c" -o "$place/start" -ldl
mpi=()
if command -v mpicc mpirun >/dev/null; then
  mpicc -O2 -DWITH_MPI "$here/start.c" -o "$place/start-mpi"
  mpi=(mpirun --allow-run-as-root --oversubscribe -n 2 "$place/start-mpi")
  mpirun --version | head -n 1
else
  echo "SKIP: there is no mpicc or no mpirun"
fi
for ((run = 0; run < runs; run++)); do
  "$place/start" load "$library" >>"$place/load"
  "$place/start" join "$library" >>"$place/join"
  if ((${#mpi[@]})); then "${mpi[@]}" >>"$place/MPI_Init"; fi
done
for what in load join MPI_Init; do
  if [[ -e $place/$what ]]; then
    sort -n "$place/$what" | awk -v what=$what '{ all[NR] = $1 }
      END { printf "%-9s median %.0f us of %d, least %.0f, most %.0f\n", what, all[int((NR + 1) / 2)], NR, all[1], all[NR] }'
  fi
done
uptime
