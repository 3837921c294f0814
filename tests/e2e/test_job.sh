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
  "checkpoint":{"every_steps":20,"keep_last":2},"sample":{"tokens":20,"prompt":"the "},"debug":{"step_delay_ms":70}}'  # for as long as it takes to watch it
gpt=$job
curl -sSN -m 200 "$server/v1/jobs/$gpt/stream" >"$run/stream" 2>/dev/null &
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
request GET "/v1/jobs/$gpt/stream" '' -H "Last-Event-ID: $last_id" -m 60
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
has_logs() { grep -q '^\[r[01] ' <<<"$(get "/v1/jobs/$gpt/logs?rank=all")"; }
wait_for 10 "a log line, which may come behind the job" has_logs
curl -fsS -H 'Accept: application/x-ndjson' "$server/v1/jobs/$gpt/logs?rank=all&tail=3" |
  jq -es 'length >= 1 and length <= 3 and all(.[]; .text and (.rank >= 0))' >/dev/null || fail "no log records"
timeout 60 curl -fsS "$server/v1/jobs/$gpt/logs?follow=true" >/dev/null || fail "following an ended job does not end"
# As an expression this overran the coordinator's stack; it is text, and no line has it.
same "$(curl -fsSG --data-urlencode 'grep=.*{10,}{10,}{10,}{10,}{10,}' "$server/v1/jobs/$gpt/logs")" "" "search for a pattern"

claim "the metrics page is clean and complete"
for family in gradsync_job_step gradsync_job_loss gradsync_http_requests_total gradsync_coordinator_up; do
  wait_for 30 "$family" metrics_say "^$family"
done
get /metrics >"$run/metrics"
if command -v promtool >/dev/null; then promtool check metrics <"$run/metrics" || fail "promtool"; fi
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

claim "an fp16 job skips what overflows, and its loss scale can be seen"
submit '{"name":"half","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","precision":"fp16","mlp":{"dims":[20,24,5]}},
  "optimizer":{"lr":0.003,"loss_scale":{"init":1e12}},"reducer":{"wire_dtype":"bf16"},"steps":{"target":60}}'
await "$job" succeeded 60
job_field "$job" '.latest.loss_scale > 0 and .latest.loss_scale < 1e9' | grep -q true || fail "loss scale: $(job_field "$job" .latest)"
get "/v1/jobs/$job/metrics" | jq -e '.totals.skipped_steps >= 10 and .totals.skipped_steps < 40 and .totals.wire_bytes < .totals.payload_bytes' >/dev/null ||
  fail "skipped steps: $(get "/v1/jobs/$job/metrics" | jq -c .totals)"
get "/v1/jobs/$job/plan" | jq -e '.total_bytes == ([.buckets[].tensors[].elements] | add) * 4 and
  all(.buckets[]; .bytes == .tensors[-1].offset_bytes + .tensors[-1].elements * 4)' >/dev/null ||
  fail "buckets hold fp32: $(get "/v1/jobs/$job/plan")"
get "/v1/jobs/$job/plan" | jq -e '([.buckets[].wire_bytes] | add) == .total_wire_bytes and
  all(.buckets[]; .hook == "bf16" and .elements_sent == .elements and .wire_bytes >= .bytes / 2 and .wire_bytes < .bytes)' >/dev/null ||
  fail "what buckets send: $(get "/v1/jobs/$job/plan")"
for line in "gradsync_job_loss_scale\{.*$job" "gradsync_job_info\{.*$job.*hook=\"bf16\"" "gradsync_job_skipped_steps_total\{.*$job.*\} [1-9]"; do
  wait_for 30 "$line" metrics_say "^$line"
done
get /metrics >"$run/metrics"
! grep "^gradsync_job_loss_scale{" "$run/metrics" | grep -q "$gpt" || fail "an fp32 job has a loss scale"

claim "a job says what its communication hook does"
submit '{"name":"hooked","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[64,64,5]}},
  "reducer":{"hook":{"kind":"fp16","divide_after_cast":true}},"steps":{"target":40}}'
await "$job" succeeded 60
same "$(job_field "$job" '.spec.reducer.hook | tojson')" '{"kind":"fp16","divide_after_cast":true}' "hook"
job_field "$job" '.reduction | .hook == "fp16" and .compression_ratio > 1.8 and .compression_ratio <= 2' | grep -q true ||
  fail "reduction: $(job_field "$job" .reduction)"
