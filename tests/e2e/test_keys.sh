#!/usr/bin/env bash
# Who may speak at the control port: nobody without a key that is known, and each only what his key is for.
# Rows M1 and M2 of docs/faults.md.
. "$(dirname "$0")/lib.sh"
unset GRADSYNC_KEY GRADSYNC_ENROL
port() { echo "tcp://127.0.0.1:$(draw_port)"; }
cli() { GRADSYNC_DATA_DIR=$data "$bin/gradsync" "$@"; }
# begin_worker NAME [FLAG…]: without waiting for it; sets worker_pid.
begin_worker() {
  local name=$1
  shift
  "$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --slots 1 "$@" >>"$run/logs/$name.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
}
says() { grep -q "$2" "$run/logs/$1.log"; }

claim "an address that is not a loopback one asks for keys, without a word from anybody"
data=$run/wide
start_coordinator wide "$data" --control "tcp://0.0.0.0:$(draw_port)"
control=tcp://127.0.0.1:${control##*:}
same "$(stat -c %a "$data/control.key")" 600 "mode of the server's key"
get "/readyz?verbose" | grep -q "^\[+\]keys ok" || fail "the check of the keys: $(get "/readyz?verbose")"
same "$(cli keygen)" "$(jq -r .public "$data/control.key")" "keygen leaves the key that is there"

claim "an address that begins with a loopback one and goes on is none"
for address in "tcp://127.0.0.1:0;0.0.0.0:0" "tcp://127.0.0.1:0;tcp://0.0.0.0:0" "tcp://127.0.0.1:0,tcp://0.0.0.0:0" "ipc://$run/socket"; do
  code=0
  timeout 30 "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control "$address" --data-dir "$run/odd" >"$run/logs/odd.log" 2>&1 || code=$?
  same "$code" 78 "exit code with --control $address"
  says odd "must be one tcp://ADDR:PORT" || fail "not said why: $(tail -n 2 "$run/logs/odd.log")"
done

claim "M1: who shows no key, one that nobody knows, or one of another coordinator is not let in"
begin_worker plain --name plain
plain_pid=$worker_pid
GRADSYNC_DATA_DIR=$run/elsewhere "$bin/gradsync" key new stranger --role worker --out "$run/elsewhere.key" 2>/dev/null
begin_worker elsewhere --key "$run/elsewhere.key"
cp "$run/elsewhere.key" "$run/mixed.key"
GRADSYNC_DATA_DIR=$run/elsewhere2 "$bin/gradsync" keygen >/dev/null
rm -rf "$run/elsewhere2/control.key" && cp "$data/control.key" "$run/elsewhere2/control.key"
GRADSYNC_DATA_DIR=$run/elsewhere2 "$bin/gradsync" key new stranger --role worker --out "$run/stranger.key" 2>/dev/null
begin_worker stranger --key "$run/stranger.key"
wait_for 20 "the plain worker's refusal" says plain "the coordinator asks for a key"
wait_for 20 "the stranger's refusal" says stranger "does not let this key in"
wait_for 20 "the other coordinator's refusal" says elsewhere "not the one that this key is for"
wait_for 20 "the count" metrics_say 'gradsync_control_connections_refused_total\{reason="unknown_key"\} [1-9]'
same "$(get /v1/workers | jq '.items | length')" 0 "workers"
kill "$plain_pid" "$worker_pid" 2>/dev/null || true

claim "connections that say nothing are seen, and so is that nothing came of them"
handshakes() { get /metrics | sed -n 's/^gradsync_control_connections_refused_total{reason="handshake"} //p'; }
accepted() { get /metrics | sed -n 's/^gradsync_control_connections_accepted_total //p'; }
before=$(handshakes)
accepted_before=$(accepted)
exec {silence}< <(python3 - "${control##*:}" <<'PYTHON'
import socket, sys, time
there = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) for _ in range(30)]
print("there", flush=True)
time.sleep(60)
PYTHON
)
silent_pid=$!
pids+=("$silent_pid")
read -r -t 60 <&"$silence"
have_failed() { [ "$(handshakes)" -ge $((${before%.*} + 30)) ]; }
wait_for 20 "30 handshakes that came to nothing" have_failed
wait_for 20 "nobody who is silent" metrics_say '^gradsync_control_connections\{state="silent"\} 0'
[ "$(accepted)" -ge $((${accepted_before%.*} + 30)) ] || fail "not counted: $(get /metrics | grep control_connections)"
kill "$silent_pid" 2>/dev/null || true
exec {silence}<&-

