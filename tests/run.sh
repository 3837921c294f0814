#!/usr/bin/env bash
# Installs what is missing, builds and runs every test that this machine can run.
#   tests/run.sh [--quick]     --quick: the dev preset only, without end-to-end tests
# Presets: dev (ASan, UBSan, failpoints): unit, multi-process, fault, fuzz replays, lint; tsan: unit and
# multi-process; release: end-to-end and conformance. GPU and container tests skip by name.
# With the headers of CUDA and NCCL: cuda-sim, the tests of the device's half on a software machine. With nvcc as
# well: cuda, the product and the kernels' tests compiled for every device they are meant for, and the product run
# as on a host without one. Both are skipped by name without them.
set -uo pipefail
cd "$(dirname "$0")/.."
quick=0
[ "${1:-}" = --quick ] && quick=1

deploy/install-deps.sh build test || exit 1
# Containers are tested where they can be; without them that test skips by name.
[ $quick -eq 1 ] || deploy/install-deps.sh containers || echo "no container tools: their test will skip"
# ThreadSanitizer cannot place its shadow under the address randomisation of newer kernels.
no_aslr=()
setarch "$(uname -m)" -R true 2>/dev/null && no_aslr=(setarch "$(uname -m)" -R)

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp:history_size=4}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export OPENBLAS_NUM_THREADS=1

passed=0 failed=0 skipped=0
failures=()
tally() {  # the JUnit file of one ctest run
  local file=$1 preset=$2
  [ -s "$file" ] || { failures+=("$preset: no test ran"); failed=$((failed + 1)); return; }
  local p s f
  p=$(grep -c 'status="run"' "$file")
  s=$(grep -cE 'status="(notrun|disabled)"' "$file")
  f=$(grep -c 'status="fail"' "$file")
  passed=$((passed + p)) skipped=$((skipped + s)) failed=$((failed + f))
  while read -r name; do failures+=("$preset: $name"); done < <(
    grep 'status="fail"' "$file" | sed -E 's/.*name="([^"]+)".*/\1/')
}
run_tests() {  # preset, what to build, then ctest's selection
  local preset=$1 targets=$2; shift 2
  echo "== $preset: build"
  # shellcheck disable=SC2086
  deploy/build.sh "$preset" $targets || { failures+=("$preset: build"); failed=$((failed + 1)); return; }
  echo "== $preset: test"
  local junit=$PWD/build/$preset/junit.xml
  rm -f "$junit"
  "${no_aslr[@]}" ctest --test-dir "build/$preset" -j 2 --output-on-failure --no-tests=error \
    --output-junit "$junit" "$@" 2>&1 | grep -vE '^ *(Start|Test project|[0-9]+/[0-9]+ .*Passed)|^$'
  tally "$junit" "$preset"
}

run_tests dev all -LE e2e
if [ $quick -eq 0 ]; then
  run_tests tsan all -L 'unit|multiprocess'
  run_tests release all -L 'e2e|conformance'
fi

# Where the toolkit is: nvcc's own, or the usual place.
cuda_root=${CUDA_HOME:-/usr/local/cuda}
nvcc=$(command -v nvcc || true)
[ -n "$nvcc" ] && cuda_root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
has_header() {
  local folder
  for folder in "${NCCL_HOME:-$cuda_root}/include" "$cuda_root/include" /usr/include /usr/local/include; do
    [ -e "$folder/$1" ] && return
  done
  return 1
}
skip() { echo "skipped: $1"; skipped=$((skipped + 1)); }
if [ $quick -eq 0 ]; then
  if ! has_header cuda_runtime_api.h || ! has_header nccl.h; then
    skip "cuda-sim, cuda: no headers of CUDA and NCCL in $cuda_root/include or /usr/include"
  else
    run_tests cuda-sim device_tests -L 'gpu|cuda_sim'
    # One architecture here: all of them cost two more minutes (CUDAARCHS='80-real;90-real;100' asks for them).
    if [ -x "$cuda_root/bin/nvcc" ]; then
      export CUDAARCHS=${CUDAARCHS:-90-real}
      # With a GPU as well: what runs on one is tests/gpu/run.sh.
      CUDA_VISIBLE_DEVICES=-1 run_tests cuda 'product gpu_kernels' -R '^(e2e_devices|gpu_kernels_.*)$'
    else
      skip "cuda: no nvcc in $cuda_root/bin"
    fi
  fi
fi

for failure in "${failures[@]:-}"; do [ -n "$failure" ] && echo "FAILED $failure"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
