#!/usr/bin/env bash
# Where jobs compute, through curl: on a host without a GPU a job that needs one says so, and one that does
# not runs on the CPU; on a host with GPUs ranks get one each and reduce over NCCL.
source "$(dirname "$0")/lib.sh"

found=$("$bin/gradsync-worker" devices)
gpus=$(jq '.devices | length' <<<"$found")
[ "$gpus" -le 2 ] || gpus=2
# job NAME KIND JQ: a small job on the GPUs, changed by the program JQ.
job() {
  jq -nc --arg name "$1" --arg kind "$2" --argjson gpus "$gpus" '
    {name: $name, world: {max: $gpus, join_window_seconds: 0, device: "cuda"}, logical_shards: 2,
     model: {kind: $kind, seed: 3}, data: {micro_batch: 2}, optimizer: {lr: 0.01}, steps: {target: 6},
     restart: {backoff_initial_seconds: 0.1, max_restarts: 2}}
    | if $kind == "mlp" then .model.mlp = {dims: [16, 16, 4]}
      else .model.gpt2 = {layers: 2, heads: 2, channels: 16, context: 8, vocab: 32} end | '"${3:-.}"
}
text='.model.gpt2.vocab = 256 | .data.kind = "bytes" | .data.train = ["text.txt"]'
field_is() { [ "$(job_field "$job" ".$1")" = "$2" ]; }
devices_of_ranks() { get "/v1/jobs/$job/workers" | jq -r '[.items[].device] | unique | join(",")'; }
run_job() {  # NAME KIND JQ: sets job, fails unless it succeeds
  submit "$(job "$@")"
  await "$job" succeeded 120
  same "$(job_field "$job" .restarts)" 0 "restarts of $1"
}
last_loss() { get "/v1/jobs/$job/series?name=loss" | jq '.series[0].points[-1][1]'; }
near() {  # LOSS OTHER SHARE WHAT
  jq -ne --argjson a "$1" --argjson b "$2" --argjson share "$3" \
    '$b > 0 and (($a - $b) | fabs) <= $share * $b' >/dev/null || fail "$4: loss $1 beside $2"
}
# Of a worker with GRADSYNC_KERNEL_TIMES=4: products of this step, with their shapes, and no other step.
kernels_are_listed() {  # JOB DEVICE DTYPE
  local logs
  logs=$(get "/v1/jobs/$1/logs?limit=500" | grep -F 'msg="kernel time')
  grep -Eq 'msg="kernel times" .*rank=0 step=4 device='"$2"' rows=[1-9]' <<<"$logs" &&
    grep -Eq 'msg="kernel time" .*rank=0 step=4 kernel=matmul dtype='"$3"' calls=[1-9].* shape="m=[0-9]+ n=[0-9]+ k=[0-9]+ ' <<<"$logs" &&
    grep -q 'kernel=attention_backward' <<<"$logs" && grep -q 'kernel=adamw' <<<"$logs" && ! grep -q 'step=[^4]' <<<"$logs"
}
refused() {  # POINTER JQ
  request POST /v1/jobs "$(job refused gpt2 "$2")"
  same "$status" 422 "status of a job with $2"
  jq -e --arg at "$1" 'any(.. | objects; .pointer? == $at and .code? == "not_applicable")' "$run/body" >/dev/null ||
    fail "not refused for $1: $(cat "$run/body")"
}

cp "$(dirname "$0")/../../README.md" "$run/root/text.txt"
start_coordinator one "$run/data"

claim "what GPUs cannot do is refused before anything starts"
refused /world/replicas_per_process '.world.replicas_per_process = 2'
refused /reducer/backend '.reducer.backend = "shm"'

if [ "$gpus" -eq 0 ]; then
  [ -z "${GRADSYNC_DEMAND_DEVICE:-}" ] || fail "a device is demanded, and there is none: $found"
  claim "a job that needs GPUs says why it waits"
  GRADSYNC_KERNEL_TIMES=4 start_worker w1 2
  gpus=1
  submit "$(job needs-gpus gpt2)"
  wait_for 20 "reason NoDevice" field_is reason NoDevice
  reason=$(jq -r .devices_reason <<<"$found")
  message=$(job_field "$job" .message)
  grep -F "worker w1" <<<"$message" | grep -qF "$reason" || fail "the message is: $message"
  claim "and fails with that once it has waited as long as it may"
  submit "$(job impatient gpt2 '.world.wait_seconds = 0.5')"
  await "$job" failed 20
  field_is reason NoDevice || fail "reason $(job_field "$job" .reason)"
  claim "auto takes the CPU"
  run_job any gpt2 '.world = {max: 2, join_window_seconds: 0}'
  same "$(devices_of_ranks)" cpu "devices of ranks"
  claim "and says how long each kernel took, in the step that its worker's environment names"
  wait_for 20 "times of kernels in the log" kernels_are_listed "$job" cpu fp32
  claim "a worker that is to give out a GPU that is not there does not start"
  code=0
  "$bin/gradsync-worker" --coordinator "$control" --devices 0 2>"$run/logs/refused.log" || code=$?
  [ "$code" -ne 0 ] || fail "it ended with 0"
  grep -qF 'there is no GPU 0 here' "$run/logs/refused.log" || fail "it did not say why"
  exit 0
fi

