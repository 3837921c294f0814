#!/bin/sh
# The coordinator under 100, 1,000 and 10,000 simulated workers: loop, CPU, memory, /metrics, flood, slow disk.
#
#   bench/control.sh [BUILD_DIR]      default build/release; needs a release build
#   WORKERS="100 1000" SECONDS_PER_PHASE=5 STEP_SECONDS=1 bench/control.sh
#
# When it fails it leaves its directory, with the coordinator's log, and says where.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
bench=$build/bin/bench_control coordinator=$build/bin/gradsync-coordinator
[ -x "$bench" ] && [ -x "$coordinator" ] || { echo "control.sh: $bench or $coordinator is not there; build it with: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/gradsync-control-XXXXXX")
export TMPDIR
ulimit -n "$(ulimit -Hn)"

echo "# jobs of 64 ranks; in, out: messages/s; loop: round trip of a control call, ms; CPU: % of one core"
echo "# http: median ms of GET /metrics, in slowdisk of POST /v1/jobs with 200 ms for each fsync; KiB: of /metrics"
echo "# flood: GET /v1/jobs answered per second; lost: connections; stepping: workers at the end"
echo "workers  phase           in       out  loop p50       p99       max    CPU   RSS MiB      http       KiB     flood   lost stepping"
for workers in ${WORKERS:-100 1000 10000}; do
  "$bench" "$coordinator" "$workers" "${SECONDS_PER_PHASE:-10}" "${STEP_SECONDS:-1}"
done
rm -rf "$TMPDIR"
