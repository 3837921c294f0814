#!/usr/bin/env bash
# Data that is dealt to ranks in parts of different sizes: a job that shadows, one that stops with the first
# rank that has none left, one whose batch norm is over all ranks; and what is refused.
. "$(dirname "$0")/lib.sh"

for i in $(seq 100); do echo "a long part for the second rank $((i % 7))"; done >"$run/root/b.txt"
for i in $(seq 20); do echo "a short one $((i % 5))"; done >"$run/root/a.txt"

start_coordinator main "$run/data"
start_worker agent 2

uneven_job() { # NAME MODE STEPS
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},
    "model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":32,"context":16,"vocab":256}},
    "data":{"kind":"bytes","train":["*.txt"],"micro_batch":4,"split":"by_rank","uneven_inputs":"%s"},
    "reducer":{"first_bucket_bytes":4096,"bucket_cap_bytes":16384},
    "checkpoint":{"every_steps":25},"steps":{"target":%s}}' "$1" "$2" "$3"
}

claim "a job whose ranks have 5 and 52 batches goes on to its target"
submit "$(uneven_job join join 60)"
await "$job" succeeded 100
same "$(job_field "$job" .progress.step)" 60 "step"
same "$(job_field "$job" .reason)" TargetReached "reason"

claim "it ends when the first rank has no data left, and says so"
submit "$(uneven_job stop stop 1000)"
await "$job" succeeded 100
same "$(job_field "$job" .reason)" DataEnded "reason"
same "$(job_field "$job" .progress.step)" 5 "step"
get "/v1/jobs/$job/checkpoints" | jq -e '[.items[].step] == [5]' >/dev/null || fail "no checkpoint at the end"

claim "a rank that is killed while it only shadows is replaced, and the job goes on where it was"
submit "$(uneven_job killed join 45 | jq -c '.debug.step_delay_ms = 200')"
wait_for 60 "step 15" step_at_least "$job" 15
kill -KILL "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.rank == 0).pid')"
await "$job" succeeded 100
same "$(job_field "$job" .progress.step)" 45 "step"
same "$(job_field "$job" .restarts)" 1 "restarts"

claim "batch norm over all ranks, and averaged buffers, are a job like any other"
submit "$(mlp_job sync 30 2 ',"reducer":{"buffers":"average"}' | jq -c '.model.mlp.batch_norm = "sync"')"
await "$job" succeeded 100
submit "$(mlp_job local 30 2 ',"reducer":{"buffers":"average"}')"
await "$job" succeeded 100

claim "what cannot be is refused, with the reason"
request POST /v1/jobs "$(uneven_job no join 5 | jq -c '.exact = true')"
same "$status" 422 "exact with parts"
body '.. | strings' | grep -q 'depends on the ranks' || fail "$(cat "$run/body")"
request POST /v1/jobs "$(uneven_job no join 5 | jq -c '.data.split = "global"')"
same "$status" 422 "uneven without parts"

