#!/usr/bin/env bash
# A coordinator that cannot be reached is as harmless as one that is dead: links cut, one way and both, of one worker, of
# all and so of the coordinator's host; a host that is suspended. The job goes on in the generation that it had, with the
# trainers that it had, and ends with the bytes of one that was left alone.
#   GRADSYNC_CUT_SECONDS  how long the cuts of the grid are (1 2 12; tests/long.sh: 60)
#   GRADSYNC_RUNS         how many of the grid, all or a number; GRADSYNC_SEED draws which
. "$(dirname "$0")/network.sh"

exact_job() { # NAME STEPS DELAY_MS
  mlp_job "$1" "$2" 2 ",\"exact\":true,\"debug\":{\"step_delay_ms\":$3},\"checkpoint\":{\"every_steps\":100000}"
}
who_runs() { echo "$(trainer_pids "$job" | sort | tr '\n' ' ')of generation $(job_field "$job" .generation)"; }
is_undisturbed() {
  same "$(who_runs)" "$before" "who runs"
  same "$(job_field "$job" '"\(.state) \(.restarts)"')" "running 0" "state and restarts"
}
finds_step() { # MORE
  local step
  step=$(job_field "$job" .progress.step)
  wait_for 30 "more steps" step_at_least "$job" $((step + $1))
}
events_named() { get "/v1/events?limit=500" | jq "[.items[] | select(.reason == \"$1\")] | length"; }

# Ranks and workers that are silent for so long count as such; the coordinator's patience behind its start.
dead_ms=$(timing_ms dead) agent_dead_ms=$(timing_ms agent_dead) grace_ms=$(timing_ms grace)
long_ms=$((4 * agent_dead_ms))
centre "$run/data"
agent a 1
agent b 1
step_ms=20
submit "$(exact_job through 100000 $step_ms)"
wait_for 60 "its steps" step_at_least "$job" 10
before=$(who_runs)

claim "N7: cuts of two thirds of a rank's silence, one way and both, of one worker and of all: nothing happens"
for direction in in out both; do
  cut a "$direction"
  sleep_ms $((dead_ms * 2 / 3))
  heal
  cut a b "$direction"
  sleep_ms $((dead_ms * 2 / 3))
  heal
done
finds_step 10
is_undisturbed

claim "N3: four silences of a worker, the way out of one worker: the steps of the other show that it lives, and people are shown it"
# Which ranks and workers are shown as not heard while they step, and how many the metrics count.
degraded_ranks() { get "/v1/jobs/$job/workers" | jq -c '[.items[] | select(.control_path_degraded) | .worker]'; }
degraded_workers() { get /v1/workers | jq -c '[.items[] | select(.control_path_degraded) | .id]'; }
degraded_count() { get /metrics | sed -n "s/^gradsync_job_control_path_degraded{job_id=\"$job\"} //p"; }
shows() { [ "$(degraded_ranks) $(degraded_workers) $(degraded_count)" = "$1 $1 $2" ]; }
degradations() { echo "$(events_named ControlPathDegraded) $(events_named ControlPathRestored)"; }
# What was cut before may have been silent for longer than the cut, as TCP waits before it sends again.
all_are_heard() { shows "[]" 0 && [ "$(events_named ControlPathDegraded)" = "$(events_named ControlPathRestored)" ]; }
wait_for 10 "all heard before the cut" all_are_heard
told_before=$(degradations)
cut a out
wait_for 10 "worker a and its rank shown as not heard" shows '["a"]' 1
sleep_ms "$long_ms"
shows '["a"]' 1 || fail "during the cut: $(degraded_ranks) $(degraded_workers) $(degraded_count)"
get "/v1/jobs/$job/workers" | jq -e --argjson ms "$long_ms" '.items[] | select(.worker == "a") |
  now - (.control_path_degraded_since | sub("\\.[0-9]+"; "") | fromdate) >= $ms / 1000 - 1' >/dev/null || fail "since when"
is_undisturbed
heal
wait_for 10 "nobody shown as not heard" shows "[]" 0
told_once() { [ "$(degradations)" = "$((${told_before% *} + 1)) $((${told_before#* } + 1))" ]; }
wait_for 10 "one event of each kind" told_once
worker_knows() { get /v1/workers | jq -e '[.items[] | .connected and .slots_busy == 1] | all and length == 2'; }
wait_for 30 "both workers" worker_knows
finds_step 10
is_undisturbed

