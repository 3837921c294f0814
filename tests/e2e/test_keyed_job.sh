#!/usr/bin/env bash
# Keys while a job trains: enrolment, rotation, revocation, an API of its own, and a cluster that is given keys.
# Row M1 of docs/faults.md, of trainers.
. "$(dirname "$0")/lib.sh"
unset GRADSYNC_KEY GRADSYNC_ENROL
data=$run/data
cli() { GRADSYNC_DATA_DIR=$data "$bin/gradsync" "$@"; }
begin_worker() { # NAME [FLAG…]: without waiting for it; sets worker_pid
  local name=$1
  shift
  "$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --slots 1 "$@" >>"$run/logs/$name.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
}
says() { grep -q "$2" "$run/logs/$1.log"; }
generation() { job_field "$job" .generation; }
steps_on() { local at; at=$(job_field "$job" .progress.step); wait_for 60 "steps behind $at" step_at_least "$job" $((at + ${1:-20})); }
long_job() { mlp_job "$1" 100000000 "$2" ',"debug":{"step_delay_ms":5},"restart":{"max_restarts":20,"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'; }

claim "two workers enrol, each with a token that counts once"
start_coordinator keyed "$data" --require-key --control "tcp://127.0.0.1:$(draw_port)"
cli worker token --out "$run/one.token" 2>/dev/null
cli worker token two --out "$run/two.token" 2>/dev/null
begin_worker one --name one --key "$run/one.key" --enrol "$run/one.token"
one_pid=$worker_pid
wait_for 30 "one" worker_is one connected
begin_worker two --key "$run/two.key" --enrol "$run/two.token"
two_pid=$worker_pid
wait_for 30 "two" worker_is two connected
same "$(stat -c %a "$run/one.key")" 600 "mode of the key"
same "$(cli worker keys -o json | jq -r '[.items[] | select(.role == "worker" and .state == "valid") | .name] | sort | join(" ")')" "one two" "keys"
code=0
timeout 90 "$bin/gradsync-worker" --coordinator "$control" --name three --key "$run/three.key" --enrol "$run/one.token" >"$run/logs/three.log" 2>&1 || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] && [ ! -e "$run/three.key" ] || fail "a used token enrols again ($code)"
says three "has been used, has expired or was revoked" || fail "not said why: $(tail -n 1 "$run/logs/three.log")"
cli worker token --out "$run/thief.token" 2>/dev/null
code=0
timeout 90 "$bin/gradsync-worker" --coordinator "$control" --name two --key "$run/thief.key" --enrol "$run/thief.token" >"$run/logs/thief.log" 2>&1 || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] && [ ! -e "$run/thief.key" ] || fail "a token without a name takes the place of two ($code)"

claim "a worker that ended before its key had its name has not lost it"
kill "$two_pid"
wait "$two_pid" 2>/dev/null || true
mv "$run/two.key" "$run/two.key.new"
begin_worker two-again --key "$run/two.key" --enrol "$run/two.token"
two_pid=$worker_pid
wait_for 30 "its key" test -s "$run/two.key"
wait_for 30 "two" worker_is two connected
[ ! -e "$run/two.key.new" ] || fail "the key is there twice"

claim "a job trains"
submit "$(long_job rotated 2)"
wait_for 60 "training" step_at_least "$job" 50
before=$(generation)
pids_before=$(trainer_pids "$job" | sort | tr '\n' ' ')

claim "no trainer has its worker's key"
for pid in $one_pid $two_pid $pids_before; do
  found=$("$(dirname "$0")/memory_has.py" "$pid" "$(jq -r .secret "$run/one.key")" "$(jq -r .secret "$run/two.key")")
  case $pid in
    "$one_pid") same "$found" "yes no" "of the keys of one and two, in worker one" ;;
    "$two_pid") same "$found" "no yes" "of the keys of one and two, in worker two" ;;
    *) same "$found" "no no" "of the keys of one and two, in trainer $pid" ;;
  esac
done

claim "both keys are replaced meanwhile, and no generation ends"
old=$(cli key list -o json | jq -r '[.items[] | select(.name == "one" and .state == "valid") | .id][0]')
cli key new one --role worker --out "$run/new.key" 2>/dev/null
mv "$run/new.key" "$run/one.key"
wait_for 20 "the agent's look at its key" says one "another key"
cli key revoke "$old" >/dev/null
wait_for 20 "the cut" metrics_say 'gradsync_control_connections_refused_total\{reason="revoked"\} [1-9]'
steps_on 100
wait_for 20 "one" worker_is one connected
sleep 2
steps_on 100
same "$(trainer_pids "$job" | sort | tr '\n' ' ')" "$pids_before" "trainers behind the rotation"
same "$(generation)" "$before" "generation"

