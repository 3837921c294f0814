#!/usr/bin/env bash
# One job on two hosts with two ranks each: it finds by itself that ranks share memory inside a host and only there, says so,
# comes to the bytes of one host where it is exact, and lives through the death of a rank that speaks for its host.
. "$(dirname "$0")/network.sh"

# Large enough that gradients are cut into chunks and slices.
job_of() { # NAME EXACT STEPS [MORE]
  printf '{"name":"%s","exact":%s,"world":{"min":4,"max":4,"threads_per_rank":1,"device":"cpu"},"logical_shards":4,"model":{"kind":"mlp","mlp":{"dims":[128,512,256,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s},"reducer":{"timeout_seconds":20}%s}' "$1" "$2" "$3" "${4-}"
}
events_of() { get "/v1/jobs/$1/events?limit=500" | jq -r '.items[] | "\(.reason): \(.message)"'; }
says() { events_of "$1" | grep -Eq "^$2: .*$3"; } # JOB REASON PATTERN

centre "$run/data"
route_all
host island
agent here 4
submit "$(job_of together true 20)"
await "$job" succeeded 90
wanted=$(tensors_of "$job")
[ "$wanted" != none ] || fail "no checkpoint of the job on one host"
kill -TERM "$worker_pid" && wait "$worker_pid" || true

agent left 2
ip -n ranks route replace default via "10.77.${link_of[left]}.1"
at=island agent right 2
ip -n island route add default via "10.77.${link_of[right]}.1"

claim "an exact job on two levels comes to the bytes of one host"
submit "$(job_of apart true 20)"
await "$job" succeeded 120
same "$(tensors_of "$job")" "$wanted" "the state of the job on two levels"
same "$(get "/v1/jobs/$job/workers" | jq -r '[.items[].worker] | sort | join(" ")')" "left left right right" "where it ran"
says "$job" CommunicatorUp "4 ranks reduce over hosts" || fail "events: $(events_of "$job")"

claim "the rank that speaks for a host is killed: the job goes on, on two levels again"
submit "$(job_of killed false 400 ',"debug":{"step_delay_ms":20}')"
wait_for 90 "its steps" step_at_least "$job" 10
pid_of() { get "/v1/jobs/$1/workers" | jq -r ".items[] | select(.rank == $2) | .pid"; }
same "$(job_field "$job" '.communicator | "\(.backend) \(.reason | startswith("2 hosts of 2 and 2 ranks"))"')" "hosts true" "what it reduces over"
kill -KILL "$(pid_of "$job" 0)"
again() { [ "$(events_of "$1" | grep -c "^CommunicatorUp: 4 ranks reduce over hosts")" -ge 2 ]; }
wait_for 90 "another communicator" again "$job"
await "$job" succeeded 180