wait_for 30 "the ratio" metrics_say "^gradsync_compression_ratio\{.*$job.*\} 1\.[89]"
for phase in encode decode; do
  wait_for 30 "seconds of $phase" metrics_say "^gradsync_hook_seconds_total\{.*$job.*rank=\"1\",phase=\"$phase\"\} [0-9]"
done
get /metrics | grep "$job" >"$run/metrics.job"
! grep -q '^gradsync_error_feedback_norm' "$run/metrics.job" || fail "fp16 carries nothing"
request POST /v1/jobs '{"model":{"kind":"mlp"},"steps":{"target":1},"reducer":{"wire_dtype":"bf16","hook":{"kind":"fp16","rank":2}}}'
same "$status $(body '[.errors[].pointer] | sort | join(" ")')" "422 /reducer/hook/rank /reducer/wire_dtype" "a hook with what it does not have"

claim "ranks that train apart average over neighbours first, and the plan says how often"
submit '{"name":"tree","world":{"min":2,"max":3,"join_window_seconds":0,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,5]}},
  "reducer":{"hook":{"kind":"local_sgd","start_step":2,"period":8,"local_ranks":1,"group_averages":[{"period":2,"group_size":2}]}},
  "steps":{"target":20}}'
await "$job" succeeded 60
same "$(get "/v1/jobs/$job/plan" | jq -c .averages)" '[{"period":2,"group_size":2},{"period":8}]' "averages"
grep -q '^averages  *every 2 steps of 2 ranks, 8 steps of all$' <<<"$("$bin/gradsync" --server "$server" plan "$job")" || fail "plan without averages"

claim "a hook that carries residuals says how large they are, and what it spares"
submit '{"name":"thin","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[64,64,5]}},
  "reducer":{"hook":{"kind":"powersgd","rank":2,"start_step":3,"wrap":"bf16"}},"steps":{"target":110}}'
await "$job" succeeded 60
same "$(job_field "$job" .spec.checkpoint.parts)" ranks "parts"
get "/v1/jobs/$job/plan" | jq -e '([.buckets[].compressed_tensors] | add) == 2 and
  all(.buckets[]; .hook == "powersgd" and .wrap == "bf16") and .total_wire_bytes * 4 < .total_bytes' >/dev/null ||
  fail "plan: $(get "/v1/jobs/$job/plan")"
get "/v1/jobs/$job/timeline?steps=last:1" | jq -e '.plan.hook == "powersgd+bf16" and (.plan.compressed_tensors | add) == 2' >/dev/null ||
  fail "timeline: $(get "/v1/jobs/$job/timeline?steps=last:1" | jq -c .plan)"
job_field "$job" '.reduction | .hook == "powersgd+bf16" and .elements_sent * 2 < .elements and .error_feedback_norm > 0' | grep -q true ||
  fail "reduction: $(job_field "$job" .reduction)"
for rank in 0 1; do
  wait_for 30 "the residuals of rank $rank" metrics_say "^gradsync_error_feedback_norm\{.*$job.*rank=\"$rank\".* [0-9.e-]*[1-9]"
done
wait_for 30 "the hook" metrics_say "^gradsync_job_info\{.*$job.*hook=\"powersgd\+bf16\""
request POST /v1/jobs '{"model":{"kind":"mlp"},"steps":{"target":1},"checkpoint":{"parts":"one"},"reducer":{"op":"sample_mean","hook":{"kind":"powersgd","start_step":1}}}'
same "$status $(body '[.errors[].pointer] | sort | join(" ")')" "422 /checkpoint/parts /reducer/hook/error_feedback /reducer/hook/start_step" "what does not go together"

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
same "$status $(body .state)" "202 succeeded" "stop of an ended job"
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

claim "its timeline has every phase and bucket of each rank, and the same steps on all"
# timeline QUERY: with an answer of each rank, which a busy machine may make come too late.
timeline() {
  request GET "/v1/jobs/$job/timeline?$1"
  same "$status" 200 "timeline?$1"
}
all_answer() { timeline "$1" && jq -e '.missing | length == 0' "$run/body"; }
wait_for 60 "a timeline of all ranks" all_answer steps=last:2
jq -e '.clock == "shared" and (.missing | length) == 0 and ([.ranks[].rank] == [0, 1]) and
  ([.ranks[] | [.steps[].step]] | unique | length) == 1 and
  all(.ranks[].steps[]; ([.phases[].phase] | contains(["data", "forward", "backward", "reduction", "commit", "optimizer"])) and
    .duration_seconds > 0 and .plan_hash and (.buckets | length) > 0 and
    all(.buckets[]; .ready_seconds <= .launched_seconds and .launched_seconds <= .finished_seconds and .bytes > 0))' \
  "$run/body" >/dev/null || fail "timeline: $(head -c 2000 "$run/body")"
