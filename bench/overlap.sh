#!/usr/bin/env bash
# Updates that overlap with the reduction, as jobs: an MLP of 25.2 M parameters with Adam, two ranks of one thread, in
# turns with the job that reduces and then updates everything. Medians of steps, and each by the floor: the whole job's
# less a half of its update (aim: 1.05).
#   bench/overlap.sh [ROUNDS]    (default: 5; about a minute each)
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
bin=build/release/bin
work=$(mktemp -d)
pids=()
finish() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"; }
trap finish EXIT
export OPENBLAS_NUM_THREADS=1

$bin/gradsync-coordinator --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$work/data" \
  --port-file "$work/ports.json" 2>"$work/coordinator.log" &
pids+=($!)
for _ in $(seq 200); do [ -s "$work/ports.json" ] && break; sleep 0.05; done
server=http://$(jq -r .http "$work/ports.json")
$bin/gradsync-worker --coordinator "$(jq -r .control "$work/ports.json")" --slots 2 --name bench \
  --data-root /usr/share/common-licenses 2>"$work/worker.log" &
pids+=($!)

declare -A members=(
  [whole]=''
  [sharded]=',"reducer":{"sharding":"optimizer"}'
  [step]=',"reducer":{"sharding":"optimizer","zero_overlap":"step","zero_split_buckets":true}'
  [interleaved]=',"reducer":{"sharding":"optimizer","zero_overlap":"interleaved","zero_split_buckets":true}'
  [in_backward]=',"optimizer":{"kind":"adam","in_backward":true}')
names=(whole step interleaved sharded in_backward)

run_job() {  # name → adds "NAME step UPDATE" in ms to the results
  local adam=',"optimizer":{"kind":"adam"}' job state
  [ "$1" = in_backward ] && adam=
  job=$(curl -sS -H 'Content-Type: application/json' -d "{\"world\":{\"min\":2,\"max\":2,\"threads_per_rank\":1},
    \"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[1024,3072,3072,3072,1024,10]}},\"data\":{\"kind\":\"synthetic\",\"micro_batch\":32},
    \"steps\":{\"target\":45},\"checkpoint\":{\"resume\":\"none\"}$adam${members[$1]}}" "$server/v1/jobs" | jq -er .id)
  for _ in $(seq 1200); do
    state=$(curl -sS "$server/v1/jobs/$job" | jq -r .state)
    case $state in succeeded) break ;; failed | cancelled) echo "job $job: $state" >&2; return 1 ;; esac
    sleep 0.1
  done
  curl -sS "$server/v1/jobs/$job/series?name=step_seconds&max_points=4096&from_step=5" >"$work/series"
  curl -sS "$server/v1/jobs/$job/metrics" >"$work/metrics"
  jq -rn --arg name "$1" --slurpfile series "$work/series" --slurpfile metrics "$work/metrics" '
    ([$series[0].series[0].points[][1]] | sort | .[length / 2 | floor]) as $step |
    ($metrics[0].ranks | map(.phases.optimizer) | add / length) as $update |
    "\($name) \($step * 1000) \($update * 1000)"' >>"$work/results"
}

for _ in $(seq "$rounds"); do for name in "${names[@]}"; do run_job "$name"; done; done
printf '%-14s %10s %10s %10s %10s\n' job 'step ms' least most 'by floor'
for name in "${names[@]}"; do
  awk -v name="$name" '
    function median(list, n,    i, j, swap) {
      for (i = 2; i <= n; i++)
        for (j = i; j > 1 && list[j] < list[j - 1]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
      return (list[int((n + 1) / 2)] + list[int(n / 2) + 1]) / 2
    }
    $1 == "whole" { floor = $2 - $3 / 2 }
    $1 == name { step[++n] = $2; ratio[n] = $2 / floor }
    END { by = median(ratio, n); mid = median(step, n); printf "%-14s %10.1f %10.1f %10.1f %10.3f\n", name, mid, step[1], step[n], by }' "$work/results"
done
