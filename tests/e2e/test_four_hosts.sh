#!/usr/bin/env bash
# Real jobs on four hosts that share no memory, each a network namespace of its own: the bytes of one host, exactly and with
# communication hooks and a sharded optimizer; one host that the others don't hear for a while; one that dies with its worker, and
# the job goes on with the others.
#   GRADSYNC_RUNS=all    every hook, and sharding of each kind; else three of these
. "$(dirname "$0")/network.sh"

# One plan from the first step on: some hooks round by their place in a bucket, and when plans change depends on the time.
window_seconds=10
job_of() { # NAME STEPS BACKEND [MORE_OF_THE_REDUCER [MORE]]
  printf '{"name":"%s","world":{"min":4,"max":4,"join_window_seconds":'"$window_seconds"',"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[64,256,128,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"optimizer":{"kind":"adamw"},"steps":{"target":%s},"reducer":{"backend":"%s","timeout_seconds":10,"rebuild_after_steps":0%s}%s}' \
    "$1" "$2" "$3" "${4-}" "${5-}"
}
centre "$run/data"
route_all

kinds=(exact powersgd optimizer)
[ "${GRADSYNC_RUNS:-}" != all ] || kinds+=(fp16 topk bf16 batched_powersgd int8 int8_channel uint8_gather onebit gradients)
# kind_of NAME: sets reducer and more.
kind_of() {
  reducer= more=
  case $1 in
    exact) more=',"exact":true' ;;
    *powersgd) reducer=',"hook":{"kind":"'$1'","rank":2,"start_step":5}' ;;
    onebit) reducer=',"hook":{"kind":"onebit","start_step":5}' ;;
    optimizer | gradients) reducer=',"sharding":"'$1'"' more=',"checkpoint":{"parts":"ranks"}' ;;
    *) reducer=',"hook":{"kind":"'$1'"}' ;;
  esac
}

claim "what four ranks of one host come to"
agent here 4
declare -A wanted
for kind in "${kinds[@]}"; do
  kind_of "$kind"
  submit "$(job_of "one-${kind//_/-}" 20 shm "$reducer" "$more")"
  await "$job" succeeded 90
  wanted[$kind]=$(get "/v1/jobs/$job/checkpoints" | jq -er '.items[0].digest')
done
kill -TERM "$worker_pid" && wait "$worker_pid" || true

for name in a b c d; do join "$name"; done
for kind in "${kinds[@]}"; do
  claim "four hosts come to the same with $kind"
  kind_of "$kind"
  submit "$(job_of "four-${kind//_/-}" 20 net "$reducer" "$more")"
  await "$job" succeeded 90
  same "$(get "/v1/jobs/$job/workers" | jq -r '[.items[].worker] | sort | join(" ")')" "a b c d" "where it ran"
  same "$(get "/v1/jobs/$job/checkpoints" | jq -er '.items[0].digest')" "${wanted[$kind]}" "the state of four hosts with $kind"
done

claim "a host that the others do not hear for a while: its job waits, and comes to the bytes of one that was not cut"
kind_of exact
submit "$(job_of whole 100 net "" "$more")"
await "$job" succeeded 90
whole=$(get "/v1/jobs/$job/checkpoints" | jq -er '.items[0].digest')
submit "$(job_of cut 100 net "" "$more"',"debug":{"step_delay_ms":70}')"
wait_for 60 "its steps" step_at_least "$job" 10
for name in a b d; do ip netns exec centre iptables -w -A FORWARD -s "10.77.${link_of[c]}.2" -d "10.77.${link_of[$name]}.2" -j DROP; done
stands() { local step; step=$(job_field "$job" .progress.step) && sleep 1 && [ "$(job_field "$job" .progress.step)" = "$step" ]; }
wait_for 60 "steps that are not taken any more" stands
ip netns exec centre iptables -w -F FORWARD
await "$job" succeeded 120
same "$(get "/v1/jobs/$job/checkpoints" | jq -er '.items[0].digest')" "$whole" "the state behind the cut"

claim "a host dies with its worker: the others go on without it, from the step where they stood"
submit "$(job_of lost 400 net "" ',"debug":{"step_delay_ms":20}' | sed 's/"min":4/"min":3/')"
wait_for 60 "its steps" step_at_least "$job" 20
same "$(job_field "$job" .world_size)" 4 "its ranks"
since=$(now_ms)
signal_host KILL on-d
taken_over() { [ "$(job_field "$job" '"\(.state) \(.world_size)"')" = "running 3" ]; }
wait_for 90 "three ranks" taken_over
# Its worker is missed, and those who are left settle and save; for who else may come a job that has trained does not wait.
between $(($(now_ms) - since)) 0 $((5 * ($(timing_ms agent_dead) + $(timing_ms settle)))) "three ranks"
same "$(get "/v1/jobs/$job/workers" | jq -r '[.items[].worker] | sort | join(" ")')" "a b c" "where it runs"
await "$job" succeeded 120
same "$(job_field "$job" '.lost_steps // 0')" 0 "steps that were lost"
