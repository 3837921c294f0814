#!/usr/bin/env bash
# A job whose ranks carry residuals from step to step (powersgd with error feedback and warm start): stopped and
# resumed it ends with the bits of one that was left alone, and where residuals are lost it says what that cost.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
start_worker agent 2
first_agent=$worker_pid
# Checkpoints behind steps 31 and 60: whoever is ended between them goes back.
thin_job() { # NAME MORE
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,24,5]}},"data":{"micro_batch":4},
    "optimizer":{"lr":0.003},"checkpoint":{"every_steps":31},"steps":{"target":60},
    "reducer":{"hook":{"kind":"powersgd","rank":2,"start_step":3,"min_compression_rate":1}}%s}' "$1" "$2"
}
slow=',"debug":{"step_delay_ms":200},"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
digest_of() { get "/v1/jobs/$1/checkpoints" | jq -r '.items[0] | select(.step == 60) | .digest'; }
events() { get "/v1/jobs/$job/events?limit=200"; }

claim "a job that is left alone"
submit "$(thin_job alone '')"
await "$job" succeeded 60
same "$(job_field "$job" .spec.checkpoint.parts)" ranks "parts"
undisturbed=$(digest_of "$job")
[ -n "$undisturbed" ] || fail "no digest of step 60"

claim "its worker is stopped and another one starts: the job is saved, resumed, and ends with the same bits"
submit "$(thin_job stopped "$slow")"
wait_for 60 "step 8" step_at_least "$job" 8
kill -TERM "$first_agent"
wait "$first_agent" || true
GRADSYNC_FAILPOINTS=residuals.reach=error start_worker agent-b 2
await "$job" succeeded 60
same "$(digest_of "$job")" "$undisturbed" "digest of equal parameters"
same "$(job_field "$job" .lost_steps)" 0 "lost_steps"
events | jq -e 'any(.items[]; .message | test("starting 2 ranks from the checkpoint of step"))' >/dev/null || fail "not resumed: $(events)"

claim "a host that dies takes residuals with it: back to the last checkpoint, the job says how many steps that costs"
submit "$(thin_job lost "$slow")"
wait_for 60 "step 33" step_at_least "$job" 33
kill -9 "$(trainer_pids "$job" | tail -n 1)"
await "$job" succeeded 60
same "$(digest_of "$job")" "$undisturbed" "digest of equal parameters"
if events | jq -e 'any(.items[]; .reason == "ResidualsLost")' >/dev/null; then
  lost=$(job_field "$job" .lost_steps)
  [ "$lost" -gt 0 ] || fail "lost_steps: $lost"
  events | jq -e --arg lost "goes on from step 31: $lost steps are taken again" \
    'any(.items[]; .reason == "StepsLost" and (.message | test($lost)))' >/dev/null || fail "no event says what it cost: $(events)"
  get /metrics >"$run/metrics"
  grep -Eq "^gradsync_job_lost_steps_total\{.*$job.*\} $lost$" "$run/metrics" || fail "no gradsync_job_lost_steps_total"
else
  grep -qF residuals.reach "$bin/gradsync-worker" && fail "no event says that residuals were lost: $(events)"
  echo "  no failpoints in this build: residuals outlived the trainer"
fi
