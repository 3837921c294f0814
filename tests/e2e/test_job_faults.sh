#!/usr/bin/env bash
# What kill -9 does to a job: of a trainer, of the coordinator, of an agent; and going on at another size.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
start_worker agent 2
first_agent=$worker_pid
quick_restart=',"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
slow=',"debug":{"step_delay_ms":10}'

claim "a killed trainer: the job goes on and reaches its target"
submit "$(mlp_job killed 1000 2 "$slow$quick_restart,\"checkpoint\":{\"every_steps\":50}")"
wait_for 60 "its steps" step_at_least "$job" 20
kill -9 "$(trainer_pids "$job" | tail -n 1)"
await "$job" succeeded 100
same "$(job_field "$job" .progress.step)" 1000 "step"
[ "$(job_field "$job" .generation)" -ge 2 ] || fail "the generation did not grow"
get "/v1/jobs/$job/series?name=loss&max_points=4096" |
  jq -e '[.series[0].points[][0]] | . == (. | sort) and . == (. | unique)' >/dev/null || fail "steps are lost or doubled"

claim "an fp16 job whose trainers are all killed ends with the loss scale of one that was left alone"
half_job() { # MORE
  printf '{"name":"half","exact":true,"logical_shards":2,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","precision":"fp16","mlp":{"dims":[20,24,5]}},
    "data":{"micro_batch":4},"optimizer":{"lr":0.003,"loss_scale":{"init":1e12,"growth_interval":7}},"checkpoint":{"every_steps":31},"steps":{"target":60}%s}' "$1"
}
position_of() { # JOB: of its last checkpoint
  find "$run" -path "*$1*" -name MANIFEST.json | sort | tail -n 1 | xargs jq -cS .position
}
digest_of() { get "/v1/jobs/$1/checkpoints" | jq -r '.items[0] | select(.step == 60) | .digest'; }
submit "$(half_job '')"
await "$job" succeeded 60
undisturbed=$(position_of "$job") undisturbed_digest=$(digest_of "$job")
echo "$undisturbed" | jq -e '.step == 60 and .skipped_steps > 10 and .loss_scale > 1' >/dev/null || fail "no loss scale: $undisturbed"
# Killed between the checkpoints of steps 31 and 60, wherever that is: steps are lost.
submit "$(half_job "$quick_restart,\"debug\":{\"step_delay_ms\":200}")"
wait_for 60 "step 33" step_at_least "$job" 33
kill -KILL $(trainer_pids "$job")
await "$job" succeeded 120
same "$(position_of "$job")" "$undisturbed" "position"
same "$(digest_of "$job")" "$undisturbed_digest" "digest of equal states"
lost=$(get "/v1/jobs/$job" | jq .lost_steps)
[ "$lost" -gt 0 ] || fail "lost_steps: $lost"
get "/v1/jobs/$job/events?limit=200" | jq -e --arg lost "$lost steps are taken again" \
  'any(.items[]; .reason == "StepsLost" and (.message | test($lost)))' >/dev/null || fail "no event says what it cost"

claim "a killed trainer of ranks that train apart: the job goes back to its last checkpoint and ends with the bits of one that was left alone"
apart_job() { # MORE
  printf '{"name":"apart","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,24,5]}},"data":{"micro_batch":4},
    "optimizer":{"lr":0.003},"checkpoint":{"every_steps":9},"steps":{"target":60},"reducer":{"hook":{"kind":"local_sgd","start_step":3,"period":4,"local_ranks":1}}%s}' "$1"
}
submit "$(apart_job '')"
await "$job" succeeded 60
same "$(job_field "$job" '.spec | [.world.device, (.reducer.hook | tojson)] | join(" ")')" \
  'auto {"kind":"local_sgd","start_step":3,"period":4,"local_ranks":1}' "hook"
undisturbed_digest=$(digest_of "$job")
submit "$(apart_job "$quick_restart,\"debug\":{\"step_delay_ms\":120}")"
wait_for 60 "step 20" step_at_least "$job" 20
kill -9 "$(trainer_pids "$job" | tail -n 1)"
await "$job" succeeded 120
[ "$(job_field "$job" .generation)" -ge 2 ] || fail "the generation did not grow"
same "$(digest_of "$job")" "$undisturbed_digest" "digest of equal states"
events=$(get "/v1/jobs/$job/events?limit=200")
if jq -e 'any(.items[]; .reason == "StepsLost")' <<<"$events" >/dev/null; then
  jq -e 'any(.items[]; .reason == "Settled" and (.message | test("save"))) | not' <<<"$events" >/dev/null || fail "nobody could save: $events"
