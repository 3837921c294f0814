#!/usr/bin/env bash
# How long ranks go on alone, and who may take their place: with --orphan-limit, a worker that could, links that are cut. Then
# what is no failure: a worker that is shut down, and one kill after the other.
. "$(dirname "$0")/network.sh"

limit=7  # seconds; two of them are looked at from within, by a busy machine
job_of() { # NAME STEPS MORE
  mlp_job "$1" "$2" 2 ",\"exact\":true,\"debug\":{\"step_delay_ms\":10}$3"
}
generation_of() { job_field "$job" .generation; }
newest_saved() { find "$run/data/checkpoints/$job" -name MANIFEST.json 2>/dev/null | xargs -r cat | jq -s 'map(.position.step) | max // 0'; }
finds_step() { wait_for 30 "more steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + $1)); }
events_of() { get "/v1/jobs/$job/events?limit=500" | jq -r '.items[].reason'; }

centre "$run/data" --orphan-limit "$limit"
agent a 1
agent b 1

claim "one rank that is cut off for longer than the limit goes on: the others are heard"
submit "$(job_of lasts 100000 ',"checkpoint":{"every_seconds":0}')"
wait_for 60 "its steps" step_at_least "$job" 10
pids_before=$(trainer_pids "$job" | tr '\n' ' ')
cut a both
sleep $((limit + 3))
finds_step 10
heal
same "$(generation_of)" 1 "generation"

claim "ranks that hear nobody save and stop after the limit; nobody takes their place before"
agent spare 2
since=$(now_ms)
cut a b both
sleep 2
same "$(generation_of) $(newest_saved)" "1 0" "generation and checkpoint before the limit"
saved() { [ "$(newest_saved)" -gt 0 ]; }
wait_for 20 "their checkpoint" saved
between $(($(now_ms) - since)) $((limit * 1000 * 8 / 10)) $((limit * 10000)) "their checkpoint"
for pid in $pids_before; do kill -0 "$pid" || fail "a trainer has not waited"; done
saved_step=$(newest_saved)
goes_on() { [ "$(generation_of)" = 2 ] && [ "$(job_field "$job" .state)" = running ]; }
wait_for 60 "another set" goes_on
between $(($(now_ms) - since)) $((limit * 1000)) $((limit * 10000)) "another set"
trainers=$(get "/v1/jobs/$job/workers" | jq -r '[.items[].worker] | unique | join(" ")')
same "$trainers" spare "who trains now"
same "$(job_field "$job" '"\(.restarts) \(.lost_steps)"')" "1 0" "restarts and lost steps"
wait_for 20 "the first step from there" step_at_least "$job" $((saved_step + 1))

claim "they come back, and end; the job stays with those who took their place, and the bytes are those of one set"
heal
ended() { for pid in $pids_before; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the first set" ended
finds_step 10
same "$(generation_of) $(job_field "$job" .restarts)" "2 1" "generation and restarts"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
step=$(job_field "$job" .progress.step)
disturbed=$(tensors_of "$job")
submit "$(mlp_job alone "$step" 2 ',"exact":true')"
await "$job" succeeded 60
same "$disturbed" "$(tensors_of "$job")" "tensors"

claim "a worker that is shut down takes its own ranks away after a checkpoint; the job goes on without a restart"
agent leaves 1
leaving=$worker_pid
there() { get /v1/workers | jq -e '[.items[] | select(.connected and .slots_busy == 0)] | length == 4'; }
wait_for 30 "four idle workers" there
submit '{"name":"moves","exact":true,"logical_shards":8,"world":{"min":1,"max":8,"join_window_seconds":5,"threads_per_rank":1},
  "model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":4},"steps":{"target":100000},
  "debug":{"step_delay_ms":10}}'
of_all() { [ "$(job_field "$job" .world_size)" = 5 ] && step_at_least "$job" 20; }
wait_for 60 "steps of five ranks" of_all
ranks=5
kill -TERM "$leaving"
fewer() { [ "$(job_field "$job" '"\(.state) \(.world_size)"')" = "running $((ranks - 1))" ]; }
wait_for 60 "the job without it" fewer
finds_step 10
same "$(job_field "$job" '"\(.restarts) \(.lost_steps)"')" "0 0" "restarts and lost steps"
grep -q WorkerLeft <<<"$(events_of)" || fail "no event says why: $(events_of | tr '\n' ' ')"

claim "six kills of one rank, one more than the budget, do not end a default job that gets on"
again() { [ "$(generation_of)" -gt "$before" ] && job_is "$job" running; }
for _ in $(seq 6); do
  before=$(generation_of)
  kill -9 "$(trainer_pids "$job" | head -n 1)"
  wait_for 60 "the job again" again
  finds_step 2
done
same "$(job_field "$job" '"\(.restarts) \(.lost_steps)"')" "6 0" "restarts and lost steps"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60

claim "a job that says nothing of checkpoints has some, by the clock"
submit "$(job_of clock 100000 ',"checkpoint":{"every_seconds":0.5}')"
several() { get "/v1/jobs/$job/checkpoints" | jq -e '[.items[] | select(.reason == "periodic")] | length >= 2'; }
wait_for 60 "checkpoints" several
same "$(job_field "$job" .spec.checkpoint.every_steps)" 0 "every_steps"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60

claim "kills of all its ranks, seconds behind each start, do not end a default job either: its first checkpoints come soon"
submit "$(mlp_job default 100000 1 ',"debug":{"step_delay_ms":10},"restart":{"max_restarts":2}')"
same "$(job_field "$job" .spec.checkpoint.every_seconds)" 300 "the default cadence"
newer() { [ "$(newest_saved)" -gt "$saved_step" ]; }
for _ in 1 2 3; do
  saved_step=$(newest_saved) before=$(generation_of)
  wait_for 60 "a newer checkpoint" newer
  kill -9 $(trainer_pids "$job")
  wait_for 60 "the job again" again
done
same "$(job_field "$job" .restarts)" 3 "restarts, one more than the budget"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
