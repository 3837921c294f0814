#!/usr/bin/env bash
# Compression and plans on a link of 1 Gbit/s, short and long, between two network namespaces.
#
#   bench/link.sh [BUILD_DIR]      default build/release; needs a release build, ip, tc and cc
#   RATE=125000000 DELAYS="50 5000" ROUNDS=9 bench/link.sh      bytes a second; µs, one way
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${GRADSYNC_NETWORK_WORLD:-}" ]; then
  world=(--net --mount --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" -eq 0 ] || world+=(--user --map-root-user)
  GRADSYNC_NETWORK_WORLD=1 exec unshare "${world[@]}" bash "$0" "$@"
fi
PATH=$PATH:/usr/sbin:/sbin
bench=${1:-build/release}/bin/bench_link
[ -x "$bench" ] || { echo "link.sh: $bench is not there; build it with: deploy/build.sh release bench_link" >&2; exit 1; }
mount -t tmpfs tmpfs /run
mkdir /run/netns
. tests/support/link/link.sh
for name in left right; do
  ip netns add "$name"
  ip -n "$name" link set dev lo up
done
link_world /run
link_line 1 left right
link_rate 1 "${RATE:-125000000}"
for delay in ${DELAYS:-50 5000}; do
  link_delay 1 "$delay"
  echo "# ${RATE:-125000000} bytes a second, $delay µs one way, load $(cut -d' ' -f1 /proc/loadavg)"
  "$bench" "${ROUNDS:-9}" 10.78.1.1@/run/netns/left 10.78.1.2@/run/netns/right
done
kill "${link_pids[1]}"