fi

claim "a killed trainer of a job that may not restart: it fails and says who"
submit "$(mlp_job strict 100000 2 "$slow,\"restart\":{\"on_worker_lost\":\"fail\"}")"
wait_for 60 "its steps" step_at_least "$job" 5
kill -9 "$(trainer_pids "$job" | head -n 1)"
await "$job" failed 60
same "$(job_field "$job" .failure.first.rank)" 0 "who failed first"
same "$(job_field "$job" '.failure.first | "\(.kind) \(.accused)"')" "peer_lost [0]" "the fault as values"
"$bin/gradsync" show "$job" | grep '^accused  *rank 0$' >/dev/null || fail "the command line does not say who is accused"

claim "a data file that is cut short under a running job: it fails with the file's name, and is not started again"
mkdir -p "$run/root/text"
head -c 65536 /dev/zero | tr '\0' 'x' | tee "$run/root/text/kept.txt" >"$run/root/text/shrinks.txt"
submit "{\"name\":\"shrinks\",\"world\":{\"min\":2,\"max\":2,\"threads_per_rank\":1},
  \"model\":{\"kind\":\"gpt2\",\"gpt2\":{\"layers\":1,\"heads\":2,\"channels\":16,\"context\":16,\"vocab\":256}},
  \"data\":{\"kind\":\"bytes\",\"train\":[\"text/*.txt\"],\"micro_batch\":4},\"steps\":{\"target\":1000000}$slow$quick_restart}"
wait_for 60 "its steps" step_at_least "$job" 10
truncate -s 0 "$run/root/text/shrinks.txt"
await "$job" failed 60
same "$(job_field "$job" .failure.class)" user "class"
same "$(job_field "$job" .failure.first.exit_code)" 65 "exit code"
same "$(job_field "$job" .failure.first.kind)" data "the fault as a value"
same "$(job_field "$job" .restarts)" 0 "restarts"
job_field "$job" '[.message, .failure | tostring] | join(" ")' | grep -q 'text/shrinks.txt: was cut short' ||
  fail "the file is not named: $(job_field "$job" .failure)"

claim "a killed coordinator: training goes on, and the job is found again"
submit "$(mlp_job orphan 100000 2 ",\"debug\":{\"step_delay_ms\":5}$quick_restart")"
wait_for 60 "its steps" step_at_least "$job" 10
pids_before=$(trainer_pids "$job" | sort | tr '\n' ' ')
http_address=${server#http://}
kill -9 "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
for pid in $pids_before; do kill -0 "$pid" || fail "trainer $pid ended with the coordinator"; done
rm -f "$run/main.ports"
"$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$run/data" \
  --port-file "$run/main.ports" >>"$run/logs/main.log" 2>&1 &
coordinator_pid=$!
pids+=("$coordinator_pid")
wait_for 30 "the coordinator again" curl -fsS "$server/readyz"
job_runs_on() { [ "$(job_field "$job" .state)" = running ] && step_at_least "$job" "$1"; }
wait_for 60 "the job running again" job_runs_on 11
seen=$(job_field "$job" .progress.step)
wait_for 60 "more steps" job_runs_on $((seen + 20))
same "$(trainer_pids "$job" | sort | tr '\n' ' ')" "$pids_before" "trainers (nobody restarted)"

claim "a killed agent: its trainers end with it"
kill -9 "$first_agent"
none_alive() { for pid in $pids_before; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 30 "the end of the trainers" none_alive
wait_for 30 "the job noticing" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.state != \"running\"'"

claim "a new agent: the job starts again"
start_worker agent-b 2
wait_for 90 "the job running again" job_is "$job" running
seen=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((seen + 5))
request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
same "$status" 202 "stop"
await "$job" cancelled 60

claim "an elastic job goes on with one rank when the other cannot come back"
start_worker agent-c 1
last_agent=$worker_pid
submit '{"name":"elastic","world":{"min":1,"max":3,"join_window_seconds":10,"threads_per_rank":1},
  "model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":4},
  "steps":{"target":1200},"checkpoint":{"every_steps":50},"debug":{"step_delay_ms":10},
  "restart":{"backoff_initial_seconds":0.1}}'
wait_for 60 "three ranks" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.world_size == 3 and .progress.step > 10'"
kill -9 "$last_agent"
wait_for 60 "two ranks" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.world_size == 2 and .state == \"running\"'"
await "$job" succeeded 100
same "$(job_field "$job" .progress.step)" 1200 "step"