claim "a coordinator that is killed and started again has its ranks back, by keys that it has never seen"
kill -KILL "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
start_coordinator keyed "$data" --require-key --control "$control"
steps_on 100
back() { [ "$(get "/v1/jobs/$job/workers" | jq '[.items[] | select(.heartbeat_age_seconds < 5)] | length')" = 2 ]; }
wait_for 30 "both ranks" back
same "$(trainer_pids "$job" | sort | tr '\n' ' ')" "$pids_before" "trainers behind the restart"
same "$(generation)" "$before" "generation"

claim "an API of its own may do what its key is for, and is no worker; a worker's key asks the API's questions in vain"
cli key new reader --role viewer --out "$run/reader.key" 2>/dev/null
begin_api() { # NAME KEY: sets apart
  "$bin/gradsync-api" --http 127.0.0.1:0 --coordinator "$control" --key "$2" --port-file "$run/$1.ports" >"$run/logs/$1.log" 2>&1 &
  pids+=("$!")
  wait_for 30 "$1" test -s "$run/$1.ports"
  apart=http://127.0.0.1:$(jq -r .http "$run/$1.ports" | sed 's/.*://')
  wait_for 30 "$1 connected" curl -fsS "$apart/livez"
}
begin_api reader "$run/reader.key"
apart_status() { curl -s -o "$run/body" -w '%{http_code}' "${@:2}" "$apart$1"; }
reads() { [ "$(apart_status "/v1/jobs/$job")" = 200 ]; }
wait_for 30 "the reader" reads
same "$(apart_status "/v1/jobs/$job")" 200 "reading with a viewer's key"
same "$(apart_status "/v1/jobs/$job/stop" -X POST)" 403 "stopping with a viewer's key ($(head -c 300 "$run/body"))"
begin_api impostor "$run/two.key"
same "$(apart_status "/v1/jobs/$job")" 403 "reading with a worker's key ($(head -c 300 "$run/body"))"
code=0
timeout 60 "$bin/gradsync-worker" --coordinator "$control" --name reader --key "$run/reader.key" >"$run/logs/pretender.log" 2>&1 || code=$?
same "$code" 78 "exit code of a worker with an API's key"
says pretender "which may not call AgentHello" || fail "not said why: $(tail -n 2 "$run/logs/pretender.log")"

claim "a worker whose key is revoked is lost within seconds, and does not come back"
cli key revoke two >/dev/null
gone() { ! worker_is two connected >/dev/null; }
wait_for 20 "the loss of two" gone
wait_for 20 "its refusal" says two-again "does not let this key in"
sleep 2
gone || fail "two is back"
kill -KILL "$two_pid" "$one_pid"
kill "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true

claim "an open cluster is given keys while a job trains"
data=$run/open
open=tcp://127.0.0.1:$(draw_port) keyed=tcp://127.0.0.1:$(draw_port)
begin_coordinator() { # FLAG…
  rm -f "$run/upgrade.ports"
  "$bin/gradsync-coordinator" --http 127.0.0.1:0 --data-dir "$data" --port-file "$run/upgrade.ports" "$@" >>"$run/logs/upgrade.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "the coordinator" test -s "$run/upgrade.ports"
  server=http://$(jq -r .http "$run/upgrade.ports")
  wait_for 30 "the coordinator" curl -fsS "$server/readyz"
}
stop_coordinator() { kill "$coordinator_pid" && wait "$coordinator_pid" 2>/dev/null || true; }
begin_coordinator --control "$open"
control=$open
begin_worker open-a --name a
a_pid=$worker_pid
begin_worker open-b --name b
b_pid=$worker_pid
wait_for 30 "a" worker_is a connected
wait_for 30 "b" worker_is b connected
submit "$(mlp_job upgraded 100000000 2 ',"checkpoint":{"every_steps":20},"debug":{"step_delay_ms":5},"restart":{"max_restarts":20,"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}' | sed 's/"world":{"min":2/"world":{"min":1/')"
wait_for 60 "training" step_at_least "$job" 50
stop_coordinator
begin_coordinator --control "$open" --keyed-control "$keyed"
steps_on 50
control=$keyed
for name in a b; do
  cli key new "$name" --role worker --out "$run/$name.key" 2>/dev/null
  old_pid=${name}_pid
  kill "${!old_pid}"
  wait "${!old_pid}" 2>/dev/null || true
  begin_worker "keyed-$name" --key "$run/$name.key"
  wait_for 60 "$name" worker_is "$name" connected
  steps_on 50
done
stop_coordinator
begin_coordinator --control "$keyed" --require-key
wait_for 30 "a" worker_is a connected
wait_for 30 "b" worker_is b connected
steps_on 100
same "$(job_field "$job" .state)" running "the job"
control=$keyed
begin_worker late --name late
wait_for 30 "a worker without a key" says late "asks for a key"
request POST "/v1/jobs/$job/stop" '{}'
await "$job" cancelled 60
