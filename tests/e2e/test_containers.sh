#!/usr/bin/env bash
# Builds the images with podman, starts a coordinator and two workers from them with deploy/compose.yaml, and trains over the bridge
# between them, as a user does with curl: the bits of one container, a container killed and started again, an end by SIGTERM. Skips
# (77) by name where podman cannot run containers on a network of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIP containers: $*"; exit 77; }

command -v podman >/dev/null || skip "no podman (deploy/install-deps.sh containers)"
command -v podman-compose >/dev/null || skip "no podman-compose (deploy/install-deps.sh containers)"
command -v debootstrap >/dev/null || skip "no debootstrap"
[ "$(id -u)" -eq 0 ] || skip "needs root for debootstrap"

work=$(mktemp -d)
names=(gradsync-e2e_coordinator_1 gradsync-e2e_worker-1_1 gradsync-e2e_worker-2_1)
# Of one service and no other: what stands in compose.yaml, without an order.
compose_up() { podman-compose -p gradsync-e2e -f deploy/compose.yaml up -d --no-build "$1" >"$work/up.log" 2>&1 || { tail -n 20 "$work/up.log"; exit 1; }; }
remove_all() {
  podman rm -f -t 0 "${names[@]}" >/dev/null 2>&1 || true
  for volume in state worker-1 worker-2; do podman volume rm -f "gradsync-e2e_$volume" >/dev/null 2>&1 || true; done
  podman network rm -f gradsync-e2e_default >/dev/null 2>&1 || true
}
finish() {
  local code=$?
  [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || for name in "${names[@]}"; do echo "--- $name"; podman logs --tail 30 "$name" 2>&1 || true; done
  remove_all
  rm -rf "$work"
}
trap finish EXIT

# Where limits may not be raised, podman's defaults fail; runc accepts hybrid control groups.
if ! podman info >/dev/null 2>&1 || [ -z "${CONTAINERS_CONF:-}" ]; then
  printf '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]\n[engine]\nruntime = "runc"\n' >"$work/containers.conf"
  export CONTAINERS_CONF=$work/containers.conf
fi
remove_all  # of a run that was killed

base=localhost/gradsync-e2e-base
if ! podman image exists "$base"; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 5 "$work/debootstrap.log"; skip "debootstrap failed"; }
  tar -C "$work/root" -c . | podman import - "$base" >/dev/null 2>&1 || skip "podman import failed"
fi
podman run --rm "$base" true >"$work/run.log" 2>&1 || { tail -n 2 "$work/run.log"; skip "podman cannot run a container here"; }

# GRADSYNC_IMAGES=1: those that are there already.
if [ -z "${GRADSYNC_IMAGES:-}" ]; then
  for target in coordinator worker; do
    podman build --network host -q --build-arg BASE="$base" -f deploy/Containerfile --target "$target" \
      -t "gradsync-$target" . >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; exit 1; }
  done
fi

podman network create gradsync-e2e_probe >/dev/null 2>&1 || skip "podman cannot make a network here"
podman run --rm --network gradsync-e2e_probe "$base" true >"$work/run.log" 2>&1 || network_fails=1
podman network rm -f gradsync-e2e_probe >/dev/null 2>&1 || true
[ -z "${network_fails:-}" ] || { tail -n 2 "$work/run.log"; skip "containers get no network of their own here"; }

fail() { echo "fail: $*" >&2; exit 1; }
same() { [ "$1" = "$2" ] || fail "$3: is '$1', not '$2'"; }
wait_for() { # SECONDS WHAT COMMAND…; counts its own pauses, because clocks of virtual machines jump
  local left=$(($1 * 5)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do [ $((left--)) -gt 0 ] || fail "waited in vain for: $what"; sleep 0.2; done
}
get() { curl -fsS "$server$1"; }
field() { get "/v1/jobs/$1" | jq -r "$2"; }
worker_is_there() { get /v1/workers | jq -e --arg id "$1" '.items[] | select(.id == $id) | .connected'; }
ended() { case $(field "$1" .state) in succeeded | failed | cancelled) ;; *) return 1 ;; esac; }
step_is() { [ "$(field "$1" .progress.step)" -ge "$2" ]; }
await() {
  wait_for 240 "the end of $1" ended "$1"
  same "$(field "$1" .state)" succeeded "state of $1 ($(field "$1" '"\(.reason): \(.message)"'))"
}
# Equal for equal states, whichever job saved them.
digest_of() { get "/v1/jobs/$1/checkpoints" | jq -er '.items[0] | select(.step == 120 and .verified).digest'; }
has_digest() { digest_of "$1" >/dev/null; }
where() { get "/v1/jobs/$1/workers" | jq -r '[.items[].worker] | unique | join(" ")'; }
says() { get "/v1/jobs/$1/events?limit=500" | jq -e --arg text "$2" 'any(.items[]; .message | contains($text))'; }
submit() { # NAME STEP_DELAY_MS [MORE]: sets job
  job=$(curl -sS -H 'Content-Type: application/json' -d '{
    "name": "'"$1"'", "exact": true, "world": {"min": 2, "max": 2, "threads_per_rank": 1}, "debug": {"step_delay_ms": '"$2"'},
    "model": {"kind": "gpt2", "gpt2": {"layers": 2, "heads": 2, "channels": 32, "context": 32, "vocab": 256}},
    "data": {"kind": "bytes", "train": "GPL-*", "micro_batch": 2}, "checkpoint": {"every_steps": 40}, "steps": {"target": 120}'"${3-}"'}' "$server/v1/jobs" |
    tee "$work/created" | jq -er .id) || fail "submit: $(cat "$work/created")"
}

