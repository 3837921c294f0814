#!/usr/bin/env bash
# A host with all ranks of a job is gone, by connections that were closed. Where a network has closed them and is cut, its ranks
# train on and nobody takes their place; where they were killed, others go on soon. What tells is the disk that they share.
. "$(dirname "$0")/network.sh"

exact_job() { # NAME STEPS DELAY_MS
  mlp_job "$1" "$2" 2 ",\"exact\":true,\"debug\":{\"step_delay_ms\":$3},\"checkpoint\":{\"every_steps\":100000}"
}
finds_step() { # MORE
  local step
  step=$(job_field "$job" .progress.step)
  wait_for 60 "more steps" step_at_least "$job" $((step + $1))
}
shows() { [ "$(job_field "$job" .reason)" = "$1" ]; }
lives() { for pid in $pids_before; do kill -0 "$pid" 2>/dev/null || return 1; done; }
# What the coordinator sends is answered with a reset, as by a firewall that has been loaded anew; and so is, then, what it gets.
reset() { # AGENT
  local n=${link_of[$1]}
  ip netns exec "${host_of[$1]}" iptables -w -A INPUT -i "r$n" -p tcp --tcp-flags RST RST -j ACCEPT
  ip netns exec "${host_of[$1]}" iptables -w -A INPUT -i "r$n" -p tcp -j REJECT --reject-with tcp-reset
}
is_there() { get /v1/workers | jq -e '.items[] | select(.id == "far") | .connected' >/dev/null; }

centre "$run/data"
host island
# A machine of its own name: another worker of the same host would be asked, and it is well.
mkdir "$run/bin"
# shellcheck disable=SC2016  # expanded there
printf '#!/bin/sh\nexec unshare --uts sh -c '"'"'hostname island && exec "$0" "$@"'"'"' %s "$@"\n' "$bin/gradsync-worker" >"$run/bin/gradsync-worker"
chmod +x "$run/bin/gradsync-worker"
at=island bin=$run/bin agent far 2
submit "$(exact_job lost 100000 20)"
wait_for 60 "its steps" step_at_least "$job" 10
directory=$(dirname "$(find "$run" -path "*/$job/FENCE.json" | head -n 1)")
[ -n "$directory" ] || fail "no fence"
agent spare 2
pids_before=$(trainer_pids "$job" | sort | tr '\n' ' ')

claim "all connections are reset, and then nothing passes: the ranks say on the disk that they live, and nobody takes their place"
reset far
missed() { ! is_there && get "/v1/jobs/$job/workers" | jq -e '[.items[] | select(.state == "disconnected")] | length == 2'; }
wait_for 60 "word that it is missed" missed
cut far both
wait_for 60 "the reason" shows RanksCutOff
grep -q 'worker far on .* is gone' "$run/logs/centre.log" || fail "the connections were not closed"
sleep 12
same "$(job_field "$job" '"\(.state) \(.reason) \(.generation) \(.restarts)"')" "recovering RanksCutOff 1 0" "the job"
lives || fail "a rank has ended"

claim "the disk is away from them, too: they take no step until one of both is back"
mv "$directory" "$directory.away"
stand_still() { for pid in $pids_before; do grep -q '^State:.T' "/proc/$pid/status" || return 1; done; }
wait_for 60 "ranks that stand still" stand_still
same "$(job_field "$job" '"\(.state) \(.generation)"')" "recovering 1" "the job"
mv "$directory.away" "$directory"
go_on() { ! stand_still; }
wait_for 60 "ranks that go on" go_on
heal
wait_for 60 "the worker" is_there
wait_for 60 "the job" job_is "$job" running
finds_step 10
same "$(trainer_pids "$job" | sort | tr '\n' ' ')$(job_field "$job" '"\(.generation) \(.restarts)"')" "${pids_before}1 0" "who trains"

claim "all processes of the host are killed, and none is started again: others go on, long before ranks alone would stop"
since=$(now_ms)
signal_host KILL island
taken_over() { [ "$(job_field "$job" .generation)" -gt 1 ] && job_is "$job" running; }
wait_for 120 "another set" taken_over
# Six quiet looks, a second apart, and three silences of a worker behind the fence.
apart_ms=$((6000 + 3 * $(timing_ms agent_dead)))
between $(($(now_ms) - since)) "$apart_ms" $((10 * apart_ms)) "another set: no sooner than nobody of the first takes a step"
get "/v1/jobs/$job/events?limit=500" | jq -e 'any(.items[]; .reason == "RanksGivenUp")' >/dev/null || fail "no event says why"
finds_step 10
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
