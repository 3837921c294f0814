#!/usr/bin/env bash
# A job on two hosts (network namespaces) whose link has a rate (tbf, no relay): tokens/s beside what the link allows.
#
#   bench/tokens.sh [BUILD_DIR]      default build/release; needs a release build, ip, tc, curl and jq
#   RATES="1gbit 10gbit" SECONDS_EACH=40 CHANNELS=384 THREADS=1 bench/tokens.sh
#
# The bound of a step: forward pass, optimizer and data as they are, and of the backward pass and the bytes of a rank, at the rate with
# what headers take of it, the longer one: bytes can travel no earlier than it begins. Means of rank 0 over the last half of the time; with
# the load, for two busy cores are not a quiet machine. PREFIX="chrt -f 10" puts ranks before all that is.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${GRADSYNC_NETWORK_WORLD:-}" ]; then
  world=(--net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" -eq 0 ] || world+=(--user --map-root-user)
  GRADSYNC_NETWORK_WORLD=1 exec unshare "${world[@]}" bash "$0" "$@"
fi
PATH=$PATH:/usr/sbin:/sbin
bin=$PWD/${1:-build/release}/bin
[ -x "$bin/gradsync-coordinator" ] || { echo "tokens.sh: nothing in $bin; build it with: deploy/build.sh release product" >&2; exit 1; }
mount -t tmpfs tmpfs /run
mkdir /run/netns
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ip link set lo up
ip link add bridge type bridge
ip addr add 10.79.0.1/24 dev bridge
ip link set bridge up
for i in 2 3; do
  ip netns add "h$i"
  ip link add "b$i" type veth peer name eth netns "h$i"
  ip link set "b$i" master bridge up
  ip -n "h$i" addr add "10.79.0.$i/24" dev eth
  ip -n "h$i" link set eth up
  ip -n "h$i" link set lo up
done
"$bin/gradsync-coordinator" --http 127.0.0.1:8470 --control tcp://0.0.0.0:8471 --insecure-no-auth --data-dir "$work/data" >"$work/coordinator.log" 2>&1 &
server=http://127.0.0.1:8470
for _ in $(seq 100); do curl -fsS "$server/readyz" >/dev/null 2>&1 && break; sleep 0.2; done
for i in 2 3; do
  # shellcheck disable=SC2086
  ip netns exec "h$i" ${PREFIX:-} "$bin/gradsync-worker" --coordinator tcp://10.79.0.1:8471 --name "w$i" --slots 1 --data-root "$work" \
    --checkpoints "$work/data/checkpoints" --data-address "10.79.0.$i" >"$work/w$i.log" 2>&1 &
done
for _ in $(seq 100); do [ "$(curl -fsS "$server/v1/workers" | jq '.items | length')" = 2 ] && break; sleep 0.2; done
spec() {
  printf '{"world":{"min":2,"max":2,"threads_per_rank":%s},"model":{"kind":"gpt2","gpt2":{"layers":4,"heads":6,"channels":%s}},
    "data":{"kind":"synthetic","micro_batch":%s},"steps":{"target":1000000},"reducer":{"backend":"net"}}' \
    "${THREADS:-1}" "${CHANNELS:-384}" "${BATCH:-4}"
}
metrics() { curl -fsS "$server/v1/jobs/$job/metrics" >"$1"; }
echo "# rate, load: step ms = data + forward + backward + exposed + optimizer; wire ms at the rate; tokens/s, bound, share"
for rate in ${RATES:-1gbit 10gbit}; do
  burst=256kb
  [ "$rate" = 1gbit ] || burst=5mb
  for i in 2 3; do ip netns exec "h$i" tc qdisc replace dev eth root tbf rate "$rate" burst "$burst" latency 50ms; done
  job=$(curl -fsS -H content-type:application/json "$server/v1/jobs" -d "$(spec)" | jq -r .id)
  sleep $((${SECONDS_EACH:-40} / 2))
  metrics "$work/first"
  sleep $((${SECONDS_EACH:-40} / 2))
  metrics "$work/last"
  curl -fsS "$server/v1/jobs/$job/plan" >"$work/plan"
  jq -rn --slurpfile first "$work/first" --slurpfile last "$work/last" --slurpfile plan "$work/plan" --arg rate "$rate" \
    --arg load "$(cut -d' ' -f1 /proc/loadavg)" '
    def ms: . * 10000 | floor / 10;
    ($first[0].ranks[0].totals) as $a | ($last[0].ranks[0].totals) as $b | ($b.steps - $a.steps) as $n |
    def each(f): (($b | f) - ($a | f)) / $n;
    ($rate | capture("(?<n>[0-9]+)gbit") | (.n | tonumber) * 1e9 / 8 * 1448 / 1538) as $bytes_per_second |
    each(.step_seconds) as $step | (each(.wire_bytes) / $bytes_per_second) as $wire |
    (each(.phases.data) + each(.phases.forward) + ([each(.phases.backward), $wire] | max) + each(.phases.optimizer)) as $bound |
    "\($rate), load \($load): \($step | ms) = \(each(.phases.data) | ms) + \(each(.phases.forward) | ms) + \(each(.phases.backward) | ms) + \(each(.phases.comm_exposed) | ms) + \(each(.phases.optimizer) | ms); \($wire | ms); \(each(.tokens) / $step | floor), \(each(.tokens) / $bound | floor), \($bound / $step * 1000 | floor / 1000)  # \($n) steps, \($plan[0].buckets | length) buckets, plan \($plan[0].reason), link \($plan[0].link.bytes_per_second.estimate / 1e6 | floor) MB/s"'
  curl -fsS -H content-type:application/json -X POST "$server/v1/jobs/$job/stop" -d '{"mode":"now"}' >/dev/null
  for _ in $(seq 100); do [ "$(curl -fsS "$server/v1/jobs/$job" | jq -r .state)" = cancelled ] && break; sleep 0.2; done
done
jobs -p | xargs -r kill 2>/dev/null || true