buckets=$(get "/v1/jobs/$job/plan" | jq '.buckets | length')
wait_for 60 "a timeline of one rank" all_answer "steps=last:3&ranks=1"
jq -e '[.ranks[].rank] == [1] and (.ranks[0].steps | length) == 3' "$run/body" >/dev/null || fail "one rank: $(head -c 600 "$run/body")"
request GET "/v1/jobs/$job/timeline?steps=last:0"
same "$status $(body .code)" "400 bad_parameter" "no steps"

claim "its trace-event file is sorted, disjoint on each lane, and has every bucket once"
both_ranks() { timeline "steps=last:3&format=trace" && jq -e '[.traceEvents[] | select(.ph == "X" and .args.bucket != null) | .pid] | unique | length == 2' "$run/body"; }
wait_for 60 "a trace of both ranks" both_ranks
grep -qi '^Content-Disposition: attachment; filename="j-' "$run/headers" || fail "the trace is no download"
jq -e '[.traceEvents[] | select(.ph != "M").ts] as $ts | ($ts | length) > 0 and $ts == ($ts | sort) and $ts[0] >= 0' \
  "$run/body" >/dev/null || fail "the trace is not sorted"
jq -e '[.traceEvents[] | select(.ph == "X")] | group_by([.pid, .tid]) | all(.[]; sort_by(.ts) as $l |
  all(range(1; $l | length); $l[.].dur >= 0 and $l[.].ts >= $l[. - 1].ts + $l[. - 1].dur - 0.001))' \
  "$run/body" >/dev/null || fail "events overlap on a lane"
jq -e --argjson buckets "$buckets" '[.traceEvents[] | select(.ph == "X" and .args.bucket != null)] |
  (group_by([.pid, .args.step]) | length == 6 and all(.[]; ([.[].args.bucket] | sort) == [range($buckets)]))' \
  "$run/body" >/dev/null || fail "buckets are missing in the trace, or there twice"
jq -e --arg job "$job" '.otherData.job == $job and (.otherData.plan_hash | startswith("xxh3:")) and
  ([.traceEvents[] | select(.ph == "i" and .name == "bucket ready")] | length) ==
  ([.traceEvents[] | select(.ph == "s")] | length)' "$run/body" >/dev/null || fail "trace: $(tail -c 600 "$run/body")"

claim "its diagnosis has a verdict, a sentence with numbers and findings with suggestions"
wait_for 60 "more steps" step_at_least "$job" 60
request GET "/v1/jobs/$job/diagnosis"
same "$status" 200 "diagnosis"
jq -e '(.verdict | IN("compute", "communication", "data", "straggler", "checkpoint", "healthy")) and
  (.summary | test("[0-9]+ (%|us|ms|s)")) and all(.findings[]; .kind and .detail and .suggest)' "$run/body" >/dev/null ||
  fail "diagnosis: $(cat "$run/body")"
for family in gradsync_rank_straggler gradsync_job_goodput_ratio gradsync_job_lost_seconds_total \
  gradsync_reduce_queue_seconds_count gradsync_bucket_ready_position gradsync_grad_copy_seconds_total; do
  wait_for 30 "$family" metrics_say "^$family\{job_id=\"$job\""
done

claim "recording can be switched off and on while it runs"
request POST "/v1/jobs/$job/tracing?on=false"
same "$status $(body .ranks_told)" "202 2" "tracing off"
request POST "/v1/jobs/$job/tracing?on=true"
same "$status $(body .on)" "202 true" "tracing on"
request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
same "$status" 202 "stop"
await "$job" cancelled 60
get "/v1/jobs/$job/checkpoints" | jq -e '.items | length >= 1' >/dev/null || fail "no checkpoint on stop"

claim "an ended job shows the last steps that its ranks left behind"
request GET "/v1/jobs/$job/timeline"
jq -e --argjson step "$(job_field "$job" .progress.step)" '[.ranks[] | .steps[-1].step] == [$step - 1, $step - 1]' "$run/body" >/dev/null ||
  fail "timeline of an ended job: $(head -c 600 "$run/body")"
