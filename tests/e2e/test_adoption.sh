#!/usr/bin/env bash
# The data directory is lost under running trainers. A coordinator that begins anew does not know them; an operator
# adopts their job, and it goes on there as if nothing had been.
. "$(dirname "$0")/lib.sh"

run_of() { # NAME STEPS
  mlp_job "$1" "$2" 2 ',"exact":true,"checkpoint":{"every_steps":50,"keep_last":1000},"debug":{"step_delay_ms":20}'
}
tensors_of() { # JOB: of its newest checkpoint
  find "$run/data/checkpoints/$1" -name MANIFEST.json | xargs cat | jq -sc 'max_by(.position.step) | [.position.step, .state_digest]'
}
# begin_anew: another coordinator at the same addresses, on $run/data as it is now.
begin_anew() {
  "$bin/gradsync-coordinator" --http "${server#http://}" --control "$control" --data-dir "$run/data" \
    --port-file "$run/again.ports" >>"$run/logs/again.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "a coordinator" curl -fsS "$server/readyz"
}
crash() {
  kill -KILL "$coordinator_pid"
  wait "$coordinator_pid" 2>/dev/null || true
}
# put_data KEEP TAKE: the data directory becomes KEEP, and TAKE becomes it. Trainers stand still meanwhile: who saves in
# between makes a directory of that name.
put_data() {
  kill -STOP $trainers
  mv "$run/data" "$run/$1"
  mv -T "$run/$2" "$run/data"
  kill -CONT $trainers
}
unknown() { get /v1/workers | jq -c '[.items[].unknown[]] | sort_by(.rank)'; }
shows_unknown() { [ "$(unknown | jq length)" = "$1" ]; }
live() { for pid in "$@"; do kill -0 "$pid" || return 1; done; }

start_coordinator first "$run/data"
start_worker a 1
start_worker b 1
submit "$(run_of lost 1000000)"
wait_for 60 "its steps" step_at_least "$job" 60
trainers=$(trainer_pids "$job" | sort | tr '\n' ' ')
cluster=$(get /v1/system | jq -r .cluster)

claim "they are shown with cluster, rank, step and since when; they go on, and keep their slots"
crash
mv "$run/data" "$run/lost"
begin_anew
wait_for 30 "both trainers" shows_unknown 2
same "$(unknown | jq -r 'map("\(.job) \(.cluster) \(.rank) \(.world_size)") | join(", ")')" \
  "$job $cluster 0 2, $job $cluster 1 2" "unknown"
[ "$(unknown | jq '[.[].since] | map(select(. != null)) | length')" = 2 ] || fail "nobody says since when"
step=$(unknown | jq '.[0].step // 0')
further() { [ "$(unknown | jq '.[0].step // 0')" -gt "$step" ]; }
wait_for 30 "a later step of an unknown one" further
same "$(get /v1/workers | jq '[.items[].slots_busy] | add')" 2 "slots taken"
wait_for 30 "the metric" metrics_say '^gradsync_unknown_trainers 2$'
wait_for 30 "a step in the metrics" metrics_say "^gradsync_unknown_trainer_step\{.*$job"

grep -q "^a .* $job/[01]$" <<<"$("$bin/gradsync" workers)" || fail "the table of workers says nothing: $("$bin/gradsync" workers)"

claim "gradsync adopt takes them over as they run; once more is the same"
"$bin/gradsync" adopt "$job" >"$run/adopted" || fail "adopt: $(cat "$run/adopted")"
runs() { job_is "$job" running; }
wait_for 30 "the job" runs
same "$(trainer_pids "$job" | sort | tr '\n' ' ')" "$trainers" "trainers"
same "$(unknown)" "[]" "unknown"
request POST "/v1/jobs/$job/adopt"
same "$status" 202 "adopt of what has been adopted"
get "/v1/jobs/$job/events" | jq -e 'any(.items[]; .reason == "Adopted")' >/dev/null || fail "no event says so"

claim "the coordinator of before, when it comes back, has lost the job and harms nobody"
crash
put_data new lost
begin_anew
await "$job" cancelled 60
same "$(job_field "$job" .reason)" AdoptedElsewhere "reason"
live $trainers || fail "a trainer has ended"
crash
put_data lost new
begin_anew
wait_for 30 "the job" runs
same "$(trainer_pids "$job" | sort | tr '\n' ' ')" "$trainers" "trainers"
says_how() { [ "$(job_field "$job" .communicator.backend)" = shm ]; }
wait_for 30 "what it reduces over, in a life that did not see it begin" says_how

claim "its next generation is none that the other would have given out, and its bits are those of an undisturbed run"
generation=$(job_field "$job" .generation)
kill -KILL "${trainers%% *}"
goes_on() { [ "$(job_field "$job" .generation)" -gt "$generation" ] && job_is "$job" running; }
wait_for 90 "another generation" goes_on
[ "$(job_field "$job" .generation)" -gt 1000000 ] || fail "generation $(job_field "$job" .generation)"
step=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((step + 20))
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
adopted=$(tensors_of "$job")
submit "$(mlp_job undisturbed "$(jq '.[0]' <<<"$adopted")" 2 ',"exact":true')"
await "$job" succeeded 120
same "$adopted" "$(tensors_of "$job")" "step and tensors"
