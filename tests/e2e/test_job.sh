#!/usr/bin/env bash
# From curl to a trained model and back: two small jobs, everything that the API says about them, and what
# it answers to wrong inputs.
. "$(dirname "$0")/lib.sh"

# The language of this test: text that can be learned in a hundred steps.
for i in $(seq 2000); do echo "the quick brown fox jumps over the lazy dog $((i % 10))"; done >"$run/root/text.txt"

start_coordinator main "$run/data"
start_worker agent 2

claim "a byte-level GPT trains on two ranks and succeeds"
submit '{"name":"gpt","world":{"min":2,"max":2,"threads_per_rank":1},
  "model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":32,"context":32,"vocab":256}},
  "data":{"kind":"bytes","train":["text.txt"],"micro_batch":4},
  "optimizer":{"lr":0.003},"steps":{"target":60},
  "reducer":{"first_bucket_bytes":4096,"bucket_cap_bytes":16384},
  "checkpoint":{"every_steps":20,"keep_last":2},"sample":{"tokens":20,"prompt":"the "},"debug":{"step_delay_ms":20}}'
gpt=$job
curl -sSN -m 100 "$server/v1/jobs/$gpt/stream" >"$run/stream" 2>/dev/null &
stream_pid=$!
pids+=("$stream_pid")
await "$gpt" succeeded 100
same "$(job_field "$gpt" .progress.step)" 60 "step"
same "$(job_field "$gpt" .reason)" TargetReached "reason"

claim "its loss went down, and the series says so"
request GET "/v1/jobs/$gpt/series?name=loss,step_seconds&max_points=100"
same "$status" 200 "series"
jq -e '[.series[] | select(.name == "loss").points] | first | (first[1] - last[1]) > 0.3' "$run/body" >/dev/null ||
  fail "loss: $(head -c 400 "$run/body")"

claim "its live stream had a snapshot, steps and an end"
wait_for 20 "end of the stream" grep -q '^event: end' "$run/stream"
wait "$stream_pid" || true
for event in snapshot step state end; do grep -q "^event: $event" "$run/stream" || fail "no event $event in the stream"; done
grep '^data: ' "$run/stream" | cut -c7- | jq -es 'length > 3' >/dev/null || fail "stream data is not JSON"
! grep -q 'steps_summarised.*steps_summarised' "$run/stream" || fail "a member comes twice"
last_id=$(grep '^id: ' "$run/stream" | tail -n 1 | cut -c5-)
request GET "/v1/jobs/$gpt/stream" '' -H "Last-Event-ID: $last_id" -m 20
same "$status" 204 "stream after its end"

claim "its plan, checkpoints, events and workers can be read"
request GET "/v1/jobs/$gpt/plan"
same "$status" 200 "plan"
jq -e '(.buckets | length) > 1 and (.hash | startswith("xxh3:")) and ([.buckets[].bytes] | add) == .total_bytes' "$run/body" >/dev/null ||
  fail "plan: $(head -c 400 "$run/body")"
request GET "/v1/jobs/$gpt/checkpoints"
jq -e '[.items[].step] | max == 60' "$run/body" >/dev/null || fail "checkpoints: $(cat "$run/body")"
jq -e '(.items | length) <= 3 and all(.items[]; .verified)' "$run/body" >/dev/null || fail "checkpoints: $(cat "$run/body")"
get "/v1/jobs/$gpt/events" | jq -e '.items | length > 2' >/dev/null || fail "events"
get "/v1/jobs/$gpt/workers" | jq -e '[.items[].rank] == [0, 1]' >/dev/null || fail "workers"
get "/v1/workers" | jq -e '.items[0].slots == 2' >/dev/null || fail "agent"
same "$(curl -sS -o /dev/null -w '%{http_code}' -H "If-None-Match: $(curl -sSI "$server/v1/jobs/$gpt" | tr -d '\r' | sed -n 's/^ETag: //p')" "$server/v1/jobs/$gpt")" 304 "ETag"

claim "it wrote a sample, and its logs can be read as text and as records"
jq -e '.sample | length > 4' <(get "/v1/jobs/$gpt") >/dev/null || fail "sample: $(job_field "$gpt" .sample)"
curl -fsS "$server/v1/jobs/$gpt/logs?rank=all" | grep -q '^\[r[01] ' || fail "no log line"
curl -fsS -H 'Accept: application/x-ndjson' "$server/v1/jobs/$gpt/logs?rank=all&tail=3" |
  jq -es 'length >= 1 and length <= 3 and all(.[]; .text and (.rank >= 0))' >/dev/null || fail "no log records"
timeout 20 curl -fsS "$server/v1/jobs/$gpt/logs?follow=true" >/dev/null || fail "following an ended job does not end"

claim "the metrics page is clean and complete"
get /metrics >"$run/metrics"
if command -v promtool >/dev/null; then promtool check metrics <"$run/metrics" || fail "promtool"; fi
for family in gradsync_job_step gradsync_job_loss gradsync_http_requests_total gradsync_coordinator_up; do
  grep -q "^$family" "$run/metrics" || fail "no $family in /metrics"