claim "N4: four silences of a worker, of all, as the coordinator's host is cut off"
step=$(job_field "$job" .progress.step)
cut a b both
sleep_ms "$long_ms"
same "$(job_field "$job" .state)" running "state"
heal
wait_for 30 "both workers" worker_knows
wait_for 30 "the steps of meanwhile" step_at_least "$job" $((step + long_ms / step_ms / 3))
is_undisturbed
claim "C5: the coordinator is suspended, and then the host of all ranks"
kill -STOP "$coordinator_pid"
sleep_ms $((agent_dead_ms * 4 / 3))
kill -CONT "$coordinator_pid"
finds_step 10
signal_host STOP ranks
sleep_ms $((agent_dead_ms * 4 / 3))
signal_host CONT ranks
wait_for 30 "both workers" worker_knows
finds_step 10
is_undisturbed

claim "C1: the coordinator is killed while all links are cut, and is back before they are: nobody is missed"
cut a b both
kill -9 "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
centre "$run/data"
sleep_ms $((grace_ms * 5 / 3))
same "$(job_field "$job" '"\(.state) \(.restarts)"')" "running 0" "state and restarts"
heal
wait_for 30 "both workers" worker_knows
finds_step 10
is_undisturbed

# Each length, each direction, of one worker and of all; and hosts that stand still as long: M13.
seed=${GRADSYNC_SEED:-$(git -C "$(dirname "$0")" rev-parse --short=8 HEAD 2>/dev/null || date +%s)}
wanted=${GRADSYNC_RUNS:-4}
for seconds in ${GRADSYNC_CUT_SECONDS:-1 2 12}; do
  for what in "cut a out" "cut a in" "cut a both" "cut a b out" "cut a b in" "cut a b both" \
    "stop centre" "stop ranks" "stop centre ranks"; do
    echo "$(sha256sum <<<"$seed $seconds $what") $seconds $what"
  done
done | sort | sed 's/^[^ ]*  - //' >"$run/grid"
[ "$wanted" = all ] || sed -i "$((wanted + 1)),\$d" "$run/grid"
echo "$wanted of the grid, GRADSYNC_SEED=$seed"
stop() { for host in "$@"; do signal_host STOP "$host"; done; }
go_on() { for host in "$@"; do signal_host CONT "$host"; done; }
while read -r seconds how whom <&3; do
  claim "the grid: $seconds s, $how $whom"
  # shellcheck disable=SC2086  # words
  "$how" $whom
  sleep "$seconds"
  # shellcheck disable=SC2086  # words
  if [ "$how" = stop ]; then go_on $whom; else heal; fi
  wait_for 30 "both workers" worker_knows
  finds_step 10
  is_undisturbed
done 3<"$run/grid"

claim "what has come of it are the bytes of a job that was left alone"
same "$(events_named StepsLost) $(events_named WorkerSilent)" "0 0" "events"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
step=$(job_field "$job" .progress.step)
disturbed=$(tensors_of "$job")
submit "$(exact_job alone "$step" 0)"
await "$job" succeeded 60
same "$(job_field "$job" .progress.step)" "$step" "step"
[ "$disturbed" != none ] || fail "no checkpoint"
same "$disturbed" "$(tensors_of "$job")" "tensors"

claim "an operator's word: ranks that nobody hears are given up before their time, and end when they are heard again"
submit "$(exact_job given-up 100000 20)"
wait_for 60 "its steps" step_at_least "$job" 10
pids_before=$(trainer_pids "$job" | tr '\n' ' ')
agent spare 2
cut a b both
# An agent and its rank have connections of their own, and each is missed when its own deadline passes.
lost() {
  get /v1/workers | jq -e '[.items[] | select(.connected | not)] | length == 2' &&
    get "/v1/jobs/$job/workers" | jq -e '[.items[] | select(.state == "disconnected")] | length == 2'
}
wait_for 30 "both workers and their ranks missed" lost
same "$(job_field "$job" '"\(.state) \(.generation)"')" "running $(job_field "$job" .generation)" "state"
generation=$(job_field "$job" .generation)
! gradsync release "$job" --step 7 2>"$run/refused" || fail "a release to a step that nobody has saved"
grep -q "no checkpoint of step 7; there are: none" "$run/refused" || fail "what is wrong with the step: $(cat "$run/refused")"
grep -q "^released" <<<"$(gradsync release "$job")" || fail "release"
get "/v1/jobs/$job/events?limit=500" | jq -e 'any(.items[]; .reason == "Released" and (.message | test("released 2 trainers")))' >/dev/null ||
  fail "no event says so"
taken_over() { [ "$(job_field "$job" .generation)" -gt "$generation" ] && job_is "$job" running; }
wait_for 60 "another set" taken_over
heal
gone() { for pid in $pids_before; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the first set" gone
finds_step 10
same "$(job_field "$job" .restarts)" 1 "restarts"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
