#!/usr/bin/env bash
# Records real runs: a coordinator with --trace, real agents, real trainers, one file for each start of a coordinator.
#   GRADSYNC_BIN_DIR=… record.sh OUT [SCENARIO…]    (default: all)
# What comes of it goes through settle.py; README.md beside this says what the files are for.
set -euo pipefail
scenarios=(launch killed budget faults_at_start replan stop delete keys coordinator_training coordinator_start coordinator_stop agent_back
  agent_killed worker_leaves data_mismatch parts damaged sharded queue elastic wait deadline user_error watch)
if [ "${1-}" != --one ]; then
  out=$1
  shift
  [ $# -gt 0 ] || set -- "${scenarios[@]}"
  mkdir -p "$out"
  for name in "$@"; do
    rm -f "$out/$name"-*.jsonl
    bash "$0" --one "$name" "$out" || { echo "FAILED: $name" >&2; failed=1; }
  done
  exit "${failed-0}"
fi
scenario=$2 out=$(realpath "$3")
. "$(dirname "$0")/../../e2e/lib.sh"
trace_count=0

begin() { # [FLAG…]: flags of the coordinator
  start_coordinator main "$run/data" --trace "$out/$scenario-$trace_count.jsonl" "$@"
  trace_count=$((trace_count + 1))
  http_address=${server#http://}
}
kill_coordinator() { kill -9 "$coordinator_pid"; wait "$coordinator_pid" 2>/dev/null || true; }
begin_again() {
  rm -f "$run/main.ports"
  "$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$run/data" --trace "$out/$scenario-$trace_count.jsonl" \
    --port-file "$run/main.ports" >>"$run/logs/main.log" 2>&1 &
  trace_count=$((trace_count + 1))
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "the coordinator again" curl -fsS "$server/readyz"
}
end() { kill -TERM "$coordinator_pid"; wait "$coordinator_pid" || true; }
quick=',"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
slow() { printf ',"debug":{"step_delay_ms":%s}' "$1"; }
state_is() { [ "$(job_field "$1" .state)" = "$2" ]; }
generation_is() { [ "$(job_field "$1" .generation)" -ge "$2" ] && job_is "$1" running; }
post() { request POST "$1" "${2-}"; same "$status" "${3-202}" "$1: $(cat "$run/body")"; }

scenario_launch() {
  begin
  start_worker agent 4
  for ranks in 1 2 4; do
    submit "$(mlp_job "of-$ranks" 20 "$ranks")"
    await "$job" succeeded 60
    get "/v1/jobs/$job/workers" >/dev/null
    get "/v1/jobs/$job/plan" >/dev/null
  done
  get "/v1/jobs?limit=2" >/dev/null
  get "/v1/jobs/$job/events" >/dev/null
  end
}
scenario_killed() {
  begin
  start_worker agent 2
  submit "$(mlp_job killed 60 2 "$(slow 20)$quick")"
  wait_for 60 "steps" step_at_least "$job" 10
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  await "$job" succeeded 60
  end
}
scenario_budget() {
  begin
  start_worker agent 2
  submit "$(mlp_job budget 100000 2 "$(slow 2000),\"restart\":{\"max_restarts\":2,\"backoff_initial_seconds\":0.1,\"backoff_max_seconds\":0.2}")"
  for generation in 1 2; do
    wait_for 60 "generation $generation" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.generation == $generation'"
    kill -9 "$(trainer_pids "$job" | head -n 1)"
  done
  await "$job" failed 60
  submit "$(mlp_job strict 100000 2 "$(slow 10),\"restart\":{\"on_worker_lost\":\"fail\"}")"
  wait_for 60 "steps" step_at_least "$job" 5
  kill -9 $(trainer_pids "$job")
  await "$job" failed 60
  get "/v1/jobs/$job/diagnosis" >/dev/null
  end
}
# Two of three at once, then the one that is left while it saves; one that stands still.
scenario_faults_at_start() {
  begin
  start_worker agent 3
  submit "$(mlp_job thrice 60 3 "$(slow 20)$quick")"
  wait_for 60 "its trainers" sh -c "[ \$(curl -fsS $server/v1/jobs/$job/workers | jq '[.items[].pid | select(. > 0)] | length') = 3 ]"
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  wait_for 60 "steps" step_at_least "$job" 10
  kill -9 $(trainer_pids "$job" | tail -n 2)
  sleep 0.05
  kill -9 $(trainer_pids "$job" | head -n 1) || true
  wait_for 60 "steps again" step_at_least "$job" 20
  kill -STOP "$(trainer_pids "$job" | tail -n 1)"
  await "$job" succeeded 90
  end
}
gpt_job() { # NAME STEPS MORE
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":8,"vocab":64}},"data":{"kind":"synthetic","micro_batch":2},"steps":{"target":%s}%s%s,%s}' \
    "$1" "$2" "$(slow 10)" "$quick" "$3"
}
plan_is() { [ "$(get "/v1/jobs/$job/plan" | jq -r '"\(.revision) \(.reason)"')" = "$1 $2" ]; }
scenario_replan() {
  begin
  start_worker agent 2
  submit "$(gpt_job follows 100000 '"reducer":{"bucket_cap_bytes":2048}')"
  wait_for 60 "a rebuilt plan" plan_is 2 ready_order
  post "/v1/jobs/$job/replan"
  kill -9 "$(trainer_pids "$job" | head -n 1)"
  wait_for 60 "generation 2" generation_is "$job" 2
  kill_coordinator
  begin_again
  wait_for 60 "it trains" generation_is "$job" 2
  post "/v1/jobs/$job/stop" '{"mode":"now"}'
  wait_for 60 "the end" job_ended "$job"
  submit "$(gpt_job keeps 100000 '"reducer":{"bucket_cap_bytes":2048,"rebuild_after_steps":0}')"
  wait_for 60 "steps" step_at_least "$job" 20
  post "/v1/jobs/$job/replan"
  wait_for 60 "the operator's plan" plan_is 2 operator
  post "/v1/jobs/$job/replan"
  kill_coordinator
  begin_again
  wait_for 60 "it trains" job_is "$job" running
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  wait_for 60 "the end" job_ended "$job"
  post "/v1/jobs/$job/replan" '' 409
  end
}
scenario_stop() {
  begin
  submit "$(mlp_job waits 100000 2 "$(slow 10)")"
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 30
  start_worker agent 2
  submit "$(mlp_job starts 100000 2 "$(slow 10)")"
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 30
  submit "$(mlp_job drains 100000 2 "$(slow 10)")"
  wait_for 60 "steps" step_at_least "$job" 5
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 30
  request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  submit "$(mlp_job ends 100000 2 "$(slow 10)")"
  wait_for 60 "steps" step_at_least "$job" 5
  post "/v1/jobs/$job/stop" '{"mode":"now"}'
  await "$job" cancelled 30
  # Graceful, but it cannot: a trainer stands still; then now.
  submit "$(mlp_job stands 100000 2 "$(slow 10)")"
  wait_for 60 "steps" step_at_least "$job" 5
  kill -STOP $(trainer_pids "$job")
  post "/v1/jobs/$job/stop" '{"mode":"graceful","grace_seconds":20}'
  sleep 0.3
  post "/v1/jobs/$job/stop" '{"mode":"now"}'
  await "$job" cancelled 30
  end
}
scenario_delete() {
  begin
  start_worker agent 2
  submit "$(mlp_job kept 10 2)"
  kept=$job
  await "$job" succeeded 60
  submit "$(mlp_job purged 20 2 ',"checkpoint":{"every_steps":5,"keep_last":2}')"
  purged=$job
  request DELETE "/v1/jobs/$purged"
  await "$job" succeeded 60
  request DELETE "/v1/jobs/$kept"
  same "$status" 204 "delete"
  request DELETE "/v1/jobs/$purged?purge=true"
  same "$status" 204 "purge"
  request GET "/v1/jobs/$purged"
  request DELETE "/v1/jobs/$purged"
  submit "$(mlp_job next 5 1)"
  await "$job" succeeded 60
  get "/v1/jobs" >/dev/null
  end
}
scenario_keys() {
  begin
  start_worker agent 1
  for try in 1 2; do request POST /v1/jobs "$(mlp_job keyed 10 1)" -H 'Idempotency-Key: key-1'; done
  job=$(body .id)
  request POST /v1/jobs "$(mlp_job keyed 11 1)" -H 'Idempotency-Key: key-1'
  same "$status" 422 "another body"
  request POST /v1/jobs "$(mlp_job other 100000 1)" -H 'Idempotency-Key: key-2'
  kill_coordinator
  begin_again
  request POST /v1/jobs "$(mlp_job keyed 10 1)" -H 'Idempotency-Key: key-1'
  same "$(body .id)" "$job" "id after a crash"
  request POST /v1/jobs "$(mlp_job other 100000 1)"
  same "$status" 409 "a name twice"
  wait_for 30 "its end" job_ended "$job"
  request DELETE "/v1/jobs/$job"
  request POST /v1/jobs "$(mlp_job keyed 10 1)" -H 'Idempotency-Key: key-1'
  end
}
scenario_coordinator_training() {
  begin
  start_worker agent 2
  submit "$(mlp_job orphan 100000 2 "$(slow 10)$quick,\"checkpoint\":{\"every_steps\":20}")"
  wait_for 60 "steps" step_at_least "$job" 10
  kill_coordinator
  sleep 0.5
  begin_again
  wait_for 60 "it trains" job_is "$job" running
  seen=$(job_field "$job" .progress.step)
  wait_for 60 "more steps" step_at_least "$job" $((seen + 20))
  trainers=$(trainer_pids "$job")
  kill_coordinator
  kill -9 "$(echo "$trainers" | head -n 1)"
  begin_again
  wait_for 60 "the next generation" generation_is "$job" 2
  kill_coordinator
  sleep 0.5
  begin_again
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  await "$job" cancelled 60
  end
}
scenario_coordinator_start() {
  begin
  start_worker agent 2
  submit "$(mlp_job early 30 2 "$(slow 10)$quick")"
  wait_for 60 "its start" sh -c "! curl -fsS $server/v1/jobs/$job | jq -e '.state == \"queued\"'"
  kill_coordinator
  begin_again
  await "$job" succeeded 60
  submit "$(mlp_job waits 30 2 "$(slow 10)$quick")"
  kill_coordinator
  begin_again
  await "$job" succeeded 60
  end
}
scenario_coordinator_stop() {
  begin
  start_worker agent 2
  submit "$(mlp_job stops 100000 2 "$(slow 400)$quick")"
  wait_for 60 "steps" step_at_least "$job" 3
  post "/v1/jobs/$job/stop" '{"mode":"graceful"}'
  kill_coordinator
  begin_again
  await "$job" cancelled 60
  end
}
scenario_agent_back() {
  begin
  start_worker agent 2
  submit "$(mlp_job away 100000 2 "$(slow 10)$quick")"
  wait_for 60 "steps" step_at_least "$job" 5
  kill -STOP "$worker_pid"
  sleep 2
  kill -CONT "$worker_pid"
  sleep 1
  kill -STOP "$worker_pid"
  sleep 8
  kill -CONT "$worker_pid"
  wait_for 60 "it trains" job_is "$job" running
  get /v1/workers >/dev/null
  kill -STOP $(trainer_pids "$job") "$worker_pid"
  sleep 5
  kill -CONT "$worker_pid" $(trainer_pids "$job") || true
  sleep 2
  post "/v1/jobs/$job/stop" '{"mode":"now"}'
  await "$job" cancelled 60
  end
}
scenario_agent_killed() {
  begin
  start_worker first 1
  first=$worker_pid
  start_worker second 1
  submit "$(mlp_job bereft 60 2 "$(slow 20)$quick,\"checkpoint\":{\"every_steps\":10}")"
  wait_for 60 "steps" step_at_least "$job" 15
  kill -9 "$first"
  wait_for 60 "nobody trains" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.state == \"queued\"'"
  start_worker third 1
  await "$job" succeeded 60
  # A second worker of a name that is taken.
  "$bin/gradsync-worker" --coordinator "$control" --name third --slots 1 >"$run/logs/twin.log" 2>&1 &
  pids+=("$!")
  sleep 0.7
  end
}
scenario_worker_leaves() {
  begin
  start_worker stays 1
  start_worker leaves 1
  submit "{\"name\":\"shrinks\",\"world\":{\"min\":1,\"max\":2,\"join_window_seconds\":0.5,\"threads_per_rank\":1},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[32,64,10]}},\"steps\":{\"target\":60}$(slow 20)$quick}"
  wait_for 60 "steps" step_at_least "$job" 10
  kill -TERM "$worker_pid"
  await "$job" succeeded 60
  end
}
scenario_data_mismatch() {
  begin
  mkdir -p "$run/other"
  head -c 65536 /dev/zero | tr '\0' 'x' >"$run/root/text.txt"
  head -c 32768 /dev/zero | tr '\0' 'y' >"$run/other/text.txt"
  start_worker one 1
  "$bin/gradsync-worker" --coordinator "$control" --name two --slots 1 --data-root "$run/other" >"$run/logs/two.log" 2>&1 &
  pids+=("$!")
  wait_for 30 "worker two" worker_is two connected
  submit '{"name":"unlike","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":16,"vocab":256}},
    "data":{"kind":"bytes","train":["text.txt"],"micro_batch":4},"steps":{"target":10}}'
  await "$job" failed 60
  get "/v1/jobs/$job/diagnosis" >/dev/null
  end
}
parts_job() { # NAME EVERY DELAY_MS
  printf '{"name":"%s","logical_shards":6,"world":{"min":3,"max":3,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"micro_batch":2},"steps":{"target":40},"checkpoint":{"parts":"ranks","every_steps":%s,"keep_last":2}%s%s}' \
    "$1" "$2" "$(slow "$3")" "$quick"
}
scenario_parts() {
  begin
  start_worker agent 3
  submit "$(parts_job parted 4 30)"
  wait_for 60 "steps" step_at_least "$job" 18
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  await "$job" succeeded 90
  get "/v1/jobs/$job/checkpoints" >/dev/null
  submit "$(parts_job orphan 0 30)"
  wait_for 60 "steps" step_at_least "$job" 5
  kill_coordinator
  wait_for 60 "the parts" sh -c "[ \$(find '$run/data/checkpoints/$job' -name 'part-*.json' | wc -l) = 3 ]"
  begin_again
  await "$job" succeeded 60
  get "/v1/jobs/$job/checkpoints" >/dev/null
  end
}
# What a restart would go on from is damaged, then gone; then nothing is left.
scenario_damaged() {
  begin
  start_worker agent 2
  submit "$(mlp_job hurt 100 2 "$(slow 20)$quick,\"checkpoint\":{\"every_steps\":10,\"keep_last\":3}")"
  newest() { find "$run/data/checkpoints/$job" -name MANIFEST.json -path '*/step-*' | sort | tail -n 1; }
  wait_for 60 "steps" step_at_least "$job" 32
  printf damage | dd of="$(find "$(dirname "$(newest)")" -name '*.safetensors' | head -n 1)" bs=1 seek=200 conv=notrunc 2>/dev/null
  kill -9 $(trainer_pids "$job")
  wait_for 60 "generation 2" generation_is "$job" 2
  seen=$(job_field "$job" .progress.step)
  kill -9 $(trainer_pids "$job")
  rm "$(newest)"
  await "$job" succeeded 90
  end
}
scenario_sharded() {
  begin
  start_worker agent 2
  start_worker leaver 1
  submit '{"name":"owners","logical_shards":6,"world":{"min":2,"max":3,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,33,5]}},"data":{"micro_batch":2},
    "optimizer":{"kind":"adamw","lr":0.003,"grad_clip_norm":0.1},"reducer":{"sharding":"optimizer"},"checkpoint":{"every_steps":10},"steps":{"target":50}'"$(slow 30)$quick}"
  wait_for 60 "steps" step_at_least "$job" 15
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  wait_for 60 "generation 2" generation_is "$job" 2
  post "/v1/jobs/$job/replan" '' 409
  wait_for 60 "steps" step_at_least "$job" 22
  kill -TERM "$worker_pid"
  await "$job" succeeded 60
  end
}
scenario_queue() {
  begin
  start_worker agent 2
  submit "$(mlp_job oldest 40 2 "$(slow 20)")"
  oldest=$job
  submit "$(mlp_job wide 10 2)"
  wide=$job
  submit "$(mlp_job narrow 10 1)"
  narrow=$job
  submit "$(mlp_job too-wide 10 3 ',"x":1' | sed 's/,"x":1//; s/"threads_per_rank":1/"threads_per_rank":1,"wait_seconds":1.5/')"
  too_wide=$job
  get "/v1/jobs?state=queued" >/dev/null
  await "$too_wide" failed 60
  await "$narrow" succeeded 60
  await "$wide" succeeded 60
  await "$oldest" succeeded 60
  end
}
scenario_elastic() {
  begin
  start_worker first 1
  submit "{\"name\":\"grows\",\"world\":{\"min\":1,\"max\":3,\"join_window_seconds\":1.5,\"threads_per_rank\":1},\"model\":{\"kind\":\"mlp\",\"mlp\":{\"dims\":[32,64,10]}},\"steps\":{\"target\":60}$(slow 20)$quick}"
  start_worker second 1
  wait_for 60 "two ranks" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.world_size == 2 and .progress.step > 10'"
  kill -9 "$worker_pid"
  await "$job" succeeded 60
  end
}
scenario_wait() {
  begin
  submit "$(mlp_job vain 10 2 | sed 's/"threads_per_rank":1/"threads_per_rank":1,"wait_seconds":1/')"
  vain=$job
  submit '{"name":"gpu","world":{"min":1,"max":1,"device":"cuda","wait_seconds":2},"model":{"kind":"mlp"},"steps":{"target":10}}'
  gpu=$job
  start_worker agent 1
  await "$vain" failed 30
  await "$gpu" failed 30
  end
}
scenario_deadline() {
  begin
  start_worker agent 2
  submit "$(mlp_job late 100000 2 "$(slow 10)$quick" | sed 's/"target":/"deadline_seconds":2,"target":/')"
  await "$job" failed 60
  end
}
scenario_user_error() {
  begin
  start_worker agent 2
  mkdir -p "$run/root/text"
  submit '{"name":"nothing","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":16,"vocab":256}},
    "data":{"kind":"bytes","train":["none/*.txt"],"micro_batch":4},"steps":{"target":10}}'
  await "$job" failed 60
  request POST /v1/jobs '{"model":{"kind":"mlq"},"steps":{"target":0}}'
  request POST /v1/plans/preview '{"spec":{"model":{"kind":"mlp"},"steps":{"target":1}}}'
  end
}
scenario_watch() {
  begin
  start_worker agent 2
  submit "$(mlp_job seen 40 2 "$(slow 20)$quick")"
  curl -sSN -m 60 "$server/v1/jobs/$job/stream" >/dev/null 2>&1 &
  stream=$!
  curl -sSN -m 1 "$server/v1/events?stream=true" -H 'Accept: text/event-stream' >/dev/null 2>&1 || true
  wait_for 60 "steps" step_at_least "$job" 10
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  await "$job" succeeded 60
  wait "$stream" || true
  curl -sSN -m 1 "$server/v1/events" -H 'Accept: text/event-stream' >/dev/null 2>&1 || true
  end
}
claim "$scenario"
"scenario_$scenario"
