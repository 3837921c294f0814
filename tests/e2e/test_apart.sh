#!/usr/bin/env bash
# Workers without a shared volume: one sees the coordinator's checkpoints, the other has a directory of its own. The job says so when
# it starts, saves where it is seen, and after a kill the rank that has no checkpoint gets its state from the other; where nobody
# sees it, the job says so instead of starting again from nothing.
. "$(dirname "$0")/network.sh"

centre "$run/data"
ip netns exec centre sysctl -qw net.ipv4.ip_forward=1 2>/dev/null || ip netns exec centre sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || skip "no forwarding"
join() { # NAME [FLAG…]: a worker on a host of its own, which has a route to the others
  local name=$1
  shift
  [ -n "${link_of[$name]:-}" ] || host "on-$name"
  at=on-$name agent "$name" 1 "$@"
  ip -n "on-$name" route replace default via "10.77.${link_of[$name]}.1"
}
sees() { gradsync doctor -o json | jq -e --arg worker "$1" --arg state "$2" 'any(.hosts[]; .worker == $worker and .checkpoints.state == $state)'; }
says() { get "/v1/jobs/$job/events?limit=500" | jq -e --arg reason "$1" --arg text "$2" 'any(.items[]; .reason == $reason and (.message | contains($text)))' >/dev/null; }
digest_of() { get "/v1/jobs/$job/checkpoints" | jq -er '.items[0] | select(.step == 150 and .verified).digest'; }
job_of() { # NAME STEP_DELAY_MS
  printf '{"name":"%s","exact":true,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":4},
    "optimizer":{"kind":"adamw"},"checkpoint":{"every_steps":25},"debug":{"step_delay_ms":%s},"steps":{"target":150}}' "$1" "$2"
}

# By name the one without them would be rank 0.
mkdir "$run/own"
join away --checkpoints "$run/own"
away_pid=$worker_pid
join seen
seen_pid=$worker_pid
wait_for 30 "what workers see" sees away missing
wait_for 30 "what workers see" sees seen same

claim "rank 0 is where checkpoints are seen, and the job says who does not see them"
submit "$(job_of whole 0)"
await "$job" succeeded 90
same "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.rank == 0).worker')" seen "the worker of rank 0"
says CheckpointsNotShared "worker away on" || fail "events: $(get "/v1/jobs/$job/events?limit=500" | jq -c '[.items[] | {reason, message}]')"
wait_for 60 "its checkpoint" digest_of
wanted=$(digest_of)

claim "a rank that is killed where no checkpoint is comes back with the state of the other"
submit "$(job_of killed 70)"
wait_for 60 "its steps" step_at_least "$job" 30
kill -KILL "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.worker == "away").pid')"
restarted() { [ "$(job_field "$job" .restarts)" = 1 ]; }
wait_for 60 "the restart" restarted
await "$job" succeeded 90
wait_for 60 "its checkpoint" digest_of
same "$(digest_of)" "$wanted" "the state behind the kill"
same "$(job_field "$job" '"\(.restarts) \(.lost_steps // 0)"')" "1 0" "restarts, and steps that were lost"

claim "where nobody sees the checkpoint that there is, the job says so"
submit "$(job_of moved 100 | sed 's/"target":150/"target":100000/')"
has_checkpoint() { get "/v1/jobs/$job/checkpoints" | jq -e '.items | length > 0 and .[0].verified'; }
wait_for 60 "a checkpoint" has_checkpoint
kill -KILL "$seen_pid"
gone() { ! worker_is seen; }
wait_for 60 "the end of worker seen" gone
mkdir "$run/another"
at=on-seen join other --checkpoints "$run/another"
wait_for 30 "what workers see" sees other missing
await "$job" failed 120
same "$(job_field "$job" .reason)" CheckpointElsewhere "reason ($(job_field "$job" .message))"
job_field "$job" .failure.message | grep -q "no worker of this set sees the checkpoint of step" || fail "$(job_field "$job" .failure.message)"
