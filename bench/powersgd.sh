#!/bin/sh
# PowerSGD's CPU time outside of collectives beside PyTorch's own hook: one table from one run.
#
#   bench/powersgd.sh [BUILD_DIR]      default build/release; needs a release build
#   TURNS=3 STEPS=5 RANKS="2 4" BUCKET_MIB=25 PYTHON=python3 bench/powersgd.sh
#
# The gradients of a 25 M-parameter MLP, the same buckets, one thread for computation in each rank. Both programs
# run in turns, TURNS times, STEPS steps each. A step is the CPU time of the rank that spent most.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
turns=${TURNS:-3} steps=${STEPS:-5} ranks=${RANKS:-2 4} mib=${BUCKET_MIB:-25} python=${PYTHON:-python3}
bench=$build/bin/bench_powersgd
[ -x "$bench" ] || { echo "powersgd.sh: $bench is not there; build it with: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

results=$(mktemp)
trap 'rm -f "$results"' EXIT
version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) || { version=; echo "# PyTorch: not installed ($python has no torch)"; }
[ -z "$version" ] || echo "# PyTorch $version"
turn=0
while [ "$turn" -lt "$turns" ]; do
  for n in $ranks; do
    "$bench" "$n" "$steps" "$mib" | sed 's/^/gradsync /' >>"$results"
    [ -z "$version" ] || "$python" bench/powersgd_peer.py "$n" "$steps" "$mib" 2>/dev/null | sed 's/^/pytorch /' >>"$results"
  done
  turn=$((turn + 1))
done

sort -k1,4 -k5,5n "$results" | awk '
  { key = $3 " " $4; who = $1; value[who, key, ++count[who, key]] = $5; if (!(key in seen)) { seen[key] = 1; keys[++num_keys] = key } }
  function median(who, key,    n) { n = count[who, key]; return n ? (value[who, key, int((n + 1) / 2)] + value[who, key, int(n / 2) + 1]) / 2 : 0 }
  END {
    printf "%-8s %-6s %14s %14s %8s\n", "# rank", "ranks", "gradsync µs", "pytorch µs", "ratio"
    for (k = 1; k <= num_keys; k++) {
      split(keys[k], name, " "); ours = median("gradsync", keys[k]); theirs = median("pytorch", keys[k])
      printf "%-8s %-6s %14.1f %14.1f %8s\n", name[1], name[2], ours, theirs, theirs ? sprintf("%.3f", ours / theirs) : "-"
    }
  }'
