#!/usr/bin/env bash
# Plans that change while a job trains: by themselves, when asked, across a killed trainer and a killed coordinator.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
start_worker agent 2
quick_restart='"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
slow='"debug":{"step_delay_ms":5}'
small='"bucket_cap_bytes":2048'
gpt_job() { # NAME STEPS MORE
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":2,"heads":2,"channels":16,"context":8,"vocab":64}},"data":{"kind":"synthetic","micro_batch":2},"steps":{"target":%s},%s,%s,%s}' \
    "$1" "$2" "$slow" "$quick_restart" "$3"
}
plan_field() { get "/v1/jobs/$job/plan" | jq -r "$1"; }
plan_is() { [ "$(plan_field '"\(.revision) \(.reason)"')" = "$1 $2" ]; }

restart_coordinator() {
  local http_address=${server#http://}
  kill -9 "$coordinator_pid"
  wait "$coordinator_pid" 2>/dev/null || true
  rm -f "$run/main.ports"
  "$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$run/data" \
    --port-file "$run/main.ports" >>"$run/logs/main.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "the coordinator again" curl -fsS "$server/readyz"
}

claim "a job's plan follows the order of its gradients after the first step"
submit "$(gpt_job follows 100000 "\"reducer\":{$small}")"
wait_for 60 "a rebuilt plan" plan_is 2 ready_order
get "/v1/jobs/$job/plan" | jq -e '(.history | map(.reason)) == ["size_based", "ready_order"] and .since_step > 0 and
  (.buckets | length) > 1 and all(.buckets[]; .why and (.ends | IN("limit", "leftover", "sparse"))) and
  ([.buckets[].expected_ready.last] | . == sort)' >/dev/null || fail "plan: $(get "/v1/jobs/$job/plan" | head -c 900)"
get "/v1/jobs/$job/events" | jq -e 'any(.items[]; .reason == "PlanRebuilt")' >/dev/null || fail "no event"
wait_for 10 "the metric" metrics_say "^gradsync_plan_rebuilds_total\{job_id=\"$job\",reason=\"ready_order\"\} 1"
hash=$(plan_field .hash)

claim "asked for, it changes nothing"
request POST "/v1/jobs/$job/replan"
same "$status" 202 "replan: $(cat "$run/body")"
same "$(body '"\(.pending) \(.revision) \(.hash)"')" "false 2 $hash" "replan"

claim "a killed trainer: the next generation begins with that plan"
kill -9 "$(trainer_pids "$job" | head -n 1)"
later() { [ "$(job_field "$job" .generation)" -ge 2 ] && job_is "$job" running; }
wait_for 60 "the next generation" later
seen=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((seen + 40))
same "$(plan_field '"\(.revision) \(.hash) \(.history | length)"')" "2 $hash 2" "plan"

claim "a killed coordinator: the plan and the order are found again"
restart_coordinator
replan_is() { request POST "/v1/jobs/$job/replan" && [ "$status" = 202 ] && [ "$(body '"\(.pending) \(.revision) \(.hash)"')" = "$1" ]; }
wait_for 60 "the job training again" replan_is "false 2 $hash"
same "$(plan_field '"\(.revision) \(.history | length)"')" "2 2" "plan"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
wait_for 60 "the end of the job" job_ended "$job"
request POST "/v1/jobs/$job/replan"
same "$status $(body .code)" "409 wrong_state" "replan of a job that has ended"

claim "a job that keeps its plan gets another one when an operator asks"
submit "$(gpt_job keeps 100000 "\"reducer\":{$small,\"rebuild_after_steps\":0}")"
wait_for 60 "its steps" step_at_least "$job" 50
same "$(plan_field '"\(.revision) \(.reason)"')" "1 size_based" "plan"
"$bin/gradsync" replan "$job" | grep '^plan revision 2 (operator' >/dev/null || fail "the CLI's replan"
wait_for 60 "the operator's plan" plan_is 2 operator
"$bin/gradsync" plan "$job" | grep 'plans so far' >/dev/null || fail "the CLI's plan"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
wait_for 60 "the end of the job" job_ended "$job"

claim "a coordinator killed right after it said yes: the plan is not lost"
submit "$(gpt_job asked 100000 "\"reducer\":{$small,\"rebuild_after_steps\":0}")"
wait_for 60 "its steps" step_at_least "$job" 20
generation=$(job_field "$job" .generation)
request POST "/v1/jobs/$job/replan"
same "$status" 202 "replan: $(cat "$run/body")"
restart_coordinator
wait_for 60 "the operator's plan" plan_is 2 operator
seen=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((seen + 40))
same "$(plan_field '"\(.revision) \(.history | length) \(.pending)"')" "2 2 null" "plan"
same "$(job_field "$job" .generation)" "$generation" "generation (nobody restarted)"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
wait_for 60 "the end of the job" job_ended "$job"

claim "a job of more parameters than one message lists trains, each in a bucket of its own"
submit "$(gpt_job many 6 '"reducer":{"bucket_cap_bytes":1,"first_bucket_bytes":0,"timeout_seconds":60}' | sed 's/"layers":2/"layers":90/')"
await "$job" succeeded 200
same "$(plan_field '"\(.buckets | length) \(.revision)"')" "1084 2" "buckets and plans"

claim "results do not depend on plans, and all members of the specification do something"
losses=
for reducer in "$small,\"rebuild_after_steps\":0" "$small" '"bucket_cap_bytes":[1024,4096],"small_bucket":"last","first_bucket_bytes":512' \
  '"bucket_cap_bytes":64,"max_buckets":3' '"plan":"auto"'; do
  submit "$(gpt_job "same" 60 "\"reducer\":{$reducer},\"exact\":true")"
  await "$job" succeeded 100
  losses+="$(get "/v1/jobs/$job/series?name=loss,grad_norm&max_points=100" | jq -c '[.series[].points[-1]]')"$'\n'
  case $reducer in
  *max_buckets*) [ "$(plan_field '.buckets | length')" -le 3 ] || fail "more than 3 buckets" ;;
  *small_bucket*) same "$(plan_field '.buckets[-1].limit_bytes')" 512 "the last bucket's limit" ;;
  *auto*) same "$(plan_field '.history[0].reason')" one_host "the first plan's reason" ;;
  esac
done
same "$(printf %s "$losses" | sort -u | wc -l)" 1 "different results: $losses"
