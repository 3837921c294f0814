#!/usr/bin/env bash
# One job on two hosts that share no memory: its ranks meet over TCP, find each other's addresses by themselves, and come to
# the bytes that ranks of one host come to. A host that is cut off from the other, but not from the coordinator, ends the
# generation with words that name who is missing.
. "$(dirname "$0")/network.sh"

# Large enough that gradients are cut into slices.
exact_job() { # NAME STEPS BACKEND [MORE]
  printf '{"name":"%s","exact":true,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[128,512,256,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s},"reducer":{"backend":"%s","timeout_seconds":4}%s}' "$1" "$2" "$3" "${4-}"
}
events_of() { get "/v1/jobs/$1/events?limit=500" | jq -r '.items[] | "\(.reason): \(.message)"'; }
says() { events_of "$1" | grep -Eq "^$2: .*$3"; } # JOB REASON PATTERN

# The coordinator's host passes packets between the others, as a router would.
centre "$run/data"
ip netns exec centre sysctl -qw net.ipv4.ip_forward=1 2>/dev/null || ip netns exec centre sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || skip "no forwarding"
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
ip netns exec centre iptables -w -A FORWARD -j DROP
missing() { says "$job" WorkerLost "rank [01] did not (arrive|finish) within" || says "$job" WorkerLost "cannot reach rank 1 at 10.77"; }
wait_for 60 "word of who did not come" missing
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
