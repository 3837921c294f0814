#!/usr/bin/env bash
# A sharded job, of which no rank has the whole state: the bits of one that is not, what kill -9 costs it, another number
# of ranks, and what it cannot do.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
GRADSYNC_COMMON_PARAMS=1 start_worker agent 2
GRADSYNC_COMMON_PARAMS=1 start_worker crowd 8
crowd=$worker_pid
quick_restart=',"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
job_of() { # NAME SHARDING RANKS [MORE]
  printf '{"name":"%s","logical_shards":6,"world":{"min":2,"max":%s,"join_window_seconds":10,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[20,33,5]}},
    "data":{"micro_batch":2},"optimizer":{"kind":"adamw","lr":0.003,"grad_clip_norm":0.1},"reducer":{"sharding":"%s"},
    "checkpoint":{"every_steps":10},"steps":{"target":40}%s}' "$1" "$3" "$2" "${4-}"
}
manifest_of() { find "$run" -path "*$1*step-0000000040-*" -name MANIFEST.json; } # JOB: of its last checkpoint
of_16_bits() { job_of "$1" "$2" 2 | jq -c '.model.precision="bf16"'; }
frozen() { job_of "$1" "$2" 2 "$3" | jq -c '.model.freeze=[{"params":"fc1.*","until_step":12},{"params":"bn1.weight","from_step":8,"until_step":25}]'; }
params_of() { jq -r .params_digest "$(manifest_of "$1")"; }

claim "sharded and unsharded jobs end with the same parameters, and a sharded one's parts are what ranks own"
submit "$(job_of whole none 2)"; whole=$job
# What follows is asked for later, and trains meanwhile.
submit "$(of_16_bits halves none)"; halves=$job
submit "$(of_16_bits masters optimizer)"; masters=$job
submit "$(job_of overlap 'optimizer","zero_split_buckets":true,"zero_overlap":"interleaved' 2)"; overlap=$job
submit "$(frozen rests none '')"; rests=$job
submit "$(job_of parts optimizer 2)"
await "$job" succeeded 60
await "$whole" succeeded 60
undisturbed=$(params_of "$whole")
same "$(params_of "$job")" "$undisturbed" "parameters"
same "$(job_field "$job" '.spec | "\(.checkpoint.parts) \(.reducer.rebuild_after_steps)"')" "ranks 0" "what follows from sharding"
jq -e '(.parts | length == 2) and ([.tensors[] | select(.name | startswith("optimizer.exp_avg.")) | .ranges | length] | max == 2)' \
  "$(manifest_of "$job")" >/dev/null || fail "manifest: $(head -c 900 "$(manifest_of "$job")")"

claim "ranks of a host have their parameters in one memory, and say so"
have_one_memory() { [ "$(get "/v1/jobs/$1/logs?rank=all" | grep -c 'ranks have parameters in one memory')" = 2 ]; }
wait_for 20 "lines of two ranks" have_one_memory "$job"

claim "exported, both are the same file: names, shapes, places, and every byte"
table_of() { tail -c +9 "$1" | head -c "$(od -An -t u8 -N 8 "$1" | tr -d ' ')" | jq -S 'del(.__metadata__)'; }
data_of() { tail -c +$(($(od -An -t u8 -N 8 "$1") + 9)) "$1" | sha256sum; }
same_export() { # JOB JOB
  for name in "$@"; do
    "$bin/gradsync" --server "$server" checkpoints export "$name" "$run/$name.safetensors" >/dev/null || fail "export of $name"
  done
  same "$(table_of "$run/$1.safetensors")" "$(table_of "$run/$2.safetensors")" "tensors"
  same "$(data_of "$run/$1.safetensors")" "$(data_of "$run/$2.safetensors")" "data"
}
same_export "$job" "$whole"

claim "of 16 bits no rank has all masters, and an export does"
await "$halves" succeeded 60
await "$masters" succeeded 60
jq -e '[.tensors[] | select(.name == "fc1.weight") | .ranges | length] == [2]' "$(manifest_of "$masters")" >/dev/null ||
  fail "manifest: $(head -c 900 "$(manifest_of "$masters")")"
