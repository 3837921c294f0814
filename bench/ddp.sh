#!/bin/sh
# The cost of reduction beside PyTorch's DDP over gloo on this host: one table from one run.
#
#   bench/ddp.sh [BUILD_DIR]      default build/release; needs a release build
#   TURNS=1 ROUNDS=3 STEPS=5 PYTHON=python3 bench/ddp.sh      (about four minutes)
#
# Two ranks, pinned, one thread each; a 25 M-parameter MLP and 1,000 tensors of 1 KiB. Both programs run in
# turns, TURNS times; in each, local and reduced steps take turns for ROUNDS rounds of STEPS steps. Medians
# of rounds; cost = reduced step - local step of the same round.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
turns=${TURNS:-1} rounds=${ROUNDS:-3} steps=${STEPS:-5} python=${PYTHON:-python3}
bench=$build/bin/bench_ddp
[ -x "$bench" ] || { echo "ddp.sh: $bench is not there; build it with: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

results=$(mktemp)
trap 'rm -f "$results" "$results.one"' EXIT
has_ddp=yes
"$python" -c 'import torch' 2>/dev/null || { has_ddp=no; echo "# DDP: not installed ($python has no torch)"; }
turn=0
while [ "$turn" -lt "$turns" ]; do
  "$bench" "$rounds" "$steps" >"$results.one"
  sed 's/^/gradsync /' "$results.one" >>"$results"
  if [ "$has_ddp" = yes ]; then
    "$python" bench/ddp_peer.py "$rounds" "$steps" >"$results.one"
    sed 's/^/ddp /' "$results.one" >>"$results"
  fi
  turn=$((turn + 1))
done

awk '
  function median(list, n,    i, j, swap) {
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && list[j] < list[j - 1]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
    return n ? (list[int((n + 1) / 2)] + list[int(n / 2) + 1]) / 2 : 0
  }
  function column(key, which,    i, list) {
    for (i = 1; i <= count[key]; i++) list[i] = value[key, which, i]
    return median(list, count[key])
  }
  NF == 6 {
    key = $2 " " $1 " " $3
    if (!(key in count)) keys[++num_keys] = key
    i = ++count[key]
    value[key, "local", i] = $4; value[key, "reduced", i] = $5; value[key, "stall", i] = $6
    value[key, "cost", i] = $5 - $4
  }
  END {
    printf "%-12s %-10s %-12s %12s %12s %12s %12s\n", "# model", "who", "variant", "local µs", "reduced µs", "cost µs", "switch µs"
    for (k = 1; k <= num_keys; k++) {
      split(keys[k], name, " ")
      cost[keys[k]] = column(keys[k], "cost"); reduced[keys[k]] = column(keys[k], "reduced")
      switches = (name[2] == "ddp" || name[3] == "replan")
      printf "%-12s %-10s %-12s %12.1f %12.1f %12.1f %12s\n", name[1], name[2], name[3], column(keys[k], "local"),
             reduced[keys[k]], cost[keys[k]], switches ? sprintf("%.1f", column(keys[k], "stall")) : "-"
    }
    split("small-1000 mlp-25m", models, " ")
    for (m = 1; m <= 2; m++) {
      model = models[m]; ours = cost[model " gradsync views"]
      theirs = cost[model " ddp views"]
      if (cost[model " ddp copies"] < theirs) theirs = cost[model " ddp copies"]
      if (theirs) printf "# %s: cost %.1f us, DDP at its best %.1f us: ratio %.3f (aim 0.333)\n", model, ours, theirs, ours / theirs
      used = reduced[model " gradsync all-used"]; unused = reduced[model " gradsync some-unused"]
      printf "# %s: unused parameters cost %+.2f %% of a step (aim 1)", model, 100 * (unused - used) / used
      used = reduced[model " ddp all-used"]; unused = reduced[model " ddp some-unused"]
      if (used) printf ", DDP %+.2f %%", 100 * (unused - used) / used
      stall = column(model " gradsync replan", "stall")
      printf "\n# %s: a switch of the plan costs %.2f steps (aim 1)\n", model, stall / reduced[model " gradsync replan"]
    }
  }' "$results"