claim "a worker offers its GPUs, one for each slot"
GRADSYNC_STEP_DIGESTS=1 GRADSYNC_KERNEL_TIMES=4 start_worker w1 0
if [ "$(jq '.devices | length' <<<"$found")" -eq "$gpus" ]; then
  same "$(get /v1/workers | jq '.items[0].slots_with_gpu')" "$gpus" "slots with a GPU"
fi

claim "auto takes them, every rank trains on its own"
run_job on-gpus gpt2 'del(.world.device)'
same "$(devices_of_ranks)" cuda "devices of ranks"
same "$(get "/v1/jobs/$job/workers" | jq '[.items[].device_uuid] | unique | length')" "$gpus" "GPUs used"
on_gpus=$(last_loss)

claim "the same job on CPUs comes to the same loss but for roundings"
run_job on-cpus gpt2 '.world.device = "cpu"'
same "$(devices_of_ranks)" cpu "devices of ranks"
on_cpus=$(last_loss)
near "$on_gpus" "$on_cpus" 0.001 "fp32"
run_job tf32 gpt2 '.model.precision = "tf32"'
near "$(last_loss)" "$on_cpus" 0.01 "tf32"
run_job bf16 gpt2 '.model.precision = "bf16" | .reducer.wire_dtype = "bf16"'
near "$(last_loss)" "$on_cpus" 0.02 "bf16"
claim "each rank says how long each kernel took, in the step that its worker's environment names"
wait_for 20 "times of kernels in the log" kernels_are_listed "$job" cuda:0 bf16

claim "exact jobs have the same bits for one rank and several"
digest() { get "/v1/jobs/$job/logs?limit=500" | grep -oE 'step=6 digest=[a-z0-9:]+' | tail -n 1; }
exact='.exact = true | .model.gpt2.layer_drop = 0.5'
run_job exact-all gpt2 "$exact"
wait_for 20 "the digest of the last step" digest
all=$(digest)
run_job exact-one gpt2 "$exact | .world.max = 1"
wait_for 20 "the digest of the last step" digest
same "$(digest)" "$all" "state of one rank"

claim "several passes a step, rows of the embedding apart, evaluations and a sample"
run_job passes gpt2 "$text"' | .data.global_batch = 8 | .reducer.sparse_embedding = "owner"
  | .data.eval = ["text.txt"] | .data.eval_every_steps = 3 | .data.eval_batches = 1
  | .sample = {tokens: 8, prompt: "the "}'
[ -n "$(job_field "$job" '.sample // ""')" ] || fail "no sample"
same "$(get "/v1/jobs/$job/series?name=eval_loss" | jq '.series[0].points | length')" 2 "evaluations"

claim "ranks that run out of data, each with a part of its own"
run_job join gpt2 "$text"' | .logical_shards = .world.max | .data.split = "by_rank" | .data.uneven_inputs = "join"'
claim "an mlp with statistics over all ranks, of a graph that stays"
run_job mlp mlp '.model.mlp.batch_norm = "sync" | .reducer.static_graph = true'
mlp=$(last_loss)
run_job mlp-cpu mlp '.model.mlp.batch_norm = "sync" | .reducer.static_graph = true | .world.device = "cpu"'
near "$mlp" "$(last_loss)" 0.001 "mlp"

claim "a running job shows its GPUs, its timeline and a diagnosis"
submit "$(job live gpt2 '.steps.target = 1000000 | .checkpoint.every_steps = 5 | .debug.step_delay_ms = 20
  | .reducer.rebuild_after_steps = 0 | .reducer.bucket_cap_bytes = [1024]')"
wait_for 60 "six steps" step_at_least "$job" 6
in_metrics() { [ "$(get /metrics | grep -c "^gradsync_worker_info{.*\"$job\".*device=\"cuda\",device_uuid=\"GPU-")" = "$gpus" ]; }
wait_for 60 "ranks with a GPU in metrics" in_metrics
# A rank may be too busy to answer in time.
all_answer() { get "/v1/jobs/$job/timeline" >"$run/timeline" && jq -e --argjson gpus "$gpus" '(.ranks | length) == $gpus' "$run/timeline"; }
wait_for 60 "a timeline of all ranks" all_answer
jq -e 'all(.ranks[].steps[].buckets[]; .finished_seconds > 0)' \
  "$run/timeline" >/dev/null || fail "timeline: $(head -c 600 "$run/timeline")"
[ -n "$(get "/v1/jobs/$job/diagnosis" | jq -r .verdict)" ] || fail "no verdict"
claim "it changes its plan when asked to"
request POST "/v1/jobs/$job/replan" '{}'
same "$status" 202 "status of replan: $(cat "$run/body")"
plan_is() { [ "$(get "/v1/jobs/$job/plan" | jq .revision)" = "$1" ]; }
wait_for 60 "the next plan" plan_is 2

claim "kill -9 of a rank costs one restart, and the job goes on"
before=$(job_field "$job" .progress.step)
kill -KILL "$(trainer_pids "$job" | tail -n 1)"
wait_for 60 "a restart" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.restarts == 1'"
wait_for 60 "more steps" step_at_least "$job" $((before + 6))
same "$(job_field "$job" .restarts)" 1 "restarts"

claim "stopped, it leaves a checkpoint behind"
request POST "/v1/jobs/$job/stop" '{}'
same "$status" 202 "status of stop"
await "$job" cancelled 60
same "$(get "/v1/jobs/$job/checkpoints" | jq '[.items[].step] | max')" "$(job_field "$job" .progress.step)" "its step"
