# Shared by the end-to-end tests: real processes on free ports, everything ended and removed at exit.
#   GRADSYNC_BIN_DIR  where the programs are
set -euo pipefail
bin=${GRADSYNC_BIN_DIR:?names the folder of the programs}
for tool in curl jq; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
run=$(mktemp -d "${TMPDIR:-/tmp}/gradsync-e2e.XXXXXX")
mkdir -p "$run/logs" "$run/root"
# Nobody's own servers and tokens.
export XDG_CONFIG_HOME=$run/config
unset GRADSYNC_TOKEN GRADSYNC_TOKEN_FILE GRADSYNC_CACERT
pids=()
test_name=start

finish() {
  local code=$? pid
  for pid in "${pids[@]:-}"; do [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]:-}"; do
    [ -n "$pid" ] || continue
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
    echo "FAILED in: $test_name (files in $run)" >&2
    for log in "$run"/logs/*.log; do echo "--- $log" >&2; tail -n 25 "$log" >&2; done
  else
    rm -rf "$run"
  fi
}
trap finish EXIT

claim() { test_name=$*; echo "· $*"; }
fail() { echo "fail: $*" >&2; exit 1; }
same() { [ "$1" = "$2" ] || fail "$3: is '$1', not '$2'"; }

# timing_ms NAME: what a coordinator goes by that is told nothing else. Times that are asserted are multiples of these.
timing_ms() {
  local ms
  ms=$(sed -En "s/^ *\.$1_ns = ([0-9]+) \* GS_NS_PER_MS,/\1/p; s/^ *\.$1_ns = ([0-9]+) \* GS_NS_PER_SEC,/\1000/p" "$(dirname "$0")/../../coordinator/rules/timing.c")
  [ -n "$ms" ] || fail "no time is called $1"
  echo "$ms"
}
sleep_ms() { sleep "${1}e-3"; }

# wait_for SECONDS WHAT COMMAND…: tries the command until it succeeds, for a minute at least: who waits claims no
# time, and machines of tests are busy. Counts its own pauses, because wall clocks of virtual machines jump.
wait_for() {
  local left=$((($1 > 60 ? $1 : 60) * 10)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((left--)) -gt 0 ] || fail "waited in vain for: $what"
    sleep 0.1
  done
}

# A port that others get by chance for a connection of theirs is lost to a coordinator that starts again: theirs are above these.
draw_port() { echo $((10000 + SRANDOM % 22000)); }
# start_coordinator NAME DATA_DIR [FLAG…]: sets server, control and coordinator_pid.
start_coordinator() {
  local name=$1 data=$2
  shift 2
  rm -f "$run/$name.ports"
  begin_somewhere() {
    "$bin/gradsync-coordinator" --http "127.0.0.1:$(draw_port)" --control "tcp://127.0.0.1:$(draw_port)" --data-dir "$data" \
      --port-file "$run/$name.ports" "$@" >>"$run/logs/$name.log" 2>&1 &
    coordinator_pid=$!
    pids+=("$coordinator_pid")
  }
  begin_somewhere "$@"
  for _ in $(seq 1200); do
    [ ! -s "$run/$name.ports" ] || break
    # Drawn by somebody else, too: another pair.
    kill -0 "$coordinator_pid" 2>/dev/null || { tail -n 3 "$run/logs/$name.log" | grep -q "is in use" && begin_somewhere "$@"; } || break
    sleep 0.1
  done
  [ -s "$run/$name.ports" ] || fail "$name does not start: $(tail -n 3 "$run/logs/$name.log")"
  server=http://$(jq -r .http "$run/$name.ports")
  control=$(jq -r .control "$run/$name.ports")
  export GRADSYNC_SERVER=$server
  wait_for 30 "$name ready" curl -fsS "$server/readyz"
}

# start_worker NAME SLOTS: sets worker_pid.
start_worker() {
  "$bin/gradsync-worker" --coordinator "$control" --name "$1" --slots "$2" --data-root "$run/root" \
    >>"$run/logs/$1.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
  wait_for 30 "worker $1" worker_is "$1" connected
}
worker_is() { get /v1/workers | jq -e --arg id "$1" '.items[] | select(.id == $id) | .connected' ; }

get() { curl -fsS "$server$1"; }
# request VERB PATH [BODY [CURL FLAG…]]: sets status and leaves the body in $run/body.
request() {
  local verb=$1 path=$2 body=${3-}
  shift 2
  [ $# -gt 0 ] && shift
  local data=()
  [ -n "$body" ] && data=(-H 'Content-Type: application/json' --data-binary "$body")
  status=$(curl -sS -o "$run/body" -D "$run/headers" -w '%{http_code}' -X "$verb" "${data[@]}" "$@" "$server$path")
}
body() { jq -r "$1" "$run/body"; }
# submit BODY: sets job.
submit() {
  request POST /v1/jobs "$1"
  same "$status" 201 "submit: $(head -c 600 "$run/body")"
  job=$(body .id)
}
# metrics_say PATTERN: a line of the page, which may be older than an answer.
metrics_say() { grep -Eq "$1" <<<"$(get /metrics)"; }
job_field() { get "/v1/jobs/$1" | jq -r "$2"; }
job_is() { [ "$(job_field "$1" .state)" = "$2" ]; }
job_ended() { case $(job_field "$1" .state) in succeeded | failed | cancelled) ;; *) return 1 ;; esac; }
step_at_least() { [ "$(job_field "$1" .progress.step)" -ge "$2" ]; }
# await JOB STATE SECONDS
await() {
  wait_for "$3" "the end of $1 ($(job_field "$1" '"\(.state) \(.reason) \(.message)"'))" job_ended "$1"
  same "$(job_field "$1" .state)" "$2" "state of $1 ($(job_field "$1" '"\(.reason): \(.message) \(.failure // "")"'))"
}
trainer_pids() { get "/v1/jobs/$1/workers" | jq -r '.items[].pid'; }

mlp_job() { # NAME STEPS RANKS [MORE]
  printf '{"name":"%s","world":{"min":%s,"max":%s,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":4},"steps":{"target":%s}%s}' \
    "$1" "$3" "$3" "$2" "${4-}"
}
