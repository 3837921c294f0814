#!/usr/bin/env bash
# Residuals of ranks on two hosts: the bits of the job whose ranks share memory, also behind a stop of one host.
. "$(dirname "$0")/network.sh"

job_of() { # NAME BACKEND [MORE]
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,24,5]}},"data":{"kind":"synthetic","micro_batch":4},
    "optimizer":{"lr":0.003},"checkpoint":{"every_steps":31},"steps":{"target":60},
    "reducer":{"backend":"%s","bucket_cap_bytes":1024,"hook":{"kind":"powersgd","rank":2,"start_step":3,"min_compression_rate":1}}%s}' "$1" "$2" "${3-}"
}
slow=',"debug":{"step_delay_ms":150},"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
digest_of() { get "/v1/jobs/$job/checkpoints" | jq -er '.items[0] | select(.step == 60 and .verified) | .digest'; }
ends_alike() {
  await "$job" succeeded 120
  wait_for 60 "its last checkpoint" digest_of
  same "$(digest_of)" "$wanted" "digest of $1"
}
centre "$run/data"
route_all
agent here 2
submit "$(job_of together shm)"
await "$job" succeeded 90
wait_for 60 "its last checkpoint" digest_of
wanted=$(digest_of)
kill -TERM "$worker_pid"
wait "$worker_pid" || true
join left
join right
right_pid=$worker_pid

claim "ranks on two hosts come to the bits of those that share memory"
submit "$(job_of apart net)"
ends_alike "ranks on two hosts"

claim "and behind a stop of one of the hosts"
submit "$(job_of resumed net "$slow")"
wait_for 60 "step 8" step_at_least "$job" 8
kill -TERM "$right_pid"
wait "$right_pid" || true
join again
ends_alike "a job that was resumed"
get "/v1/jobs/$job/events?limit=200" | jq -e 'any(.items[]; .message | test("starting 2 ranks from the checkpoint of step"))' >/dev/null || fail "not resumed"
