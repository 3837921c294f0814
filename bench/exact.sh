#!/usr/bin/env bash
# What exact mode costs: the same job with "exact" false and true, in turns, on this machine; median step time
# of each and their ratio. Two ranks, four logical shards.
#   bench/exact.sh [ROUNDS]    (default: 5)
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
bin=build/release/bin
work=$(mktemp -d)
pids=()
finish() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"; }
trap finish EXIT

$bin/gradsync-coordinator --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$work/data" \
  --port-file "$work/ports.json" 2>"$work/coordinator.log" &
pids+=($!)
for _ in $(seq 200); do [ -s "$work/ports.json" ] && break; sleep 0.05; done
server=http://$(jq -r .http "$work/ports.json")
$bin/gradsync-worker --coordinator "$(jq -r .control "$work/ports.json")" --slots 2 --name bench \
  --data-root /usr/share/common-licenses 2>"$work/worker.log" &
pids+=($!)

gpt2='"model":{"kind":"gpt2","gpt2":{"layers":4,"heads":4,"channels":256,"context":64,"vocab":256}},"data":{"kind":"bytes","train":"*","micro_batch":4}'
mlp='"model":{"kind":"mlp","mlp":{"dims":[784,2048,2048,10]}},"data":{"kind":"synthetic","micro_batch":32}'

median_step() {  # name, model and data, exact → median of the job's step_seconds after its first 20 steps
  local name=$1 body=$2 exact=$3 job state
  job=$(curl -sS -H 'Content-Type: application/json' -d "{\"name\":\"$name\",\"world\":{\"min\":2,\"max\":2,\"threads_per_rank\":1},
    \"exact\":$exact,\"logical_shards\":4,$body,\"steps\":{\"target\":120},\"checkpoint\":{\"resume\":\"none\"}}" "$server/v1/jobs" | jq -er .id)
  for _ in $(seq 1200); do
    state=$(curl -sS "$server/v1/jobs/$job" | jq -r .state)
    case $state in succeeded) break ;; failed | cancelled) echo "job $job: $state" >&2; return 1 ;; esac
    sleep 0.1
  done
  curl -sS "$server/v1/jobs/$job/series?name=step_seconds&max_points=4096&from_step=20" |
    jq '[.series[0].points[][1]] | sort | .[length / 2 | floor]'
}

printf '%-28s %14s %14s %8s\n' model 'normal s/step' 'exact s/step' ratio
for model in gpt2 mlp; do
  normal=() exact=()
  for round in $(seq "$rounds"); do
    normal+=("$(median_step "$model-n-$round" "${!model}" false)")
    exact+=("$(median_step "$model-e-$round" "${!model}" true)")
  done
  jq -rn --arg model "$model" --argjson n "[$(IFS=,; echo "${normal[*]}")]" --argjson e "[$(IFS=,; echo "${exact[*]}")]" '
    def median: sort | .[length / 2 | floor];
    ([range($n | length) | $e[.] / $n[.]] | median) as $ratio |
    "\($model) \($n | median) \($e | median) \($ratio * 1000 | round / 1000)"' |
    xargs printf '%-28s %14s %14s %8s\n'
done
