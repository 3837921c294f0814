#!/usr/bin/env bash
# Builds the images with podman, starts coordinator and worker from them with deploy/compose.yaml, submits with
# curl, scrapes. Skips (77) by name where podman cannot run containers on a network of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { echo "SKIP containers: $*"; exit 77; }

command -v podman >/dev/null || skip "no podman (deploy/install-deps.sh containers)"
command -v podman-compose >/dev/null || skip "no podman-compose (deploy/install-deps.sh containers)"
command -v debootstrap >/dev/null || skip "no debootstrap"
[ "$(id -u)" -eq 0 ] || skip "needs root for debootstrap"

work=$(mktemp -d)
names=(gradsync-e2e_coordinator_1 gradsync-e2e_worker_1)
compose() { podman-compose -p gradsync-e2e -f deploy/compose.yaml "$@"; }
finish() {
  podman rm -f -t 0 "${names[@]}" >/dev/null 2>&1 || true
  podman volume rm -f gradsync-e2e_state >/dev/null 2>&1 || true
  podman network rm -f gradsync-e2e_default >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

# Where limits may not be raised, podman's defaults fail; runc accepts hybrid control groups.
if ! podman info >/dev/null 2>&1 || [ -z "${CONTAINERS_CONF:-}" ]; then
  printf '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]\n[engine]\nruntime = "runc"\n' >"$work/containers.conf"
  export CONTAINERS_CONF=$work/containers.conf
fi

base=localhost/gradsync-e2e-base
if ! podman image exists "$base"; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 5 "$work/debootstrap.log"; skip "debootstrap failed"; }
  tar -C "$work/root" -c . | podman import - "$base" >/dev/null 2>&1 || skip "podman import failed"
fi
podman run --rm "$base" true >"$work/run.log" 2>&1 || { tail -n 2 "$work/run.log"; skip "podman cannot run a container here"; }

for target in coordinator worker; do
  podman build --network host -q --build-arg BASE="$base" -f deploy/Containerfile --target "$target" \
    -t "gradsync-$target" . >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log"; exit 1; }
done

podman network create gradsync-e2e_probe >/dev/null 2>&1 || skip "podman cannot make a network here"
podman run --rm --network gradsync-e2e_probe "$base" true >"$work/run.log" 2>&1 || network_fails=1
podman network rm -f gradsync-e2e_probe >/dev/null 2>&1 || true
[ -z "${network_fails:-}" ] || { tail -n 2 "$work/run.log"; skip "containers get no network of their own here"; }

GRADSYNC_HTTP_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export GRADSYNC_HTTP_PORT
# The worker first: it has to wait for the coordinator by itself.
for service in worker coordinator; do
  compose up -d --no-build "$service" >"$work/up.log" 2>&1 || { tail -n 20 "$work/up.log"; exit 1; }
done
server=http://127.0.0.1:$GRADSYNC_HTTP_PORT
logs() { for name in "${names[@]}"; do podman logs "$name"; done; }
for _ in $(seq 100); do curl -fs "$server/readyz" >/dev/null 2>&1 && break; sleep 0.1; done
curl -fsS "$server/readyz" >/dev/null || { logs; exit 1; }

# What compose.yaml says about names and rights holds.
for host in "localhost:$GRADSYNC_HTTP_PORT" coordinator:8470; do
  curl -fsS -o "$work/out" -H "Host: $host" "$server/v1/jobs" || { echo "Host $host is refused"; exit 1; }
done
code=$(curl -sS -o "$work/out" -w '%{http_code}' -H 'Host: elsewhere.example' "$server/v1/jobs")
[ "$code" -ge 400 ] || { echo "another Host is served: $code"; exit 1; }
for name in "${names[@]}"; do
  podman inspect "$name" | jq -e '.[0] | .HostConfig.ReadonlyRootfs and (.EffectiveCaps // [] | length == 0)' >/dev/null ||
    { echo "$name may write its image, or has capabilities"; podman inspect "$name" | jq '.[0].EffectiveCaps'; exit 1; }
done

job=$(curl -sS -H 'Content-Type: application/json' -d '{
  "name": "in-containers", "world": {"min": 2, "max": 2},
  "model": {"kind": "gpt2", "gpt2": {"layers": 2, "heads": 2, "channels": 32, "context": 32, "vocab": 256}},
  "data": {"kind": "bytes", "train": "GPL-*"}, "steps": {"target": 50}}' "$server/v1/jobs" | jq -er .id) || { logs; exit 1; }
for _ in $(seq 300); do
  state=$(curl -sS "$server/v1/jobs/$job" | jq -r .state)
  case $state in succeeded | failed | cancelled) break ;; esac
  sleep 0.2
done
[ "$state" = succeeded ] || { curl -sS "$server/v1/jobs/$job" | jq .; logs; exit 1; }
metrics=$(curl -fsS "$server/metrics")  # whole, since a curl whose reader leaves early fails
grep -q "^gradsync_job_steps_total{job_id=\"$job\"} 50" <<<"$metrics" || { grep job_steps <<<"$metrics"; exit 1; }
curl -fsS "$server/v1/jobs/$job/checkpoints" | jq -e '.items | length > 0' >/dev/null

# SIGTERM ends both within their grace.
podman stop -t 20 "${names[@]}" >/dev/null
for name in "${names[@]}"; do
  code=$(podman inspect -f '{{.State.ExitCode}}' "$name")
  [ "$code" -eq 0 ] || { echo "$name ended with $code on SIGTERM"; podman logs "$name" | tail -n 20; exit 1; }
done
echo "containers: built, composed, trained, scraped, stopped"
