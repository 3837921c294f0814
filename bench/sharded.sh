#!/bin/sh
# A sharded step beside an unsharded one and beside fairscale's on this host: one table from one run.
#
#   bench/sharded.sh [BUILD_DIR]      default build/release; needs a release build
#   TURNS=3 ROUNDS=2 STEPS=5 PYTHON=python3 bench/sharded.sh      (about two minutes)
#
# Two ranks, pinned, one thread each; an MLP of 25.2 M parameters with Adam. The programs run in turns, TURNS
# times; within one, variants take a step each in turn. Medians of all rounds. `pip install fairscale==0.4.13`
# into PYTHON's environment, beside torch.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
turns=${TURNS:-3} rounds=${ROUNDS:-2} steps=${STEPS:-5} python=${PYTHON:-python3}
bench=$build/bin/bench_sharded
[ -x "$bench" ] || { echo "sharded.sh: $bench is not there; build it with: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

results=$(mktemp)
trap 'rm -f "$results"' EXIT
has_torch=yes
"$python" -c 'import torch' 2>/dev/null || { has_torch=no; echo "# peers: not installed ($python has no torch)"; }
turn=0
while [ "$turn" -lt "$turns" ]; do
  "$bench" "$rounds" "$steps" >>"$results"
  [ "$has_torch" = no ] || "$python" bench/sharded_peer.py "$rounds" "$steps" >>"$results"
  turn=$((turn + 1))
done
"$bench" memory >>"$results"

awk '
  function median(list, n,    i, j, swap) {
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && list[j] < list[j - 1]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
    return n ? (list[int((n + 1) / 2)] + list[int(n / 2) + 1]) / 2 : 0
  }
  function column(who, what,    i, list) {
    for (i = 1; i <= count[who, what]; i++) list[i] = value[who, what, i]
    return median(list, count[who, what])
  }
  function ours(name) { return name == "sharded" || name == "tensors" || name == "windows" }
  $1 == "#" { if (!($0 in said)) print; said[$0] = 1; next }
  $2 == "formula" { memory[++num_memory] = $0; next }
  {
    if (!($1 in seen)) { seen[$1] = 1; names[++num_names] = $1 }
    for (i = 2; i < NF; i += 2) value[$1, $i, ++count[$1, $i]] = $(i + 1)
    if ($1 == "whole") { whole = $NF; overlap = $3 + $5 + $7 / 2 }
    if (ours($1)) { value[$1, "ratio", ++count[$1, "ratio"]] = $NF / whole
                    value[$1, "overlap", ++count[$1, "overlap"]] = $NF / overlap }
  }
  END {
    printf "%-12s %10s %10s %10s %10s %10s %10s\n", "# variant", "step ms", "passes", "reduce", "update", "gather", "held MiB"
    for (n = 1; n <= num_names; n++) {
      printf "%-12s", names[n]
      split("step passes reduce update gather", parts, " ")
      for (p = 1; p <= 5; p++) {
        if (count[names[n], parts[p]]) printf " %10.1f", column(names[n], parts[p]) / 1000
        else printf " %10s", "-"
      }
      if (count[names[n], "held"]) printf " %10.1f\n", column(names[n], "held")
      else printf " %10s\n", "below"
    }
    sharded = column("sharded", "step")
    for (n = 1; n <= num_names; n++)
      if (ours(names[n])) {
        printf "# %s / whole, paired: %.3f (aim 1.03)\n", names[n], column(names[n], "ratio")
        printf "# %s / (passes + reduction + update / ranks) of whole, paired: %.3f (aim 1.05)\n", names[n], column(names[n], "overlap")
      } else if (names[n] != "whole" && names[n] != "passes") {
        printf "# sharded / %s: %.3f%s\n", names[n], sharded / column(names[n], "step"), names[n] == "fairscale" ? " (aim 0.588)" : ""
      }
    if (count["passes", "step"])
      printf "# beyond the passes alone: sharded %.1f ms, fairscale %.1f ms\n", (sharded - column("sharded", "passes")) / 1000,
             (column("fairscale", "step") - column("passes", "step")) / 1000
    for (m = 1; m <= num_memory; m++) print "# " memory[m]
  }' "$results"