done
same "$(grep -v '^#' "$run/metrics" | sed 's/ [^ ]*$//' | sort | uniq -d | head -n 1)" "" "duplicate series"
same "$(grep '^# TYPE' "$run/metrics" | sort | uniq -d | head -n 1)" "" "split family"

claim "an MLP trains too, and the same idempotency key submits it once"
request POST /v1/jobs "$(mlp_job mlp 40 2)" -H 'Idempotency-Key: key-1'
same "$status" 201 "submit"
job=$(body .id)
request POST /v1/jobs "$(mlp_job mlp 40 2)" -H 'Idempotency-Key: key-1'
same "$(body .id)" "$job" "id of the replay"
grep -qi '^Idempotency-Replayed: true' "$run/headers" || fail "not marked as replayed"
request POST /v1/jobs "$(mlp_job mlp 41 2)" -H 'Idempotency-Key: key-1'
same "$status $(body .code)" "422 idempotency_mismatch" "another body under the same key"
await "$job" succeeded 60

claim "wrong specifications are refused with every error"
request POST /v1/jobs '{"model":{"kind":"mlq"},"steps":{"target":0},"reducer":{"buket_cap_bytes":1}}'
same "$status $(body .code)" "422 validation" "bad specification"
same "$(body '[.errors[].pointer] | sort | join(" ")')" "/model/kind /reducer/buket_cap_bytes /steps/target" "pointers"
body '.errors[].hint' | grep -q bucket_cap_bytes || fail "no suggestion"
request POST /v1/jobs '{"model":'
same "$status $(body .code)" "400 bad_json" "broken JSON"
request GET /v1/jobs/nothing
same "$status $(body .code)" "404 not_found" "unknown job"
request PUT /v1/jobs '{}'
same "$status" 405 "wrong verb"
request POST "/v1/jobs/$gpt/stop" '{}'
case $status in 200 | 202 | 409) ;; *) fail "stop of an ended job: $status" ;; esac
request POST '/v1/jobs?dry_run=true' "$(mlp_job dry 10 2)"
same "$status" 200 "dry run"
request POST /v1/plans/preview '{"tensors":[{"name":"w","elements":768,"dtype":"fp32","device":"cpu"}],"limits_bytes":[1048576]}'
same "$status $(body '.buckets[0].bytes')" "200 3072" "preview"
request POST /v1/plans/preview '{"tensors":[{"elements":-1}],"limits_bytes":[]}'
same "$status" 422 "bad preview"

claim "a job whose data are missing fails and names the rank that failed first"
submit '{"name":"nodata","model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":32,"context":32}},
  "data":{"kind":"bytes","train":["missing.txt"]},"world":{"min":2,"max":2,"threads_per_rank":1},"steps":{"target":5}}'
await "$job" failed 60
job_field "$job" '.failure.first.rank' | grep -qE '^[01]$' || fail "failure: $(job_field "$job" .failure)"
job_field "$job" '[.message, .failure | tostring] | join(" ")' | grep -q missing.txt || fail "the file is not named"

claim "a job that is too large waits and says what for"
submit "$(mlp_job large 5 3)"
wait_for 20 "waiting_for" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.waiting_for.slots_needed == 3'"
same "$(job_field "$job" .state)" queued "state"
request POST /v1/jobs "$(mlp_job large 5 1)"
same "$status" 409 "name in use"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
same "$status" 202 "stop"
await "$job" cancelled 20
request DELETE "/v1/jobs/$job"
same "$status" 204 "delete"
request GET "/v1/jobs/$job"
same "$status" 404 "deleted job"

claim "a running job stops gracefully, with a checkpoint"
submit "$(mlp_job endless 100000 2 ',"debug":{"step_delay_ms":5}')"
wait_for 60 "its steps" step_at_least "$job" 5
request DELETE "/v1/jobs/$job"
same "$status $(body .code)" "409 wrong_state" "delete of a running job"
request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
same "$status" 202 "stop"
await "$job" cancelled 60
get "/v1/jobs/$job/checkpoints" | jq -e '.items | length >= 1' >/dev/null || fail "no checkpoint on stop"

claim "a port in use and a data directory in use have their exit codes"
code=0
"$bin/gradsync-coordinator" --http "${server#http://}" --control tcp://127.0.0.1:0 --data-dir "$run/other" >"$run/logs/port.log" 2>&1 || code=$?
same "$code" 69 "exit code for the port"
code=0
"$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/data" >"$run/logs/lock.log" 2>&1 || code=$?
same "$code" 73 "exit code for the data directory"

claim "the coordinator ends at SIGTERM"
kill -TERM "$coordinator_pid"
code=0
wait "$coordinator_pid" || code=$?
same "$code" 0 "exit code of the coordinator"
