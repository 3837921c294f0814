#!/usr/bin/env bash
# The systemd units: systemd finds nothing wrong with them, they leave little open, the settings that come with them are taken, and
# the programs train a job under what they forbid. Without systemd that is done by under_unit.py.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
units=$here/../../deploy/systemd
command -v systemd-analyze >/dev/null || { echo "SKIP units: no systemd-analyze (deploy/install-deps.sh test)"; exit 77; }

mkdir "$run/units"
for unit in "$units"/*.service; do
  sed "s|/usr/bin/|$bin/|; s|/usr/lib/gradsync/|$bin/|" "$unit" >"$run/units/$(basename "$unit")"
done

claim "systemd finds nothing wrong with the units"
for unit in "$run"/units/*.service; do
  # It also tells what is wrong with units of this machine.
  systemd-analyze verify --man=no --recursive-errors=no "$unit" >"$run/out" 2>&1 || fail "$(basename "$unit"): $(cat "$run/out")"
  ! grep "$(basename "$unit")" "$run/out" || fail "$(basename "$unit"): see above"
done
mkdir "$run/units/gradsync-worker.service.d"
cp "$units/gpu.conf" "$run/units/gradsync-worker.service.d"
systemd-analyze verify --man=no --recursive-errors=no "$run/units/gradsync-worker.service" >"$run/out" 2>&1 || fail "with gpu.conf: $(cat "$run/out")"
! grep gradsync-worker.service "$run/out" || fail "with gpu.conf: see above"

claim "an intruder would have little: exposure below 2 of 10, and each is restarted, limited and stopped"
for unit in "$units"/*.service; do
  # What the worker takes its trainers' user with counts, though it gives it up.
  threshold=20
  [ "$(basename "$unit")" != gradsync-worker.service ] || threshold=22
  systemd-analyze security --offline=true --threshold=$threshold --no-pager "$unit" >"$run/out" 2>&1 || fail "$(basename "$unit"): $(tail -n 1 "$run/out")"
  for setting in Restart=on-failure User=gradsync LimitNOFILE= LimitCORE=0 TimeoutStopSec= RestartPreventExitStatus= StateDirectory=gradsync; do
    grep -q "^$setting" "$unit" || fail "$(basename "$unit") says nothing of $setting"
  done
done

claim "the settings that come with them are taken, and the user is made"
for program in coordinator worker api; do
  "$bin/gradsync-$program" --config "$units/$program.json" --print-config >"$run/out" 2>&1 || fail "$program.json: $(head -c 300 "$run/out")"
  grep -q "file" "$run/out" || fail "$program.json: nothing comes from the file: $(cat "$run/out")"
done
if command -v systemd-sysusers >/dev/null; then
  mkdir -p "$run/sysroot/etc"
  systemd-sysusers --root="$run/sysroot" "$units/sysusers.conf" >"$run/out" 2>&1 || fail "sysusers: $(cat "$run/out")"
  for user in gradsync gradsync-worker gradsync-trainer; do
    grep -q "^$user:.*:/var/lib/$user:.*nologin$" "$run/sysroot/etc/passwd" || fail "$user: $(cat "$run/sysroot/etc/passwd")"
  done
  grep -q '^gradsync-worker:.*:gradsync$' "$run/sysroot/etc/group" || fail "groups: $(cat "$run/sysroot/etc/group")"
  ! grep -q '^gradsync:.*gradsync-\(worker\|trainer\)' "$run/sysroot/etc/group" || fail "workers are in the coordinator's group"
fi

claim "coordinator and worker train a job under all of it"
chmod 711 "$run"
mkdir -p "$run/state" "$run/worker-state" "$run/bin"
cp "$bin"/gradsync-{coordinator,worker} "$run/bin"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 \
  -keyout "$run/state/key.pem" -out "$run/state/cert.pem" 2>"$run/out" || fail "openssl: $(cat "$run/out")"
chmod 644 "$run/state/cert.pem"
chown -R nobody "$run/state" "$run/worker-state"
# Trainers are another user, of the worker's group, and save as one of it.
chmod 711 "$run/state"
install -d -o nobody -m 711 "$run/state/data"
install -d -o nobody -g "$(id -gn nobody)" -m 2770 "$run/state/data/checkpoints"
# What looks for leaks traces its process, which the units forbid; other tests look for them.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
under() { # UNIT STATE LOG COMMAND…
  local unit=$1 state=$2 log=$3
  shift 3
  "$here/under_unit.py" "$units/$unit" --state "$state" --state "$run/state" -- "$@" >>"$run/logs/$log.log" 2>&1 &
  pids+=("$!")
}
under gradsync-coordinator.service "$run/state" coordinator "$run/bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 \
  --data-dir "$run/state/data" --port-file "$run/state/ports" --tls-cert "$run/state/cert.pem" --tls-key "$run/state/key.pem"
coordinator_pid=${pids[-1]}
for _ in $(seq 600); do
  [ ! -s "$run/state/ports" ] && kill -0 "$coordinator_pid" 2>/dev/null || break
  sleep 0.1
done
if [ ! -s "$run/state/ports" ]; then
  grep -h '^SKIP' "$run/logs/coordinator.log" && { echo "units: verified, not run"; exit 0; }
  fail "the coordinator does not start"
fi
server=https://$(jq -r .http "$run/state/ports")
control=$(jq -r .control "$run/state/ports")
export CURL_CA_BUNDLE=$run/state/cert.pem
wait_for 30 "it is ready" curl -fsS "$server/readyz"
under gradsync-worker.service "$run/worker-state" worker "$run/bin/gradsync-worker" --coordinator "$control" --name guarded --slots 2 --data-root /usr/share/common-licenses \
  --run-as "daemon:$(id -gn nobody)"
worker_pid=${pids[-1]}
wait_for 30 "its worker" worker_is guarded connected
submit '{"name":"guarded","world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"gpt2","gpt2":{"layers":2,"heads":2,"channels":32,"context":32}},
  "data":{"kind":"bytes","train":"GPL-*","micro_batch":2},"steps":{"target":40},"checkpoint":{"every_steps":20},"sample":{"tokens":8}}'
await "$job" succeeded 90
get "/v1/jobs/$job/checkpoints" | jq -e 'any(.items[]; .step == 40 and .verified)' >/dev/null || fail "no checkpoint"
metrics_say '^process_resident_memory_bytes [1-9]' || fail "its own metrics are not there: $(get /metrics | grep ^process)"
confines() { awk '/^(Seccomp|NoNewPrivs|CapPrm|CapEff|CapBnd):/ { printf "%s ", $2 }' "/proc/$1/status"; }
same "$(confines "$coordinator_pid")" "0000000000000000 0000000000000000 0000000000000000 1 2 " "what confines the coordinator"
# It has used its right and given it up; nothing that it executes gets it back.
same "$(confines "$worker_pid")" "0000000000000000 0000000000000000 0000000000000080 1 2 " "what confines the worker"
same "$(awk '/^Uid:/ { print $2, $3, $4 }' "/proc/$worker_pid/status")" "$(id -u daemon) $(id -u nobody) $(id -u nobody)" "whose the worker is"
[ -n "$(find "$run/state/data/checkpoints" -name 'part-*' -user daemon)" ] || fail "trainers are not another user: $(ls -lR "$run/state/data/checkpoints")"
kill -TERM "$worker_pid" "$coordinator_pid"
code=0
wait "$worker_pid" || code=$?
same "$code" 0 "the worker's end"
wait "$coordinator_pid" || code=$?
same "$code" 0 "the coordinator's end"
# What a filter refuses is an error of the program, or a line of its log.
! grep -hi 'not permitted' "$run"/logs/*.log || fail "something was refused"
