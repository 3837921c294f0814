#!/bin/sh
# gradsync's all-reduce beside MPI's and gloo's on this host: one table, ratios from one run.
#
#   bench/comm.sh [BUILD_DIR]      default build/release; needs a release build
#   RANKS=2 ROUNDS=7 LEAST=1024 MOST=104857600 BACKEND=shm PYTHON=python3 bench/comm.sh
#
# Engines take turns round by round; the lower quartile over rounds counts. Peers that are not
# installed are left out. Ranks are pinned, for gradsync and for the peers alike.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
ranks=${RANKS:-2} rounds=${ROUNDS:-7} least=${LEAST:-1024} most=${MOST:-104857600}
python=${PYTHON:-python3} backend=${BACKEND:-shm}
bench=$build/bin/bench_comm
[ -x "$bench" ] || { echo "comm.sh: $bench is not there; build it with: cmake --preset release && cmake --build --preset release" >&2; exit 1; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
[ -x "$build/bin/bench_peer_mpi" ] && command -v mpiexec >/dev/null || echo "# MPI: not installed"
has_gloo=yes
"$python" -c 'import torch' 2>/dev/null || { has_gloo=no; echo "# gloo: not installed ($python has no torch)"; }

round=0
while [ "$round" -lt "$rounds" ]; do
  "$bench" --backend "$backend" --ranks "$ranks" --rounds 1 --least "$least" --most "$most" --pin |
    sed 's/^/gradsync /' >>"$results"
  if [ -x "$build/bin/bench_peer_mpi" ] && command -v mpiexec >/dev/null; then
    mpiexec -n "$ranks" -bind-to core "$build/bin/bench_peer_mpi" 1 "$least" "$most" |
      sed 's/^/mpi /' >>"$results"
  fi
  if [ "$has_gloo" = yes ]; then
    "$python" bench/peer_gloo.py "$ranks" 1 "$least" "$most" | sed 's/^/gloo /' >>"$results"
  fi
  round=$((round + 1))
done

awk -v ranks="$ranks" '
  function quartile(name, bytes,    n, i, j, values, swap) {
    n = count[name, bytes]
    if (!n) return 0
    for (i = 1; i <= n; i++) values[i] = time[name, bytes, i]
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && values[j] < values[j - 1]; j--) {
        swap = values[j]; values[j] = values[j - 1]; values[j - 1] = swap
      }
    return values[int((n - 1) / 4 + 1.5)]
  }
  function add(name, bytes, micros) { time[name, bytes, ++count[name, bytes]] = micros }
  $2 == "#" { next }
  {
    if (!($2 in seen)) { seen[$2] = 1; sizes[++num_sizes] = $2 }
    add($1, $2, $3)
    if ($1 == "gradsync") { add("floor", $2, $8); wrong[$2] += $10; algorithm[$2] = $12 }
  }
  END {
    printf "%12s %10s %10s %10s %8s %10s %8s %10s %8s %6s  %s\n", "# bytes", "time µs", "busbw GB/s",
           "floor µs", "/floor", "MPI µs", "× MPI", "gloo µs", "× gloo", "wrong", "algorithm"
    for (s = 1; s <= num_sizes; s++) {
      b = sizes[s]; t = quartile("gradsync", b); f = quartile("floor", b)
      m = quartile("mpi", b); g = quartile("gloo", b)
      if (!t) continue
      printf "%12d %10.2f %10.2f %10.2f %8.2f %10.2f %8.2f %10.2f %8.2f %6d  %s\n", b, t,
             b / t / 1000 * 2 * (ranks - 1) / ranks, f, f ? t / f : 0, m, m / t, g, g / t,
             wrong[b], algorithm[b]
    }
  }' "$results"
