#!/usr/bin/env bash
# A small job through coordinator, workers and trainers, with the programs of one folder and nothing else: on a bare machine
# there is no curl and no jq. Prints the job, its ranks, what a trainer took to its first step, and the loss, which must fall.
#
#   tests/gpu/job.sh BIN [--device cuda|cpu] [--ranks N] [--precision fp32] [--backend auto] [--layers 4] [--batch 16] [--steps 300] [--least-fall 0.2]
# Each rank has a GPU of its own; --backend nccl brings NCCL to a single one, too.
set -euo pipefail
bin=${1:?which folder} && shift
bin=$(cd "$bin" && pwd) texts=$(cd "$(dirname "$0")/../.." && pwd)
device=cuda ranks=1 precision=fp32 backend=auto layers=4 batch=16 steps=300 least_fall=0.2
while [ $# -gt 0 ]; do
  case $1 in
    --device | --ranks | --precision | --backend | --layers | --batch | --steps | --least-fall)
      name=${1#--}
      printf -v "${name//-/_}" %s "${2:?$1 needs a value}"
      shift 2
      ;;
    *) sed -n '2,7p' "$0" >&2; exit 64 ;;
  esac
done
pids=() run=$(mktemp -d)
finish() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  tail -n 40 "$run"/*.log
  rm -rf "$run"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
export XDG_CONFIG_HOME=$run/config
unset GRADSYNC_TOKEN GRADSYNC_TOKEN_FILE GRADSYNC_CACERT
mkdir "$run/data" "$run/text"
cat "$texts"/docs/*.md >"$run/text/all.txt" 2>/dev/null || seq 60000 >"$run/text/all.txt"

"$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/data" \
  --port-file "$run/ports.json" 2>"$run/coordinator.log" &
pids+=($!)
for _ in $(seq 600); do
  if [ -s "$run/ports.json" ] || ! kill -0 "${pids[0]}" 2>/dev/null; then break; fi
  sleep 0.05
done
port_of() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$run/ports.json"; }
[ -s "$run/ports.json" ] || { echo "FAIL the coordinator does not start"; exit 1; }
GRADSYNC_SERVER=http://$(port_of http) control=$(port_of control)
export GRADSYNC_SERVER
"$bin/gradsync-worker" --coordinator "$control" --name "$device" --slots "$ranks" --data-root "$run/text" 2>"$run/worker.log" &
pids+=($!)
cat >"$run/job.json" <<JSON
{"name": "$device", "world": {"min": $ranks, "max": $ranks, "device": "$device", "wait_seconds": 20},
 "model": {"kind": "gpt2", "seed": 1337, "precision": "$precision",
           "gpt2": {"layers": $layers, "heads": 4, "channels": 128, "context": 128, "vocab": 256}},
 "data": {"kind": "bytes", "train": ["*"], "micro_batch": $batch, "shuffle_seed": 7},
 "optimizer": {"kind": "adamw", "lr": 0.002, "beta2": 0.95, "weight_decay": 0.1, "grad_clip_norm": 1.0},
 "reducer": {"backend": "$backend"},
 "steps": {"target": $steps}, "checkpoint": {"every_steps": $steps}}
JSON
code=0
"$bin/gradsync" submit "$run/job.json" --wait || code=$?
job=$("$bin/gradsync" list --all -o name)
"$bin/gradsync" show "$job"
"$bin/gradsync" workers "$job"
"$bin/gradsync" logs "$job" --rank all --grep 'first step'
[ "$code" -eq 0 ] || { echo "FAIL the job ended with exit code $code"; exit "$code"; }
"$bin/gradsync" metrics "$job" --series loss | tee "$run/series" | tail -n 3
# The loss of the first step and the last: the table's last column.
awk -v least="$least_fall" '$NF ~ /^[0-9.]+$/ { if (!n++) first = $NF; last = $NF }
  END { printf "loss %s to %s over %d points\n", first, last, n; exit !(n > 1 && first - last > least) }' "$run/series" ||
  { echo "FAIL the loss did not fall by $least_fall"; exit 1; }
