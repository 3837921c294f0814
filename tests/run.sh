#!/usr/bin/env bash
# Installs what is missing, builds and runs every test that this machine can run; what failed, what was skipped and
# where the time went is said last.
#   tests/run.sh [--quick]   --quick: the preset dev alone, without end-to-end tests
#   GRADSYNC_SEED=N          draws the part of the long tests that runs here (else the commit does); tests/long.sh
#                            runs all of them
#
# Phases, each with its preset:
#   asan     cuda-sim (dev where CUDA's headers are missing): ASan, UBSan, failpoints; everything on the CPU: unit,
#            multi-process, faults, fuzz replays, lint, and end-to-end with daemons under ASan
#   device   cuda-sim: the same build on the software CUDA machine; a test that finds no device there fails
#   release  release: end-to-end with containers and installation, conformance
#   tsan     tsan: what has threads: units, multi-process, and faults with the real coordinator
#   cuda     cuda-check, with nvcc alone: product and kernels' tests compiled for devices, run as on a host without one
# Of long tests asan draws three fifths, release a quarter and tsan a fifth, of those of devices three fifths run (tests/draw.py).
# While one phase is tested the next one is built, with what time the tests leave. A report of a sanitizer fails the
# run, whichever process wrote it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
quick=0
[ "${1:-}" = --quick ] && quick=1

deploy/install-deps.sh build test || exit 1
# Containers are tested where they can be; without them that test skips by name.
[ $quick -eq 1 ] || deploy/install-deps.sh containers || echo "no container tools: their test will skip"

results=$(mktemp -d)
builder=''
finish() {
  [ -z "$builder" ] || kill -- "-$builder" 2>/dev/null
  rm -rf "$results"
}
trap finish EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/sanitizers.sh
. tests/sanitizers.sh
export GRADSYNC_SEED=${GRADSYNC_SEED:-$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1)))}
# Ten of the random models of tests/long.sh for each world, which has 500.
export PROPERTY_FIRST=$((GRADSYNC_SEED % 491 + 1))
echo "seed $GRADSYNC_SEED (GRADSYNC_SEED=$GRADSYNC_SEED repeats what this run draws)"

# phase NAME PRESET TARGETS CTEST…: a line of the plan. What CTest selects holds no spaces. Without TARGETS it takes
# the build of the phase before it as it is: that one is being tested meanwhile.
set -f  # its patterns are not the shell's
names=() presets=() targets=() selections=()
phase() {
  names+=("$1") presets+=("$2") targets+=("$3")
  shift 3
  selections+=("$*")
}
skip() { echo "$1" >>"$results/skipped"; }

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
has_device_headers() { has_header cuda_runtime_api.h && has_header nccl.h; }

if [ $quick -eq 1 ]; then
  phase asan dev all -LE 'e2e|gpu'
else
  if has_device_headers; then
    phase asan cuda-sim all -LE 'gpu|cuda_sim|shipped'
    phase device cuda-sim '' -L 'gpu|cuda_sim'
  else
    phase asan dev all -LE 'gpu|shipped'
    skip "device, cuda: no headers of CUDA and NCCL in $cuda_root/include or /usr/include"
  fi
  # Tests that wait for networks and jobs leave much time: the longest build goes beside them.
  phase release release 'product library gradsync_shared_plain gradsync-conformance bench/all' -L 'e2e|conformance'
  phase tsan tsan 'product thread_tests' -L threads
  if has_device_headers; then
    # One architecture here: all of them cost two more minutes (CUDAARCHS='80-real;90-real;100' asks for them).
    export CUDAARCHS=${CUDAARCHS:-90-real}
    if [ -x "$cuda_root/bin/nvcc" ]; then
      phase cuda cuda-check 'product gpu_kernels' -R '^(e2e_devices|gpu_kernels_.*)$'
    else
      skip "cuda: no nvcc in $cuda_root/bin"
    fi
  fi
fi

# Behind the tests, so that none of them is late because of the next build; a busy machine still gets it built.
build_all() {
  local i code since
  for i in "${!names[@]}"; do
    since=$EPOCHREALTIME
    if [ -n "${targets[i]}" ]; then
      # shellcheck disable=SC2086  # words
      nice deploy/build.sh "${presets[i]}" ${targets[i]}
      code=$?
    fi >"$results/${names[i]}.build" 2>&1
    echo "$code $since $EPOCHREALTIME" >"$results/${names[i]}.built.part"
    mv "$results/${names[i]}.built.part" "$results/${names[i]}.built"
  done
}

test_phase() {
  local name=${names[$1]} preset=${presets[$1]} code since=$EPOCHREALTIME
  local reports=$results/$name.report selection=${selections[$1]} places=3
  # draw LABEL=PERCENT…: of what is labelled so; and one mode of the software machine.
  draw() {
    # shellcheck disable=SC2086  # words
    selection+=" -E $(tests/draw.py "$GRADSYNC_SEED" "build/$preset" "$1" $selection)"
  }
  echo "== $name: test"
  (
    case $name in
      asan)
        export CUDA_SIM_DEVICES=0  # as on a host without one
        [ $quick -eq 1 ] || draw sampled=60
        ;;
      device)
        export GRADSYNC_DEMAND_DEVICE=1 GRADSYNC_SAMPLE=5
        draw cuda_sim=60,gpu=60
        ;;
      release)
        places=5  # whole programs wait for deadlines and networks
        draw sampled=25
        ;;
      tsan) draw sampled=20 ;;
      cuda) export CUDA_VISIBLE_DEVICES=-1 ;;  # what runs on a GPU is tests/gpu/run.sh
    esac
    report_to "$reports"
    # More at once than there are cores: many wait most of their time. What computes takes several places (CMake).
    # shellcheck disable=SC2086  # words
    "${no_aslr[@]}" ctest --test-dir "build/$preset" -j $((places * $(nproc))) --output-on-failure --no-tests=error \
      --test-output-size-passed 65536 --output-junit "$results/$name.xml" $selection
  ) 2>&1 | grep --line-buffered -vE '^ *(Start|Test project|[0-9]+/[0-9]+ .*Passed)|^$'
  code=${PIPESTATUS[0]}
  echo "$code $since $EPOCHREALTIME" >"$results/$name.tested"
}

set -m
build_all &
builder=$!
set +m
for i in "${!names[@]}"; do
  echo "== ${names[i]}: build (preset ${presets[i]})"
  while [ ! -e "$results/${names[i]}.built" ]; do
    kill -0 "$builder" 2>/dev/null || { echo "the builder is gone"; break; }
    sleep 0.5
  done
  cat "$results/${names[i]}.build"
  if read -r code _ <"$results/${names[i]}.built" && [ "$code" -eq 0 ]; then test_phase "$i"; fi
done
# It has ended, and its number may be another's by now.
wait "$builder" 2>/dev/null
builder=''
tests/summary.py "$results" "${names[@]}"
