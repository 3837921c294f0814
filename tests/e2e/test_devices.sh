#!/usr/bin/env bash
# Where jobs compute, through curl: on a host without a GPU a job that needs one says so, and one that does
# not runs on the CPU; on a host with GPUs ranks get one each and reduce over NCCL.
#   GRADSYNC_TEST_GPUS=N  how many GPUs this host has (default: what `gradsync-worker devices` finds)
source "$(dirname "$0")/lib.sh"

found=$("$bin/gradsync-worker" devices)
gpus=${GRADSYNC_TEST_GPUS:-$(jq '.devices | length' <<<"$found")}
spec() {  # NAME WORLD MORE
  printf '{"name":"%s","world":{%s,"join_window_seconds":0},"model":{"kind":"gpt2","seed":3,' "$1" "$2"
  printf '"gpt2":{"layers":2,"heads":2,"channels":32,"context":16,"vocab":64}},'
  printf '"data":{"kind":"synthetic","micro_batch":4},"optimizer":{"kind":"adamw","lr":0.01}%s}' "$3"
}
submit() {  # sets job
  request POST /v1/jobs "$1"
  same "$status" 201 "status of POST /v1/jobs: $(cat "$run/body")"
  job=$(jq -r .id "$run/body")
}
field_is() { [ "$(get "/v1/jobs/$job" | jq -r ".$1")" = "$2" ]; }
devices_of_ranks() { get "/v1/jobs/$job/workers" | jq -r '[.items[].device] | unique | join(",")'; }

start_coordinator one "$run/data"

if [ "$gpus" -eq 0 ]; then
  claim "a job that needs GPUs says why it waits"
  start_worker w1 2
  submit "$(spec needs-gpus '"max":1,"device":"cuda"' ',"steps":{"target":5}')"
  wait_for 20 "reason NoDevice" field_is reason NoDevice
  reason=$(jq -r .devices_reason <<<"$found")
  get "/v1/jobs/$job" | jq -r .message | grep -F "worker w1" | grep -qF "$reason" ||
    fail "the message is: $(get "/v1/jobs/$job" | jq -r .message)"
  claim "and fails with that once it has waited as long as it may"
  submit "$(spec impatient '"max":1,"device":"cuda","wait_seconds":0.5' ',"steps":{"target":5}')"
  wait_for 20 "failed" field_is state failed
  field_is reason NoDevice || fail "reason $(get "/v1/jobs/$job" | jq -r .reason)"
  claim "auto takes the CPU"
  submit "$(spec any '"max":2' ',"steps":{"target":5}')"
  wait_for 60 "succeeded" field_is state succeeded
  same "$(devices_of_ranks)" cpu "devices of ranks"
  claim "a worker that is to give out a GPU that is not there does not start"
  code=0
  "$bin/gradsync-worker" --coordinator "$control" --devices 0 2>"$run/logs/refused.log" || code=$?
  [ "$code" -ne 0 ] || fail "it ended with 0"
  grep -qF 'there is no GPU 0 here' "$run/logs/refused.log" || fail "it did not say why"
  exit 0
fi

claim "a worker offers its GPUs, one for each slot"
start_worker w1 "$gpus"
same "$(get /v1/workers | jq '.items[0].slots_with_gpu')" "$gpus" "slots with a GPU"

claim "auto takes them, every rank trains on its own"
submit "$(spec on-gpus "\"max\":$gpus" ',"steps":{"target":40}')"
wait_for 120 "succeeded" field_is state succeeded
same "$(devices_of_ranks)" cuda "devices of ranks"
same "$(get "/v1/jobs/$job/workers" | jq '[.items[].device_uuid] | unique | length')" "$gpus" "GPUs used"
gpu_loss=$(get "/v1/jobs/$job/series?name=loss" | jq '.series[0].points[-1][1]')

claim "the same job on CPUs comes to the same loss but for roundings"
submit "$(spec on-cpus "\"max\":$gpus,\"device\":\"cpu\"" ',"steps":{"target":40}')"
wait_for 120 "succeeded" field_is state succeeded
same "$(devices_of_ranks)" cpu "devices of ranks"
cpu_loss=$(get "/v1/jobs/$job/series?name=loss" | jq '.series[0].points[-1][1]')
jq -ne --argjson a "$gpu_loss" --argjson b "$cpu_loss" '(($a - $b) | fabs) <= 0.01 * $b' >/dev/null ||
  fail "loss $gpu_loss on GPUs, $cpu_loss on CPUs"

claim "bf16 on GPUs learns as well"
submit "$(spec bf16 "\"max\":$gpus,\"device\":\"cuda\"" ',"steps":{"target":40}' |
  jq -c '.model.precision = "bf16"')"
wait_for 120 "succeeded" field_is state succeeded
bf16_loss=$(get "/v1/jobs/$job/series?name=loss" | jq '.series[0].points[-1][1]')
jq -ne --argjson a "$bf16_loss" --argjson b "$cpu_loss" '(($a - $b) | fabs) <= 0.05 * $b' >/dev/null ||
  fail "loss $bf16_loss in bf16, $cpu_loss in fp32 on CPUs"

claim "kill -9 of a rank costs one restart and no step"
submit "$(spec killed "\"max\":$gpus,\"device\":\"cuda\"" \
  ',"steps":{"target":400},"restart":{"backoff_initial_seconds":0.1}')"
wait_for 120 "ten steps" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.progress.step >= 10'"
kill -KILL "$(get "/v1/jobs/$job/workers" | jq '.items[-1].pid')"
wait_for 200 "succeeded" field_is state succeeded
same "$(get "/v1/jobs/$job" | jq .restarts)" 1 "restarts"
same "$(get "/v1/jobs/$job" | jq .progress.step)" 400 "steps"