request GET "/v1/jobs/$job/diagnosis"
same "$(body .verdict)" not_running "verdict of an ended job"

claim "a job that fails is diagnosed at the step where it failed"
submit '{"name":"diverges","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},
  "data":{"kind":"synthetic","micro_batch":4},"optimizer":{"kind":"sgd","lr":1000},"steps":{"target":3000}}'
await "$job" failed 60
request GET "/v1/jobs/$job/diagnosis"
same "$(body .verdict)" failed "verdict"
step=$(job_field "$job" .progress.step)
[ "$step" -ge 100 ] || fail "failed at step $step"
jq -e --arg at "failed at step $step:" '(.summary | startswith($at)) and any(.findings[]; .kind == "skipped_steps")' "$run/body" >/dev/null ||
  fail "diagnosis: $(cat "$run/body")"

claim "ranks of two replicas each train on threads of their own"
submit '{"name":"replicas","world":{"min":2,"max":2,"threads_per_rank":2,"replicas_per_process":2},
  "model":{"kind":"gpt2","gpt2":{"layers":2,"heads":2,"channels":32,"context":16,"vocab":64,"layer_drop":0.2}},
  "data":{"kind":"synthetic","micro_batch":2},"optimizer":{"lr":0.003},"steps":{"target":40},
  "reducer":{"first_bucket_bytes":4096,"bucket_cap_bytes":[16384]},"debug":{"step_delay_ms":150}}'
same "$(job_field "$job" .spec.logical_shards)" 4 "shards of two ranks with two replicas each"
have_replicas() { # looked for while they train, which is not long
  local pids
  pids=$(trainer_pids "$job")
  [ "$(wc -w <<<"$pids")" -eq 2 ] || return
  for pid in $pids; do grep -qx replica-1 "/proc/$pid/task"/*/comm || return; done
}
wait_for 60 "a thread replica-1 in each rank" have_replicas
await "$job" succeeded 60
request GET "/v1/jobs/$job/series?name=loss&max_points=100"
jq -e '.series[0].points | first[1] - last[1] > 0.3' "$run/body" >/dev/null || fail "loss: $(head -c 400 "$run/body")"

claim "a job whose embedding travels as rows, with layers left out, learns and says what it is"
submit '{"name":"rows","world":{"min":2,"max":2,"threads_per_rank":1},
  "model":{"kind":"gpt2","gpt2":{"layers":3,"heads":2,"channels":32,"context":16,"vocab":512,"layer_drop":0.2}},
  "data":{"kind":"synthetic","micro_batch":2},"optimizer":{"lr":0.003},"steps":{"target":40},
  "reducer":{"sparse_embedding":"owner","first_bucket_bytes":4096,"bucket_cap_bytes":[16384],"check_replicas_every_steps":5}}'
await "$job" succeeded 60
same "$(job_field "$job" .spec.reducer.sparse_embedding)" owner "how the embedding travels"
request GET "/v1/jobs/$job/series?name=loss&max_points=100"
jq -e '.series[0].points | first[1] - last[1] > 0.3' "$run/body" >/dev/null || fail "loss: $(head -c 400 "$run/body")"

claim "a port in use and a data directory in use have their exit codes"
code=0
"$bin/gradsync-coordinator" --http "${server#http://}" --control tcp://127.0.0.1:0 --data-dir "$run/other" >"$run/logs/port.log" 2>&1 || code=$?
same "$code" 69 "exit code for the port"
code=0
"$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/data" >"$run/logs/lock.log" 2>&1 || code=$?
same "$code" 73 "exit code for the data directory"

claim "the data directory does not depend on where a coordinator is started"
grep -qF "\"$run/service\"" <<<"$(cd "$run" && STATE_DIRECTORY="$run/service" "$bin/gradsync-coordinator" --print-config)" || fail "the default"
(cd "$run" && exec "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir relative) 2>"$run/logs/relative.log" &
pids+=("$!")
wait_for 30 "its own path" grep -qF "data_dir=$run/relative" "$run/logs/relative.log"
kill -TERM "$!"

claim "the coordinator ends at SIGTERM"
kill -TERM "$coordinator_pid"
code=0
wait "$coordinator_pid" || code=$?
same "$code" 0 "exit code of the coordinator"
