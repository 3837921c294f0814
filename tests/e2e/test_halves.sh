#!/usr/bin/env bash
# Two halves: one with the coordinator and a job, the other with a job of its own. What happens to one half is nothing to the
# other: cut off in each direction, suspended, and cut off until its ranks have given up and another set goes on for them.
#   GRADSYNC_CUT_SECONDS  how long cuts within the limit are (four thirds of a worker's silence; tests/long.sh: 60)
#   GRADSYNC_RUNS         all: in each direction; else in one, which GRADSYNC_SEED draws
. "$(dirname "$0")/network.sh"

agent_dead_ms=$(timing_ms agent_dead)  # what is silent so long is lost
cut_seconds=${GRADSYNC_CUT_SECONDS:-$((agent_dead_ms * 4 / 3000))}
limit=$((cut_seconds * 2 + 6))  # further from the cut than a busy machine is late
exact_job() { # NAME STEPS DELAY_MS
  mlp_job "$1" "$2" 2 ",\"exact\":true,\"debug\":{\"step_delay_ms\":$3},\"checkpoint\":{\"every_steps\":100000}"
}
who_runs() { echo "$(trainer_pids "$1" | sort | tr '\n' ' ')of generation $(job_field "$1" .generation), restarts $(job_field "$1" .restarts)"; }
finds_step() { # JOB MORE
  wait_for 30 "more steps of $1" step_at_least "$1" $(($(job_field "$1" .progress.step) + $2))
}
is_there() { get /v1/workers | jq -e --arg id "$1" '.items[] | select(.id == $id) | .connected' >/dev/null; }
lost_events() { get "/v1/events?limit=500" | jq '[.items[] | select(.reason == "WorkerLost" and (.message | test("worker far ")))] | length'; }
tells_lost() { [ "$(lost_events)" -gt "$1" ]; }
near_is_undisturbed() { same "$(who_runs "$near")" "$near_before" "who runs in the near half"; }
stays() { same "$(who_runs "$far")" "$far_before" "who runs in the far half"; }

centre "$run/data" --orphan-limit "$limit"
host island
at=island agent far 2
far_worker=$worker_pid
submit "$(exact_job far 100000 50)"
far=$job
wait_for 60 "its steps" step_at_least "$far" 10
agent close 2
submit "$(exact_job near 100000 50)"
near=$job
wait_for 60 "its steps" step_at_least "$near" 10
near_before=$(who_runs "$near") far_before=$(who_runs "$far")
same "$(get "/v1/jobs/$far/workers" | jq -r '[.items[].worker] | unique | join(" ")')" far "where the far job runs"

directions=(both out in)
seed=${GRADSYNC_SEED:-$(git -C "$(dirname "$0")" rev-parse --short=8 HEAD 2>/dev/null || date +%s)}
[ "${GRADSYNC_RUNS:-1}" = all ] || directions=("${directions[$((0x$(sha256sum <<<"$seed" | head -c 4) % 3))]}")
for direction in "${directions[@]}"; do
  claim "N1, N2: a host with all ranks of a job is cut off, $direction, for $cut_seconds s: it is missed in time, and nothing else happens"
  told=$(lost_events)
  since=$(now_ms)
  cut far "$direction"
  if [ "$direction" != in ]; then  # who hears nothing still tells that it lives, for a while
    wait_for 30 "word that it is lost" tells_lost "$told"
    between $(($(now_ms) - since)) $((agent_dead_ms * 8 / 10)) $((agent_dead_ms * 10)) "lost"
  fi
  finds_step "$near" 10
  while [ $(($(now_ms) - since)) -lt $((cut_seconds * 1000)) ]; do sleep 0.1; done
  near_is_undisturbed
  same "$(job_field "$far" '"\(.state) \(.generation)"')" "running 1" "the far job"
  heal
  wait_for 30 "the far worker" is_there far
  finds_step "$far" 10
  stays
done

claim "M13: a host is suspended for $cut_seconds s"
signal_host STOP island
sleep "$cut_seconds"
near_is_undisturbed
signal_host CONT island
wait_for 30 "the far worker" is_there far
finds_step "$far" 10
stays

claim "N5: cut off for longer than the limit: its ranks save and stop, another set goes on in the near half, and not before"
agent spare 2
pids_before=$(trainer_pids "$far" | tr '\n' ' ')
since=$(now_ms)
cut far both
taken_over() { [ "$(job_field "$far" .generation)" -gt 1 ] && job_is "$far" running; }
wait_for $((limit * 6)) "another set" taken_over
between $(($(now_ms) - since)) $((limit * 1000)) $((limit * 10000)) "another set"
same "$(get "/v1/jobs/$far/workers" | jq -r '[.items[].worker] | unique | join(" ")')" spare "who trains now"
same "$(job_field "$far" .lost_steps)" 0 "lost steps"
near_is_undisturbed
far_before=$(who_runs "$far")
heal
ended() { for pid in $pids_before; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the first set" ended
finds_step "$far" 10
stays

# Ranks of one job have to be on one host.
kill -TERM "$far_worker"
wait_for 30 "the far worker's end" bash -c "! kill -0 $far_worker"
far_is_gone() { ! is_there far; }
wait_for 30 "word of its end" far_is_gone

claim "what has come of both are the bytes of jobs that were left alone"
for half in near far; do
  job=${!half}
  request POST "/v1/jobs/$job/stop"
  await "$job" cancelled 60
  step=$(job_field "$job" .progress.step)
  disturbed=$(tensors_of "$job")
  [ "$disturbed" != none ] || fail "no checkpoint of the $half job"
  submit "$(exact_job "$half-alone" "$step" 0)"
  await "$job" succeeded 120
  same "$disturbed" "$(tensors_of "$job")" "tensors of the $half job"
done
