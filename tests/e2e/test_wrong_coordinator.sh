#!/usr/bin/env bash
# A coordinator on another data directory under running trainers: it knows none of them. They live, train on,
# save and end by themselves; those that still run when the right one is back are its own again.
# Row C7 of docs/faults.md.
. "$(dirname "$0")/lib.sh"

start_coordinator right "$run/data"
start_worker agent 3
submit "$(mlp_job long 100000 2 ',"debug":{"step_delay_ms":20},"checkpoint":{"every_steps":50,"keep_last":1000}')"
long=$job
wait_for 60 "steps of the long job" step_at_least "$long" 20
# It lasts until the other coordinator has been seen to keep its slot.
submit "$(mlp_job short 300 1 ',"debug":{"step_delay_ms":70},"checkpoint":{"every_steps":50}')"
short=$job
wait_for 60 "steps of the short job" step_at_least "$short" 5
pids_of_short=$(trainer_pids "$short")
pids_of_long=$(trainer_pids "$long" | sort | tr '\n' ' ')
http_address=${server#http://}

# swap NAME DATA_DIR SIGNAL: another coordinator at the addresses of the one before, which the signal ends.
swap() {
  kill "-$3" "$coordinator_pid" 2>/dev/null || true
  wait "$coordinator_pid" 2>/dev/null || true
  rm -f "$run/$1.ports"
  "$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$2" \
    --port-file "$run/$1.ports" >>"$run/logs/$1.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "$1 ready" curl -fsS "$server/readyz"
  wait_for 30 "the worker" worker_is agent connected
}
busy_slots() { get /v1/workers | jq -r '.items[0].slots_busy'; }
unknown_jobs() { get /v1/workers | jq -r '[.items[0].unknown[].job] | unique | join(" ")'; }
live() { for pid in "$@"; do kill -0 "$pid" || return 1; done; }
newest_step() { # JOB: of what is on disk
  mkdir -p "$run/data/checkpoints/$1"
  find "$run/data/checkpoints/$1" -name MANIFEST.json | xargs -r cat | jq -s 'map(.position.step) | max // 0'
}

claim "a coordinator that knows nobody leaves running trainers alone and says so"
steps_before=$(newest_step "$long")
swap wrong "$run/empty" TERM
both=$(printf '%s\n' "$short" "$long" | sort | tr '\n' ' ' | sed 's/ $//')
knows_both() { [ "$(busy_slots) $(unknown_jobs)" = "3 $both" ]; }
wait_for 30 "slots taken by both" knows_both
told_of() { [ "$(get /v1/events | jq '[.items[] | select(.reason == "UnknownTrainer")] | length')" = "$1" ]; }
wait_for 10 "three events" told_of 3
wait_for 10 "the metric" metrics_say '^gradsync_unknown_trainers 3$'
grep -q "trainer of an unknown job.*job=$long" "$run/logs/wrong.log" || fail "the coordinator says nothing"
said_so() { grep -q "it trains on" "$run/logs/agent.log"; }
wait_for 20 "the trainers' word" said_so

claim "its slots are not given away"
submit "$(mlp_job newcomer 20 1)"
waits_for_slots() { [ "$(job_field "$job" .reason)" = WaitingForWorkers ]; }
wait_for 20 "why it waits" waits_for_slots

claim "they train on and save"
saved_more() { [ "$(newest_step "$long")" -ge $((steps_before + 150)) ]; }
wait_for 60 "checkpoints of the long job" saved_more
live $pids_of_long || fail "a trainer of the long job ended"

claim "one that reaches its target ends by itself, and its slot is free"
wait_for 120 "the end of the short job" bash -c "! kill -0 $pids_of_short"
same "$(newest_step "$short")" 300 "its last checkpoint"
await "$job" succeeded 60
same "$(unknown_jobs)" "$long" "unknown jobs"
live $pids_of_long || fail "a trainer of the long job ended"

claim "the right coordinator finds the others as they are"
swap right "$run/data" KILL
runs() { [ "$(job_field "$long" .state)" = running ]; }
wait_for 60 "the long job" runs
same "$(trainer_pids "$long" | sort | tr '\n' ' ')" "$pids_of_long" "trainers"
same "$(job_field "$long" '"\(.restarts) \(.generation)"')" "0 1" "restarts and generation"
step=$(job_field "$long" .progress.step)
wait_for 30 "more steps" step_at_least "$long" $((step + 20))
# No report of one was lost on the way: they are there without a gap.
knows_checkpoints() { get "/v1/jobs/$long/checkpoints" | jq -e '[.items[].step] | length >= 4 and length * 50 == max' >/dev/null; }
wait_for 30 "checkpoints of the time between" knows_checkpoints

claim "a coordinator on an old copy of the directory is refused, says so and ends; the right one has them again"
kill -KILL "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
cp -r "$run/data" "$run/copy"
swap right "$run/data" KILL
# Until its ranks know this life, too, neither directory is older than the other to them.
checked_in() { tac "$run/logs/right.log" | awk '/CoordinatorStarted/ { exit } /MembersCheckedIn/ { found = 1 } END { exit !found }'; }
wait_for 60 "the ranks of the long job" checked_in
kill -KILL "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
rm -f "$run/copy.ports"
"$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$run/copy" \
  --port-file "$run/copy.ports" >>"$run/logs/copy.log" 2>&1 &
coordinator_pid=$!
pids+=("$coordinator_pid")
code=0
wait "$coordinator_pid" || code=$?
same "$code" 65 "exit code of the copy"
grep -q "stopping.*old copy of cluster .* is at coordinator epoch [0-9]*, workers have seen epoch [0-9]*" "$run/logs/copy.log" || fail "the copy does not say why"
live "$worker_pid" || fail "the worker ended"
live $pids_of_long || fail "a trainer of the long job ended"
swap right "$run/data" KILL
wait_for 60 "the long job" runs
same "$(trainer_pids "$long" | sort | tr '\n' ' ')" "$pids_of_long" "trainers"
same "$(job_field "$long" '"\(.restarts) \(.generation)"')" "0 1" "restarts and generation"

claim "an operator who wants them gone says so, to whichever coordinator is there: they save and end"
request POST "/v1/jobs/$long/release"
same "$status" 409 "release of ranks that are all heard"
swap wrong "$run/empty" TERM
wait_for 30 "the unknown ones" bash -c "curl -fsS $server/v1/workers | jq -e '.items[0].unknown | length == 2'"
seen=$(get /v1/workers | jq '[.items[0].unknown[].step // 0] | max')
request POST "/v1/jobs/$long/release"
same "$status" 202 "release of unknown ones"
get /v1/events | jq -e 'any(.items[]; .reason == "Released" and (.message | test("released 2 trainers")))' >/dev/null || fail "no event says so"
ended() { for pid in $pids_of_long; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the long job" ended
# The last of every fiftieth step is behind that, as a rule.
[ "$(newest_step "$long")" -ge "$seen" ] || fail "not saved: $(newest_step "$long"), and step $seen was seen"
knows_nobody() { [ -z "$(unknown_jobs)" ]; }
wait_for 30 "word of their end" knows_nobody
