#!/usr/bin/env bash
# From a fresh Debian machine to a trained language model: installs packages, builds, starts a
# coordinator and two workers, submits a job over HTTP, shows it learn, samples from its checkpoint.
# Idempotent. Exits 0 only when the job has succeeded.
#   STEPS=N shortens or lengthens it; HTTP_PORT picks the port (default: 8470, or a free one); GRADSYNC_BIN_DIR names
#   the folder of programs that are built already.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

say "1. Packages and build (a minute the first time)"
deploy/install-deps.sh tour
bin=${GRADSYNC_BIN_DIR:-$PWD/build/release/bin}
[ -n "${GRADSYNC_BIN_DIR:-}" ] || deploy/build.sh release product
export PATH="$bin:$PATH"

run=$(mktemp -d "${TMPDIR:-/tmp}/gradsync-quickstart.XXXXXX")
pids=()
finish() {
  local code=$?
  for pid in "${pids[@]:-}"; do [ -n "$pid" ] && kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if [ "$code" -eq 0 ]; then rm -rf "$run/logs"; else echo "quickstart failed; logs in $run/logs" >&2; fi
}
trap finish EXIT
mkdir -p "$run/logs" "$run/data"

say "2. A coordinator and two workers on this machine"
http_port=${HTTP_PORT:-8470}
if (exec 3<>"/dev/tcp/127.0.0.1/$http_port") 2>/dev/null; then
  echo "port $http_port is taken, using a free one"
  http_port=0
fi
gradsync-coordinator --http "127.0.0.1:$http_port" --control tcp://127.0.0.1:0 \
  --data-dir "$run/data" --port-file "$run/ports.json" 2>"$run/logs/coordinator.log" &
pids+=($!)
for _ in $(seq 200); do [ -s "$run/ports.json" ] && break; sleep 0.05; done
[ -s "$run/ports.json" ] || { cat "$run/logs/coordinator.log" >&2; exit 1; }
server=http://$(jq -r .http "$run/ports.json")
control=$(jq -r .control "$run/ports.json")
export GRADSYNC_SERVER=$server
# The text that every Debian machine has: its licences.
for worker in a b; do
  gradsync-worker --coordinator "$control" --name "worker-$worker" --slots 1 \
    --data-root /usr/share/common-licenses 2>"$run/logs/worker-$worker.log" &
  pids+=($!)
done
echo "coordinator $server (control $control), workers: worker-a, worker-b"

say "3. The job, submitted with curl: a byte-level GPT on the licences in /usr/share/common-licenses"
cat >"$run/job.json" <<JSON
{
  "name": "licences",
  "world": {"min": 2, "max": 2, "threads_per_rank": 1},
  "model": {"kind": "gpt2", "seed": 1337,
            "gpt2": {"layers": 4, "heads": 4, "channels": 128, "context": 128, "vocab": 256}},
  "data": {"kind": "bytes", "train": ["*"], "micro_batch": 16, "shuffle_seed": 7,
           "eval_every_steps": 100, "eval_batches": 4},
  "optimizer": {"kind": "adamw", "lr": 0.002, "beta2": 0.95, "weight_decay": 0.1, "grad_clip_norm": 1.0,
                "schedule": {"kind": "cosine", "warmup_steps": 40, "final_ratio": 0.1}},
  "steps": {"target": ${STEPS:-500}},
  "checkpoint": {"every_steps": 200, "keep_last": 2},
  "sample": {"tokens": 400, "prompt": "The licensee ", "temperature": 0.7}
}
JSON
code=$(curl -sS -o "$run/created.json" -w '%{http_code}' -H 'Content-Type: application/json' \
  --data @"$run/job.json" "$server/v1/jobs")
[ "$code" = 201 ] || { cat "$run/created.json" >&2; exit 1; }
job=$(jq -r .id "$run/created.json")
echo "POST $server/v1/jobs → 201, job $job"

say "4. Training (live)"
gradsync watch "$job" || true
state=$(curl -sS "$server/v1/jobs/$job" | tee "$run/job.final.json" | jq -r .state)
if [ "$state" != succeeded ]; then
  jq '{state, reason, message, failure}' "$run/job.final.json" >&2
  exit 1
fi

say "5. What it learned: a sample"
gradsync sample "$job"

say "6. Loss by step, and the checkpoint"
curl -sS "$server/v1/jobs/$job/series?name=loss,eval_loss&max_points=8" |
  jq -r '.series[] | "\(.name): " + ([.points[] | "\(.[0]): \(.[1] | if type == "number" then (. * 1000 | round / 1000) else . end)"] | join("   "))'
curl -sS "$server/v1/jobs/$job/checkpoints" | jq -r '.items[] | "step \(.step): \(.directory) (\(.bytes) bytes)"'

say "7. Live reduction metrics (GET /metrics)"
curl -sS "$server/metrics" | grep -E '^gradsync_(job_step|job_loss|comm_overlap_ratio|reduce_bus_bandwidth[a-z_]*)\{' | head -n 8 || true

say "8. Try next"
cat <<TEXT
  # Coordinator and workers end with this script. Again, in the foreground, on the data of this run:
  $bin/gradsync up --workers 2 --data-root /usr/share/common-licenses --data-dir $run/data --http ${server#http://}
  # Then, beside it:
  curl -s $server/v1/jobs | jq
  curl -s $server/v1/jobs/$job | jq '{state, progress, latest}'
  curl -sN $server/v1/jobs/$job/stream
  curl -s $server/v1/jobs/$job/plan | jq '.buckets[0]'
  curl -s -X POST $server/v1/jobs/$job/stop -H 'Content-Type: application/json' -d '{"mode":"graceful"}'
  scrape $server/metrics with Prometheus
The data of this run stay in $run/data.
TEXT
say "job $job: $state"
