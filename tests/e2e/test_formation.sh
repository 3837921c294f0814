#!/usr/bin/env bash
# What keeps ranks of several hosts from meeting, and that the job's failure says which two cannot talk and why: packets that are
# dropped in one direction, connections that are refused, an interface that others don't reach, an address that is not the
# host's, loopback, another version of what ranks say to each other. The third host, which all reach, is never blamed.
. "$(dirname "$0")/network.sh"
command -v python3 >/dev/null || skip "no python3"

centre "$run/data"
route_all
has_left() { ! worker_is c connected | grep -q true; }
leave() { kill -TERM "$worker_pid" && wait "$worker_pid" || true; wait_for 30 "the end of worker c" has_left; }
between() { ip netns exec centre iptables -w -A FORWARD -s "$(address_of "$1")" -d "$(address_of "$2")" "${@:3}"; }
open_all() { ip netns exec centre iptables -w -F FORWARD; }
rank_of() { get "/v1/jobs/$job/workers" | jq -r --arg worker "$1" '.items[] | select(.worker == $worker) | .rank'; }

# fails NAME PATTERN: the job's failure, and an event with the moment it was found; sets words.
fails() {
  submit "$(mlp_job "$1" 20 3 ',"restart":{"max_restarts":0},"reducer":{"backend":"net","timeout_seconds":12}')"
  await "$job" failed 90
  words=$(job_field "$job" .failure.message)
  grep -Eq "$2" <<<"$words" || fail "not said is '$2', but: $words"
  get "/v1/jobs/$job/events?limit=500" | jq -e --arg words "$words" 'any(.items[]; .message | contains($words))' >/dev/null || fail "no event says: $words"
}
works() {
  submit "$(mlp_job "$1" 20 3 ',"reducer":{"backend":"net","timeout_seconds":60}')"
  await "$job" succeeded 90
}

join a
join b
join c
place="[0-9.]*:[0-9]+"
claim "three hosts meet"
works whole
# Who connects of two is the lower rank.
[ "$(rank_of b)" -lt "$(rank_of c)" ] && set -- b c || set -- c b
pair="$(address_of "$1"):[0-9]+ cannot reach rank $(rank_of "$2") at $(address_of "$2"):[0-9]+"

claim "packets from one host to one other are dropped"
between "$1" "$2" -j DROP
fails dropped "$pair: no answer in time; a firewall, or no route\?"
open_all
claim "answers are dropped, on their way back"
between "$2" "$1" -j DROP
fails answers "$pair: no answer in time; a firewall, or no route\?"
open_all
claim "connections are refused in between"
between "$1" "$2" -p tcp -j REJECT --reject-with tcp-reset
fails refused "$pair: Connection refused"
open_all

claim "an interface that others have no route to"
leave
ip -n on-c addr add 10.99.0.1/24 dev lo
join c --data-address 10.99.0.1
fails interface "($place cannot reach rank [0-9] at 10.99.0.1:[0-9]+|10.99.0.1:[0-9]+ cannot reach rank [0-9] at $place): "
leave
claim "an address that the host does not have"
join c --data-address 10.98.0.1
fails address "listening for ranks at data address 10.98.0.1: Cannot assign requested address"
leave
claim "an address that only the host itself reaches"
join c --data-address 127.0.0.1
fails loopback "rank [0-9] listens at 127.0.0.1:[0-9]+, which only its own host reaches"
leave

claim "another version of what ranks say to each other"
mkdir "$run/other"
python3 - "$bin/gradsync-worker" "$run/other/gradsync-worker" "$(dirname "$0")/../../gradsync/comm/net/greeting.h" <<'PY'
import os, re, sys
version = int(re.search(r"GS_NET_VERSION UINT64_C\((\w+)\)", open(sys.argv[3]).read())[1], 16)
own, other = (number.to_bytes(8, "little") for number in (version, version + 1))
program = open(sys.argv[1], "rb").read()
assert own in program, "the version stands nowhere in the program"
open(sys.argv[2], "wb").write(program.replace(own, other))
os.chmod(sys.argv[2], 0o755)
PY
bin=$run/other join c
fails version "rank [0-9] speaks another version of the protocol between ranks"
leave

claim "when nothing is in the way any more they meet"
join c
works again
