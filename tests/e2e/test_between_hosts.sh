#!/usr/bin/env bash
# One job on two hosts that share no memory: its ranks meet over TCP, find each other's addresses by themselves, and come to
# the bytes that ranks of one host come to. A host that is cut off from the other, but not from the coordinator, ends the
# generation with words that name who is missing.
# Rows N5 and N6 of docs/faults.md.
. "$(dirname "$0")/network.sh"

# Large enough that gradients are cut into slices.
timeout=4  # seconds, of a collective
exact_job() { # NAME STEPS BACKEND [MORE]
  printf '{"name":"%s","exact":true,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[128,512,256,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s},"reducer":{"backend":"%s","timeout_seconds":%s}%s}' "$1" "$2" "$3" "$timeout" "${4-}"
}
events_of() { get "/v1/jobs/$1/events?limit=500" | jq -r '.items[] | "\(.reason): \(.message)"'; }
says() { events_of "$1" | grep -Eq "^$2: .*$3"; } # JOB REASON PATTERN

centre "$run/data"
route_all
host island
agent here 2
ip -n ranks route add default via "10.77.${link_of[here]}.1"
submit "$(exact_job together 30 shm)"
await "$job" succeeded 60
wanted=$(tensors_of "$job")
[ "$wanted" != none ] || fail "no checkpoint of the job on one host"
stop_agent() { kill -TERM "$worker_pid" && wait "$worker_pid" || true; }
stop_agent

agent left 1
ip -n ranks route replace default via "10.77.${link_of[left]}.1"
at=island agent right 1
ip -n island route add default via "10.77.${link_of[right]}.1"

for backend in net auto; do
  claim "a job of two hosts comes to the bytes of one, with $backend"
  submit "$(exact_job "apart-$backend" 30 "$backend")"
  await "$job" succeeded 90
  same "$(tensors_of "$job")" "$wanted" "the state of the job between hosts"
  same "$(get "/v1/jobs/$job/workers" | jq -r '[.items[].worker] | unique | join(" ")')" "left right" "where it ran"
done
claim "auto says what it took"
says "$job" CommunicatorUp "2 ranks reduce over net" || fail "events: $(events_of "$job")"

claim "two hosts that are cut off from each other alone: it is said who was missing, and later the same bytes come out"
submit "$(exact_job cut 100000 net ',"debug":{"step_delay_ms":20}')"
wait_for 60 "its steps" step_at_least "$job" 10
since=$(now_ms)
ip netns exec centre iptables -w -A FORWARD -j DROP
missing() { says "$job" WorkerLost "rank [01] did not (arrive|finish) within" || says "$job" WorkerLost "cannot reach rank 1 at 10.77"; }
wait_for 60 "word of who did not come" missing
between $(($(now_ms) - since)) $((timeout * 800)) $((timeout * 10000)) "word of who did not come"
ip netns exec centre iptables -w -F FORWARD
wait_for 90 "the job again" job_is "$job" running
wait_for 90 "steps behind the cut" step_at_least "$job" $(($(job_field "$job" .progress.step) + 20))
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
step=$(job_field "$job" .progress.step)
cut=$(tensors_of "$job")
[ "$cut" != none ] || fail "no checkpoint of the job that was cut"
submit "$(exact_job whole "$step" net)"
await "$job" succeeded 120
same "$cut" "$(tensors_of "$job")" "the state behind the cut"

claim "N6: two hosts that are cut off from each other alone, of a job that may shrink: it goes on on one of them, and people are told"
submit "$(exact_job alone 100000 net ',"debug":{"step_delay_ms":20},"restart":{"backoff_initial_seconds":0.1}' | sed 's/"min":2/"min":1/')"
wait_for 60 "its steps" step_at_least "$job" 10
same "$(job_field "$job" .world_size)" 2 "its ranks"
since=$(now_ms)
ip netns exec centre iptables -w -A FORWARD -j DROP
is_alone() { [ "$(job_field "$job" '"\(.state) \(.world_size)"')" = "running 1" ]; }
wait_for 120 "one host alone" is_alone
between $(($(now_ms) - since)) 0 $((20 * (timeout * 1000 + $(timing_ms settle)))) "one host alone"
wait_for 60 "its steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + 20))
says "$job" SlotsAvoided "1 free slots, the first on worker (left|right)" || fail "events: $(events_of "$job")"
ip netns exec centre iptables -w -F FORWARD
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60

