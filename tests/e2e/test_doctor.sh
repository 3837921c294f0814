#!/usr/bin/env bash
# `gradsync doctor` and `gradsync bench allreduce` on three hosts that share no memory: what is in the way is named by worker and
# reason, in words and as JSON, with an exit code; what links give is measured, and not while jobs use them unless it is forced.
. "$(dirname "$0")/network.sh"

centre "$run/data"
route_all
has_left() { ! worker_is c; }
leave() { kill -TERM "$worker_pid" && wait "$worker_pid" || true; wait_for 30 "the end of worker c" has_left; }
# doctor CODE: its answer in $run/doctor.json. A worker whose machine is busy with other tests answers too late at times.
doctor() {
  local code
  for _ in $(seq 10); do
    code=0
    gradsync doctor -o json >"$run/doctor.json" || code=$?
    [ "$code" -ne "$1" ] || break
  done
  same "$code" "$1" "exit code of doctor ($(jq -c .findings "$run/doctor.json"))"
}
# finds SEVERITY KIND WORKER PATTERN
finds() {
  for _ in $(seq 10); do
    ! jq -e --arg severity "$1" --arg kind "$2" --arg worker "$3" --arg pattern "$4" \
      'any(.findings[]; .severity == $severity and .kind == $kind and .worker == $worker and (.detail | test($pattern)))' "$run/doctor.json" >/dev/null ||
      return 0
    gradsync doctor -o json >"$run/doctor.json" || true
  done
  fail "not found: $1 $2 of $3, $4: $(jq -c .findings "$run/doctor.json")"
}

claim "nobody is there"
doctor 1
jq -e '.findings[0].kind == "workers" and (.healthy | not)' "$run/doctor.json" >/dev/null || fail "$(cat "$run/doctor.json")"

unset OPENBLAS_CORETYPE
join a
OPENBLAS_CORETYPE=Haswell join b
join c
claim "three hosts, and nothing is in the way"
doctor 0
jq -e '.healthy and (.links | length == 6) and all(.links[]; .reachable and .round_trip_seconds > 0)' "$run/doctor.json" >/dev/null ||
  fail "$(jq -c '{healthy, links}' "$run/doctor.json")"
same "$(jq -r '[.hosts[] | "\(.worker) \(.data_address) \(.checkpoints.state) \(.checkpoints.writable)"] | join(", ")' "$run/doctor.json")" \
  "a $(address_of a) same true, b $(address_of b) same true, c $(address_of c) same true" "what hosts say"
jq -e 'all(.hosts[]; .clock_offset_seconds < 60 and .limits.descriptors > 0 and .build and .memory.network_namespace)' "$run/doctor.json" >/dev/null || fail "$(cat "$run/doctor.json")"
finds warning environment b OPENBLAS_CORETYPE=Haswell
claim "they are on one machine, and cannot share memory"
finds info shared_memory a "share no memory"
gradsync doctor >"$run/table"
grep -q "^a .*$(address_of a).*same" "$run/table" || fail "the table: $(cat "$run/table")"
grep -q "OPENBLAS_CORETYPE=Haswell" "$run/table" || fail "the table: $(cat "$run/table")"

claim "a firewall in one direction"
ip netns exec centre iptables -w -A FORWARD -p tcp --syn -s "$(address_of b)" -d "$(address_of c)" -j DROP
doctor 1
finds error link b "^$(address_of b) cannot reach $(address_of c):[0-9]+: no answer in time; a firewall, or no route\? .the other way it does.\$"
finds_one_error() { gradsync doctor -o json >"$run/doctor.json" || true; [ "$(jq '[.findings[] | select(.severity == "error")] | length' "$run/doctor.json")" = 1 ]; }
wait_for 60 "one error alone" finds_one_error
claim "connections are refused"
ip netns exec centre iptables -w -F FORWARD
ip netns exec centre iptables -w -A FORWARD -p tcp -s "$(address_of b)" -d "$(address_of a)" -j REJECT --reject-with tcp-reset
doctor 1
finds error link b "cannot reach $(address_of a):[0-9]+: Connection refused"
ip netns exec centre iptables -w -F FORWARD

claim "only some of them"
code=0
gradsync doctor --hosts a,c -o json >"$run/doctor.json" || code=$?
same "$code $(jq -r '[.hosts[].worker] | join(" ")' "$run/doctor.json")" "0 a c" "hosts"
request POST "/v1/workers/examination?workers=a,nobody"
same "$status" 404 "status of an unknown worker"

claim "what links give"
measures() { gradsync bench allreduce -o json >"$run/bench.json" && jq -e '(.links | length == 6) and all(.links[]; .bytes_per_second > 0)' "$run/bench.json"; }
wait_for 60 "all links" measures
jq -e '(.links | length == 6) and all(.links[]; .bytes_per_second > 0 and (.sizes | length == 4) and all(.sizes[]; .seconds > 0))' "$run/bench.json" >/dev/null ||
  fail "$(jq -c .links "$run/bench.json")"
gradsync bench allreduce >"$run/table"
grep -q "an all-reduce of 25 MiB among them takes .* ms at least" "$run/table" || fail "$(cat "$run/table")"
claim "what an all-reduce of all takes, and that it is right"
adds_up() {
  gradsync bench allreduce -o json >"$run/bench.json" &&
    jq -e '.sums | .workers == ["a", "b", "c"] and .backend == "net" and (.error | not) and (.sizes | length >= 4) and
      all(.sizes[]; .num_wrong == 0 and .seconds > 0 and .bytes_per_second > 0 and .bus_bytes_per_second > .bytes_per_second)' "$run/bench.json" >/dev/null
}
wait_for 60 "sums of all" adds_up
gradsync bench allreduce >"$run/table"
grep -q "^all-reduces of fp32 among a, b, c, one rank each, by net$" "$run/table" || fail "$(cat "$run/table")"
grep -Eq "^1048576 .* MB/s .* MB/s +0 *$" "$run/table" || fail "$(cat "$run/table")"
claim "not while a job uses them, unless it is forced"
submit "$(mlp_job training 100000 3 ',"reducer":{"backend":"net"}')"
wait_for 60 "its steps" step_at_least "$job" 10
code=0
gradsync bench allreduce >"$run/out" 2>"$run/err" || code=$?
same "$code" 4 "exit code ($(cat "$run/err"))"
grep -q "$job uses the network" "$run/err" || fail "$(cat "$run/err")"
measures_anyway() { gradsync bench allreduce --force -o json >"$run/bench.json" && jq -e 'all(.links[]; .bytes_per_second > 0)' "$run/bench.json"; }
wait_for 60 "what is measured beside a job" measures_anyway
doctor 0
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60

claim "a worker with checkpoints of its own, and an address that only its host reaches"
leave
mkdir "$run/own"
join c --checkpoints "$run/own" --data-address 127.0.0.1
doctor 1
finds warning checkpoints c "$run/own is not the coordinator's checkpoint directory"
finds error link a "cannot reach 127.0.0.1"
leave
claim "a copy of the checkpoints, from before the coordinator started again"
cp "$run"/data/checkpoints/PLACE-*.json "$run/own"
kill -TERM "$coordinator_pid" && wait "$coordinator_pid" || true
centre "$run/data"
join c --checkpoints "$run/own"
wait_for 30 "worker a" worker_is a
wait_for 30 "worker b" worker_is b
doctor 0
finds warning checkpoints c "but a copy of it"
jq -e 'any(.hosts[]; .worker == "a" and .checkpoints.state == "same")' "$run/doctor.json" >/dev/null || fail "$(cat "$run/doctor.json")"
