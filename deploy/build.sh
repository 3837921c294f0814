#!/usr/bin/env bash
# Installs what the build needs and builds a preset; quiet when all is well.
#   deploy/build.sh [PRESET [TARGET…]]    (default: release, everything)
# Presets: CMakePresets.json. cuda needs nvcc 12.8 or later and nccl.h, cuda-sim the headers alone; neither needs a
# device, and both say so when something is missing. The toolkit is NVIDIA's and not installed here.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
deploy/install-deps.sh build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset "$preset" ${1:+--target "$@"} >"$log" 2>&1 || { grep -E 'error|FAILED|warning' "$log" >&2 || tail -n 40 "$log" >&2; exit 1; }