same_export "$masters" "$halves"

claim "zero_overlap, which waits where gradients are clipped: the same parameters, and the plan says whose they are"
await "$overlap" succeeded 60
same "$(params_of "$overlap")" "$undisturbed" "parameters of dealt buckets"
get "/v1/jobs/$overlap/plan" | jq -e '[.buckets[].tensors[].owner] | unique == [0, 1]' >/dev/null ||
  fail "owners: $(get "/v1/jobs/$overlap/plan" | head -c 600)"

claim "parameters that are frozen for some steps: what cannot be is refused by name"
await "$rests" succeeded 60
rested=$(params_of "$rests")
[ "$rested" != "$undisturbed" ] || fail "nothing was frozen"
request POST /v1/jobs "$(job_of none none 2 | jq -c '.model.freeze=[{"params":"fc7.*"}]')"
same "$status $(body '.errors[0].pointer')" "422 /model/freeze/0/params" "the answer to a name that nobody has"

claim "kill -9 of a rank: all go back to the last checkpoint, the job says what that cost, and ends with the same parameters, frozen ones too"
kill -TERM "$crowd"
wait "$crowd" || fail "how the other worker ended"
submit "$(frozen rests-in-parts optimizer "$quick_restart,\"debug\":{\"step_delay_ms\":250}" | jq -c '.checkpoint.every_steps=20')"
same "$(job_field "$job" '.spec.model.freeze[0] | "\(.params) \(.from_step) \(.until_step)"')" "fc1.* 0 12" "the rule"
wait_for 60 "step 21" step_at_least "$job" 21
kill -9 "$(trainer_pids "$job" | tail -n 1)"
await "$job" succeeded 60
lost=$(job_field "$job" .lost_steps)
[ "$lost" -ge 1 ] || fail "lost_steps: $lost"
get "/v1/jobs/$job/events?limit=200" | jq -e --arg lost "$lost steps are taken again" \
  'any(.items[]; .reason == "StepsLost" and (.message | test($lost)) and (.message | test("goes on from step 20")))' >/dev/null ||
  fail "no event says what it cost: $(get "/v1/jobs/$job/events?limit=200")"
get "/v1/jobs/$job/events?limit=200" | jq -e 'any(.items[]; .reason == "Settled" and (.message | test("saves"))) | not' >/dev/null ||
  fail "a rank was asked to save what it does not hold"
same "$(params_of "$job")" "$rested" "parameters that were frozen, after a kill"

claim "a worker that leaves: the ranks save what they own, and two go on from there, without a step lost"
start_worker leaver 1
submit "$(job_of leaves gradients 3 "$quick_restart,\"debug\":{\"step_delay_ms\":200}")"
wait_for 60 "step 5 of three ranks" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.world_size == 3 and .progress.step >= 5'"
request POST "/v1/jobs/$job/replan"
same "$status" 409 "replan: $(head -c 300 "$run/body")"
grep -q 'is sharded' "$run/body" || fail "not the reason: $(cat "$run/body")"
kill -TERM "$worker_pid"
await "$job" succeeded 60
same "$(job_field "$job" '"\(.world_size) \(.lost_steps)"')" "2 0" "ranks, lost steps"
jq -e '.world_size == 2' "$(manifest_of "$job")" >/dev/null || fail "its last checkpoint is not of two ranks"

claim "dealt among fewer ranks, the same buckets have other owners, and the plan says so"
owners_of() { get "/v1/jobs/$1/plan" | jq -c '[.buckets[].tensors[].owner] | unique'; }
start_worker second 1
submit "$(job_of dealt 'optimizer","first_bucket_bytes":64,"bucket_cap_bytes":64,"zero_overlap":"step' 3 "$quick_restart,\"debug\":{\"step_delay_ms\":200}")"
wait_for 60 "step 5 of three ranks" sh -c "curl -fsS $server/v1/jobs/$job | jq -e '.world_size == 3 and .progress.step >= 5'"
same "$(owners_of "$job")" "[0,1,2]" "owners among three"
kill -TERM "$worker_pid"
await "$job" succeeded 60
same "$(owners_of "$job")" "[0,1]" "owners among two"
