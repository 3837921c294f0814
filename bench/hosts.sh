#!/usr/bin/env bash
# Two levels beside one, between network namespaces whose links have a rate (tbf).
#
#   bench/hosts.sh [BUILD_DIR]      default build/release; needs a release build, ip and tc
#   HOSTS=2 RANKS=2 RATE=1gbit ROUNDS=7 LEAST=1024 MOST=26214400 bench/hosts.sh
#
# RATE= (empty): as fast as the machine is.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${GRADSYNC_NETWORK_WORLD:-}" ]; then
  world=(--net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" -eq 0 ] || world+=(--user --map-root-user)
  GRADSYNC_NETWORK_WORLD=1 exec unshare "${world[@]}" bash "$0" "$@"
fi
PATH=$PATH:/usr/sbin:/sbin
bench=${1:-build/release}/bin/bench_hosts
[ -x "$bench" ] || { echo "hosts.sh: $bench is not there; build it with: deploy/build.sh release bench_hosts" >&2; exit 1; }
rate=${RATE-1gbit}
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link add bridge type bridge
ip link set bridge up
hosts=()
for i in $(seq 1 "${HOSTS:-2}"); do
  ip netns add "h$i"
  ip link add "b$i" type veth peer name eth netns "h$i"
  ip link set "b$i" master bridge up
  ip -n "h$i" addr add "10.78.0.$i/24" dev eth
  ip -n "h$i" link set eth up
  ip -n "h$i" link set lo up
  [ -z "$rate" ] || ip netns exec "h$i" tc qdisc add dev eth root tbf rate "$rate" burst 256kb latency 50ms
  hosts+=("10.78.0.$i@/run/netns/h$i")
done
echo "# ${RANKS:-2} ranks on each of ${HOSTS:-2} hosts, links of ${rate:-any rate}"
"$bench" --ranks "${RANKS:-2}" --rounds "${ROUNDS:-7}" --least "${LEAST:-1024}" --most "${MOST:-26214400}" "${hosts[@]}"