# Below the ports that the kernel gives away.
GRADSYNC_HTTP_PORT=$((20000 + RANDOM % 10000))
export GRADSYNC_HTTP_PORT GRADSYNC_SLOTS=2
server=http://127.0.0.1:$GRADSYNC_HTTP_PORT
echo "· a worker that is there before the coordinator waits for it"
compose_up worker-1
compose_up coordinator
wait_for 60 "the coordinator" curl -fsS "$server/readyz"
wait_for 60 "worker-1" worker_is_there worker-1

echo "· the bits of one container, over shared memory"
submit in-one 0
await "$job"
wait_for 60 "its checkpoint" has_digest "$job"
same "$(where "$job")" worker-1 "where it ran"
says "$job" "2 ranks reduce over shm" >/dev/null || fail "no event says how they reduced"
wanted=$(digest_of "$job")

compose_up worker-2
wait_for 60 "worker-2" worker_is_there worker-2
echo "· what compose.yaml says about names, rights and memory holds"
for host in "localhost:$GRADSYNC_HTTP_PORT" coordinator:8470; do
  curl -fsS -o "$work/out" -H "Host: $host" "$server/v1/jobs" || fail "Host $host is refused"
done
code=$(curl -sS -o "$work/out" -w '%{http_code}' -H 'Host: elsewhere.example' "$server/v1/jobs")
[ "$code" -ge 400 ] || fail "another Host is served: $code"
for name in "${names[@]}"; do
  podman inspect "$name" | jq -e '.[0] | .HostConfig.ReadonlyRootfs and (.EffectiveCaps // [] | length == 0)' >/dev/null ||
    fail "$name may write its image, or has capabilities: $(podman inspect "$name" | jq -c '.[0].EffectiveCaps')"
done
namespaces() { podman exec "$1" sh -c 'readlink /proc/self/ns/ipc /proc/self/ns/net; stat -f -c %i /dev/shm' | sort; }
same "$(comm -12 <(namespaces "${names[1]}") <(namespaces "${names[2]}"))" "" "what the containers of the workers share"

echo "· two containers that share no memory come to the same bits, over their network, and curl shows it"
submit apart 25
wait_for 60 "its steps" step_is "$job" 20
same "$(where "$job")" "worker-1 worker-2" "where it runs"
says "$job" "2 ranks reduce over net" >/dev/null || fail "no event says how they reduce: $(get "/v1/jobs/$job/events")"
get "/v1/jobs/$job/plan" | jq -e '.buckets | length > 0' >/dev/null || fail "no plan"
get "/v1/jobs/$job/diagnosis" | jq -e .verdict >/dev/null || fail "no diagnosis"
get "/v1/jobs/$job/series?name=loss" | jq -e '.series[0].points | length > 0' >/dev/null || fail "no series"
logs=$(get "/v1/jobs/$job/logs")
[ -n "$logs" ] || fail "no logs"
get "/v1/jobs/$job/timeline?steps=last:2&format=trace" | jq -e '.traceEvents | length > 0' >/dev/null || fail "no timeline"
curl -sN --max-time 200 "$server/v1/jobs/$job/stream" >"$work/stream" &  # until the job has ended
streamed() { grep -q '^event: snapshot' "$work/stream" && grep -q '^event: step' "$work/stream"; }
wait_for 60 "steps in the stream" streamed
grep -q apart <<<"$(podman exec "${names[0]}" gradsync list)" || fail "the command line in the container does not list it"
await "$job"
wait_for 60 "its checkpoint" has_digest "$job"
same "$(digest_of "$job")" "$wanted" "the state of two containers"
scraped() { metrics=$(get /metrics) && grep -q "^gradsync_job_steps_total{job_id=\"$job\"} 120" <<<"$metrics"; }
wait_for 30 "its steps in /metrics" scraped

echo "· a container that is killed and started again costs no step that was taken"
submit killed 40
wait_for 60 "its steps" step_is "$job" 15
podman kill -s KILL "${names[2]}" >/dev/null
# The other container has two slots: the job need not wait.
moved() { [ "$(field "$job" '"\(.state) \(.restarts)"')" = "running 1" ] && [ "$(where "$job")" = worker-1 ]; }
wait_for 120 "the job in the other container" moved
podman start "${names[2]}" >/dev/null
wait_for 60 "worker-2" worker_is_there worker-2
await "$job"
wait_for 60 "its checkpoint" has_digest "$job"
same "$(digest_of "$job")" "$wanted" "the state behind the kill"
same "$(field "$job" '.lost_steps // 0')" 0 "steps that were lost"

# SIGTERM ends all within their grace.
podman stop -t 20 "${names[@]}" >/dev/null
for name in "${names[@]}"; do
  code=$(podman inspect -f '{{.State.ExitCode}}' "$name")
  [ "$code" -eq 0 ] || { echo "$name ended with $code on SIGTERM"; podman logs "$name" | tail -n 20; exit 1; }
done
echo "containers: built, composed, trained apart, killed, scraped, stopped"