claim "N5: two halves with ranks of one job in both: the coordinator's goes on alone, the other takes no step and ends, and there is one history"
submit "$(exact_job halves 100000 net ',"debug":{"step_delay_ms":20},"restart":{"backoff_initial_seconds":0.1}' | sed 's/"min":2/"min":1/')"
wait_for 60 "its steps" step_at_least "$job" 10
first=$(job_field "$job" .generation)
same "$(job_field "$job" .world_size)" 2 "its ranks"
far_pid=$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.worker == "right") | .pid')
since=$(now_ms)
cut right both
goes_on_alone() { [ "$(job_field "$job" '"\(.state) \(.world_size)"')" = "running 1" ]; }
wait_for 90 "the near half" goes_on_alone
between $(($(now_ms) - since)) 0 $((10 * (timeout * 1000 + $(timing_ms settle) + $(timing_ms agent_dead)))) "the near half"
wait_for 60 "its steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + 20))
near() { job_field "$job" '"\(.generation) \(.restarts) \(.lost_steps)"'; get "/v1/jobs/$job/workers" | jq -r '.items[] | "\(.worker) \(.pid)"'; }
before=$(near)
[[ $before == "$((first + 1)) 1 0"*left* ]] || fail "who goes on: $before"
heal
far_has_ended() { ! kill -0 "$far_pid" 2>/dev/null; }
wait_for 90 "the end of the far rank" far_has_ended
far_is_free() { get /v1/workers | jq -e '.items[] | select(.id == "right") | .connected and .slots_busy == 0'; }
wait_for 60 "the far worker" far_is_free
wait_for 60 "more steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + 20))
same "$(near)" "$before" "who goes on behind the cut"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
step=$(job_field "$job" .progress.step)
halves=$(tensors_of "$job")
[ "$halves" != none ] || fail "no checkpoint of the halves"
submit "$(exact_job undivided "$step" net)"
await "$job" succeeded 120
same "$halves" "$(tensors_of "$job")" "the state of the halves"

# The same path on both hosts; what lies there on the right one is another file system's, if it is told so.
mkdir -p "$run/root/text" "$run/elsewhere" "$run/mounts"
seq 1 2000 >"$run/root/text/a.txt"
sed 's/^777$/778/' "$run/root/text/a.txt" >"$run/elsewhere/a.txt"
cat >"$run/mounts/gradsync-worker" <<EOF
#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$run/elsewhere" "$run/root/text" && exec "$bin/gradsync-worker" "\$@"' worker "\$@"
EOF
chmod +x "$run/mounts/gradsync-worker"
text_job() {
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":1,"heads":2,"channels":16,"context":16,"vocab":256}},
    "data":{"kind":"bytes","train":"text/*","micro_batch":2},"steps":{"target":3},"reducer":{"backend":"net"}}' "$1"
}
claim "two hosts with the same data train on it"
submit "$(text_job alike)"
await "$job" succeeded 90
claim "two hosts whose data differ in one digit are named before the first step"
stop_agent
right_is_gone() { ! worker_is right connected; }
wait_for 30 "the end of worker right" right_is_gone
bin=$run/mounts at=island agent right 1
submit "$(text_job differ)"
await "$job" failed 90
same "$(job_field "$job" '"\(.reason) \(.progress.step)"')" "DataMismatch 0" "how it ended ($(job_field "$job" .failure.message))"
job_field "$job" .failure.message | grep -q "worker right slot 0: its data files differ from rank 0's" || fail "$(job_field "$job" .failure.message)"
get "/v1/jobs/$job/events?limit=500" | jq -e 'all(.items[]; .reason != "Training")' >/dev/null || fail "it trained"
