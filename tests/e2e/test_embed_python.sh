#!/usr/bin/env bash
# examples/embed.py against the shared library as it is installed: Python's ctypes alone drives the reducer.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build=${GRADSYNC_BUILD_DIR:-$source_dir/build/release}
python3 -c 'import ctypes' 2>/dev/null || { echo "skipped: no python3 with ctypes"; exit 77; }
[ -z "${SANITIZE_FLAGS:-}" ] || { echo "skipped: a sanitizer would have to come with python3"; exit 77; }
[ -f "$build/lib/libgradsync.so" ] || { echo "skipped: $build has no libgradsync.so"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/prefix" --component library >"$work/install.log"
library=$(find "$work/prefix" -name libgradsync.so)

run_embed() {
  timeout 100 python3 "$source_dir/examples/embed.py" --library "$library" "$@" >"$work/out" 2>&1 || { cat "$work/out"; fail "embed.py $*"; }
}
# As a program finds it that was told nothing: by the number of its ABI.
LD_LIBRARY_PATH=$(dirname "$library") timeout 100 python3 "$source_dir/examples/embed.py" --ranks 3 >"$work/out" 2>&1 ||
  { cat "$work/out"; fail "embed.py with the library of its own choice"; }
for rank in 0 1 2; do grep -qx "rank $rank: exit 0: result loss 0.0000 weight 1.000 to 8.000 bias -1.000" "$work/out" || { cat "$work/out"; fail "rank $rank did not learn"; }; done
grep -qx 'the same on 3 ranks' "$work/out" || { cat "$work/out"; fail "ranks differ"; }
echo "== embed.py, a part of the optimizer on each rank"
run_embed --ranks 3 --shard
owned=(1 8 0)
for rank in 0 1 2; do
  grep -qx "rank $rank: exit 0: owns ${owned[rank]} of 9; result loss 0.0000 weight 1.000 to 8.000 bias -1.000" "$work/out" ||
    { cat "$work/out"; fail "rank $rank did not learn in parts"; }
done
grep -qx 'the same on 3 ranks' "$work/out" || { cat "$work/out"; fail "ranks differ in parts"; }
plain=$build/lib/plain/libgradsync.so
if [ -e "$plain" ]; then
  echo "== embed.py, without BLAS"
  nm -D --undefined-only "$plain" | grep -iE 'blas|gemm' && fail "a library without BLAS asks for it"
  run_embed --library "$plain"
  grep -qx 'the same on 2 ranks' "$work/out" || { cat "$work/out"; fail "ranks differ"; }
fi
run_embed --fault interrupt
grep -qx 'rank 0: exit 130: interrupted' "$work/out" || { cat "$work/out"; fail "Ctrl-C was not heard"; }
grep -qE '^Ctrl-C was heard after [12]?[0-9]\.' "$work/out" || { cat "$work/out"; fail "Ctrl-C was heard late"; }
run_embed --ranks 3 --fault die
for rank in 0 1; do grep -qE "^rank $rank: exit 1: failed ABORTED: .*rank 2 died; kind 2 step 10 accused \[2\]$" "$work/out" || { cat "$work/out"; fail "rank $rank does not name the dead one"; }; done
cat "$work/out"