claim "who has a key is the worker that it names, and no other"
cli key new alpha --role worker --out "$run/alpha.key" 2>/dev/null
same "$(stat -c %a "$run/alpha.key")" 600 "mode of a key"
begin_worker alpha --key "$run/alpha.key"
wait_for 20 "alpha" worker_is alpha connected
code=0
timeout 60 "$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --name beta --key "$run/alpha.key" >"$run/logs/beta.log" 2>&1 || code=$?
same "$code" 78 "exit code of a worker with another one's key"
says beta "may not be worker beta" || fail "not said why: $(tail -n 2 "$run/logs/beta.log")"

claim "workers of a pool share a key"
cli key new pool --role worker --pool --out "$run/pool.key" 2>/dev/null
begin_worker pool-a --key "$run/pool.key" --name pool-a
begin_worker pool-b --key "$run/pool.key"
wait_for 20 "pool-a" worker_is pool-a connected
wait_for 20 "pool-HOST" worker_is "pool-$(hostname)" connected

claim "a file that others may read is not taken"
cp "$run/alpha.key" "$run/open.key"
chmod 644 "$run/open.key"
code=0
"$bin/gradsync-worker" --coordinator "$control" --data-root "$run/root" --key "$run/open.key" >"$run/logs/open.log" 2>&1 || code=$?
[ "$code" -ne 0 ] || fail "taken"
says open "others than its owner may read" || fail "not said why: $(tail -n 2 "$run/logs/open.log")"

claim "a coordinator that has keys lets no process of its user look into it, unless it is told to"
# What is of a process that may not be traced is root's in /proc: seen from another user than root alone.
as_other=() other=$(id -u)
if [ "$other" = 0 ]; then
  other=65534
  as_other=(setpriv --reuid=$other --regid=$other --clear-groups)
  chmod 711 "$run"
fi
owner_of() { # NAME [FLAG…]
  local name=$1 pid
  shift
  mkdir -p "$run/$name.data"
  [ "${#as_other[@]}" = 0 ] || chown "$other" "$run/$name.data"
  "${as_other[@]}" "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$run/$name.data" \
    --port-file "$run/$name.data/ports" "$@" >"$run/logs/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  wait_for 30 "$name" test -s "$run/$name.data/ports"
  owner=$(stat -c %u "/proc/$pid/environ")
  kill "$pid"
}
if "${as_other[@]}" "$bin/gradsync-coordinator" --version >/dev/null 2>&1; then
  owner_of plain-owner
  same "$owner" "$other" "owner of what is of a coordinator without keys"
  owner_of keyed-owner --require-key
  same "$owner" 0 "owner of what is of one with keys"
  owner_of traced-owner --require-key --core-files
  same "$owner" "$other" "owner of what is of one with keys and --core-files"
else
  echo "  no other user can start the programs here: left out"
fi

claim "M2: without the handler of keys nobody is let in: one that does not answer stops the start, one that dies later is told"
code=0
GRADSYNC_FAILPOINTS=gate.answer=error timeout 90 "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --require-key \
  --data-dir "$run/dead" >"$run/logs/dead.log" 2>&1 || code=$?
if [ "$code" != 124 ]; then  # else a build without failpoints
  same "$code" 78 "exit code where the handler does not answer"
  data=$run/dying
  cli key new late --role worker --out "$run/late.key" 2>/dev/null
  GRADSYNC_FAILPOINTS=gate.answer=error@3 start_coordinator dying "$data" --require-key
  begin_worker late --key "$run/late.key"
  wait_for 20 "the handler's end" says dying "nobody is let in any more"
  not_ready() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$server/readyz")" = 503 ]; }
  wait_for 20 "the check" not_ready
  get "/readyz?verbose" >/dev/null && fail "ready without a handler"
  curl -s "$server/readyz?verbose" | grep -q '^\[-\]keys failed' || fail "not said why: $(curl -s "$server/readyz?verbose")"
  sleep 3
  same "$(curl -s "$server/v1/workers" | jq '.items | length')" 0 "workers let in by nobody"
fi
