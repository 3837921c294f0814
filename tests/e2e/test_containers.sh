#!/usr/bin/env bash
# Builds the images with podman (with the programs of this build, or from source), starts a coordinator and two workers from them with deploy/compose.yaml, and trains over the bridge
# between them, as a user does with curl: the bits of one container, a container killed and started again, an end by SIGTERM. Nobody gets in without
# what he has to show. The first worker shares the coordinator's checkpoints, the second has a volume of its own. Skips (77) by name where podman cannot run containers on a
# network of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIP containers: $*"; exit 77; }

command -v podman >/dev/null || skip "no podman (deploy/install-deps.sh containers)"
command -v podman-compose >/dev/null || skip "no podman-compose (deploy/install-deps.sh containers)"
command -v debootstrap >/dev/null || skip "no debootstrap"
[ "$(id -u)" -eq 0 ] || skip "needs root for debootstrap"

work=$(mktemp -d)
names=(gradsync-e2e_coordinator_1 gradsync-e2e_worker-1_1 gradsync-e2e_worker-2_1)
all=("${names[@]}" gradsync-e2e_keys_1)
# Of one service and no other: what stands in compose.yaml, without an order.
compose_up() { podman-compose -p gradsync-e2e -f deploy/compose.yaml up -d --no-build "$1" >"$work/up.log" 2>&1 || { tail -n 20 "$work/up.log"; exit 1; }; }
remove_all() {
  podman rm -f -t 0 "${all[@]}" >/dev/null 2>&1 || true
  for volume in state keys checkpoints worker-1 worker-2; do podman volume rm -f "gradsync-e2e_$volume" >/dev/null 2>&1 || true; done
  podman network rm -f gradsync-e2e_default >/dev/null 2>&1 || true
}
finish() {
  local code=$?
  [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || for name in "${all[@]}"; do echo "--- $name"; podman logs --tail 30 "$name" 2>&1 || true; done
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

# GRADSYNC_IMAGES=1: those that are there already; source: compiled in the image, as users do, which takes minutes (tests/long.sh);
# else with the programs of this build, where the system is that of the image.
images=${GRADSYNC_IMAGES:-programs}
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release && [ -x "${GRADSYNC_BIN_DIR:-none}/gradsync-worker" ] || [ "$images" = 1 ] || images=source
context=. containerfile=deploy/Containerfile
if [ "$images" = programs ]; then
  context=$work/context containerfile=$work/Containerfile
  mkdir -p "$context/bin" "$context/deploy"
  cp "$GRADSYNC_BIN_DIR"/gradsync "$GRADSYNC_BIN_DIR"/gradsync-{coordinator,worker} "$context/bin"
  strip "$context"/bin/*
  cp deploy/install-deps.sh deploy/make-keys.sh "$context/deploy"
  # Its first stage is these programs; all behind it is as it stands.
  awk '/ AS build$/ { print; print "COPY bin /src/build/release/bin"; skips = 1; next } /^FROM / { skips = 0 } !skips' deploy/Containerfile >"$containerfile"
fi
if [ "$images" != 1 ]; then
  echo "· images: $images"
  for target in coordinator worker; do
    podman build --format docker --network host -q --build-arg BASE="$base" -f "$containerfile" --target "$target" \
      -t "gradsync-$target" "$context" >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; exit 1; }
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
export GRADSYNC_HTTP_PORT GRADSYNC_SLOTS=2 GRADSYNC_WORKER_2_CHECKPOINTS=worker-2
server=https://127.0.0.1:$GRADSYNC_HTTP_PORT
# One that has been told where it is, and has no key.
compose_up_ends() { compose_up keys; wait_for 30 "the keys" key_maker_ended; }
key_maker_ended() { [ "$(podman inspect -f '{{.State.Status}} {{.State.ExitCode}}' gradsync-e2e_keys_1)" = "exited 0" ]; }
echo "· a worker that is there before its key and before the coordinator waits for both"
compose_up worker-1
compose_up_ends
compose_up coordinator
copied() { podman cp "${names[0]}:/var/lib/gradsync/tls/cert.pem" "$work/ca.pem" && podman cp "${names[0]}:/var/lib/gradsync/admin.token" "$work/admin.token"; }
wait_for 60 "certificate and token" copied
# For curl, whoever calls it.
printf 'cacert = "%s"\nheader = "Authorization: Bearer %s"\n' "$work/ca.pem" "$(cat "$work/admin.token")" >"$work/.curlrc"
export CURL_HOME=$work
wait_for 60 "the coordinator" curl -fsS "$server/readyz"
wait_for 60 "workers-1" worker_is_there workers-1

echo "· who shows nothing gets nothing, and workers cannot see what lets clients in"
code=$(curl -q -sS --cacert "$work/ca.pem" -o "$work/out" -w '%{http_code}' "$server/v1/jobs")
same "$code" 401 "jobs without a token"
! curl -q -sS "$server/livez" >"$work/out" 2>&1 || fail "the certificate is taken without its authority"
! podman exec "${names[1]}" sh -c 'cat /var/lib/gradsync/* /keys/../var/lib/gradsync/*' >"$work/out" 2>/dev/null || fail "a worker sees the coordinator's data"
podman run --rm --network gradsync-e2e_default --read-only gradsync-worker --coordinator tcp://coordinator:8471 --name stranger \
  --coordinator-timeout-seconds 4 >"$work/stranger.log" 2>&1 && fail "a worker without a key ended as if all were well" || true
! get /v1/workers | jq -e 'any(.items[]; .id == "stranger")' >/dev/null || fail "a worker without a key was let in"

echo "· images: nobody is root, nothing is written but to volumes, and who hangs is unhealthy"
for name in "${names[@]:0:2}"; do
  same "$(podman exec "$name" id -u)" 65532 "who $name is"
  podman exec "$name" sh -c 'touch /x /usr/x /tmp/x 2>/dev/null; ls /x /usr/x /tmp/x 2>/dev/null' >"$work/out" && fail "$name may write its image" || true
  same "$(podman exec "$name" sh -c "awk '/^(NoNewPrivs|CapEff|CapBnd):/ { printf \"%s \", \$2 }' /proc/1/status")" "0000000000000000 0000000000000000 1 " "what $name may"
done
for image in coordinator worker; do
  same "$(podman image inspect -f '{{.User}}' "gradsync-$image")" 65532:65532 "who runs in gradsync-$image"
done
same "$(podman image inspect gradsync-coordinator | jq -c '.[0].Healthcheck.Test // .[0].HealthCheck.Test')" '["CMD","gradsync","health"]' "the image's health check"
healthy() { podman healthcheck run "${names[0]}"; }
wait_for 30 "its health" healthy
podman kill -s STOP "${names[0]}" >/dev/null
! healthy >"$work/out" 2>&1 || fail "who stands still is healthy"
podman kill -s CONT "${names[0]}" >/dev/null
wait_for 30 "its health again" healthy
wait_for 60 "workers-1" worker_is_there workers-1

echo "· the bits of one container, over shared memory"
submit in-one 0
await "$job"
wait_for 60 "its checkpoint" has_digest "$job"
same "$(where "$job")" workers-1 "where it ran"
says "$job" "2 ranks reduce over shm" >/dev/null || fail "no event says how they reduced"
wanted=$(digest_of "$job")

compose_up worker-2
wait_for 60 "workers-2" worker_is_there workers-2
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
submit apart 50
curl -sN --max-time 200 "$server/v1/jobs/$job/stream" >"$work/stream" &  # until the job has ended
wait_for 60 "its steps" step_is "$job" 10
same "$(where "$job")" "workers-1 workers-2" "where it runs"
says "$job" "2 ranks reduce over net" >/dev/null || fail "no event says how they reduce: $(get "/v1/jobs/$job/events")"
says "$job" "worker workers-2 on" >/dev/null || fail "no event says that worker-2 has a volume of its own: $(get "/v1/jobs/$job/events")"
get "/v1/jobs/$job/plan" | jq -e '.buckets | length > 0' >/dev/null || fail "no plan"
get "/v1/jobs/$job/diagnosis" | jq -e .verdict >/dev/null || fail "no diagnosis"
get "/v1/jobs/$job/series?name=loss" | jq -e '.series[0].points | length > 0' >/dev/null || fail "no series"
logs=$(get "/v1/jobs/$job/logs")
[ -n "$logs" ] || fail "no logs"
get "/v1/jobs/$job/timeline?steps=last:2&format=trace" | jq -e '.traceEvents | length > 0' >/dev/null || fail "no timeline"
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
moved() { [ "$(field "$job" '"\(.state) \(.restarts)"')" = "running 1" ] && [ "$(where "$job")" = workers-1 ]; }
wait_for 120 "the job in the other container" moved
podman start "${names[2]}" >/dev/null
wait_for 60 "workers-2" worker_is_there workers-2
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
