#!/usr/bin/env bash
# A job between two hosts finds out what is between them, and its plans follow: told in the plan, in an event and in the metrics,
# kept over a restart of the coordinator, and without a bit of difference in what is trained. Who gives caps keeps them.
command -v cc >/dev/null && { command -v tc >/dev/null || [ -x /usr/sbin/tc ]; } || { echo "SKIP: no cc or tc"; exit 77; }
. "$(dirname "$0")/network.sh"
. "$(dirname "$0")/../support/link/link.sh"
host left
host right
link_world "$run"
link_line 1 left right
link_rate 1 12500000 2>/dev/null || skip "no tc tbf"
link_delay 1 2000

# 270,000 parameters.
job_of() { # NAME STEPS [REDUCER]
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[128,512,256,256,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s},"reducer":{"backend":"net"%s}}' "$1" "$2" "${3-}"
}
plan() { get "/v1/jobs/$job/plan" | jq -r "$1"; }
is() { [ "$(plan "$1" 2>/dev/null)" = true ]; }
centre "$run/data"
at=left agent here 1 --data-address 10.78.1.1
at=right agent there 1 --data-address 10.78.1.2

claim "what a collective takes is measured and planned with"
submit "$(job_of itself 100000)"
followed() { is '.reason == "link" and (.link.followed and .link.forecast_seconds >= .link.bound_seconds * 0.999)'; }
wait_for 120 "a plan that follows the link" followed
# The relay is 2 ms long, each way: what one bucket takes is near that, and the start of a fit through few is off by some tenths;
# by more where the machine was busy, and the next plan is of a better one.
is_near() { is '.link.start_seconds.estimate > 0.001 and .link.start_seconds.low <= .link.start_seconds.estimate and
  .link.bytes_per_second.low < 25e6 and (.buckets | map(.ends == "link") | all)'; }
wait_for 120 "a plan near what the link gives" is_near
knows_pairs() { is '.link.pairs | length == 1 and .[0].ranks == [0, 1] and .[0].latency_seconds > 0.004'; }
wait_for 60 "what is between the two" knows_pairs
get "/v1/jobs/$job/events?limit=500" | jq -e '[.items[].reason] | index("LinkMeasured")' >/dev/null || fail "no event"
for family in start_seconds bytes_per_second latency_seconds; do
  wait_for 60 "gradsync_job_link_$family" metrics_say "^gradsync_job_link_$family\{job_id=\"$job\"\} "
done
get /metrics >"$run/metrics"
[ "$(grep -c '^gradsync_job_link_' "$run/metrics")" -le 4 ] || fail "series of links: $(grep '^gradsync_job_link_' "$run/metrics")"

claim "another life of the coordinator plans the same"
# What is measured between the look and the kill may come to another plan: then once more.
for _ in $(seq 6); do
  hash=$(plan .hash)
  kill -KILL "$coordinator_pid"
  wait "$coordinator_pid" 2>/dev/null || true
  centre "$run/data"
  planned=$(plan '"\(.reason) \(.hash)"')
  [ "$planned" != "link $hash" ] || break
done
same "$planned" "link $hash" "the plan"
step=$(get "/v1/jobs/$job" | jq .progress.step)
wait_for 60 "steps of the next life" step_at_least "$job" $((step + 20))
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60

claim "plans do not change what is trained, and caps that are given stay"
submit "$(job_of planned 40)"
await "$job" succeeded 120
is '.reason == "link"' || fail "plan: $(plan .reason)"
wanted=$(tensors_of "$job")
submit "$(job_of caps 40 ',"bucket_cap_bytes":200000')"
await "$job" succeeded 120
is '.reason == "ready_order" and (.buckets | map(.limit_bytes == 200000) | all)' || fail "plan: $(plan .)"
same "$(tensors_of "$job")" "$wanted" "the state"

claim "hook auto compresses what the link makes slow, within its budget, and says why"
# 10 Mbit/s: a bucket of 1 MB takes a second as it is, codes of it a quarter of that. So it is certain to show in steps, however busy the
# machine is, and steps of plain sums are not tried (test_auto_hook has those).
link_rate 1 1250000
auto() { printf ',"hook":{"kind":"auto","error_budget":%s}' "$1"; }
large='[.buckets[] | select(.bytes > 400000)]'
submit "$(job_of tight 100000 "$(auto 0.000001)")"
refuses() { is "$large | length > 0 and all(.choice.measured_step >= 0 and .choice.hook == \"allreduce\" and (.choice.why | test(\"over the budget of 1e-06\")))"; }
wait_for 120 "plain sums, nothing else being within the budget" refuses
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60
submit "$(job_of chosen 100000 "$(auto 0.1)")"
compresses() { is "$large | length > 0 and all(.choice | .hook as \$taken | .hook != \"allreduce\" and
  (.offers | map({key: .hook, value: .}) | from_entries | .[\$taken].seconds < 0.9 * .allreduce.seconds and .[\$taken].error <= 0.1))"; }
wait_for 120 "buckets that are compressed" compresses
wait_for 60 "the metric" metrics_say "^gradsync_hook_buckets\{job_id=\"$job\",.*hook=\"(int8_channel|fp16|bf16)\"\} [1-9]"
# Fewer bytes, and what codes owe.
fewer() { get "/v1/jobs/$job" | jq -e '.reduction | .compression_ratio > 1.5' >/dev/null; }
wait_for 60 "fewer bytes" fewer
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60
