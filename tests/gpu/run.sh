#!/usr/bin/env bash
# Everything about GPUs that can be shown on a machine with one: builds for it, runs each test with a time limit
# of its own, prints a table last. Under nine minutes on 16 cores, six with an archive. Exit code 0: nothing failed; 77: no device.
#
#   tests/gpu/run.sh [--sim] [--build DIR]
#     --sim        against the software machine of tests/cuda_sim, small, as a rehearsal of this script
#     --build DIR  where to build (default build/gpu, build/gpu-sim)
#   GRADSYNC_GPU_ARCHIVE=FILE  what tests/gpu/archive.sh has made elsewhere; where it starts nothing is built
#   OUT=DIR            logs and the table lie below it, in run-logs (else below the build folder)
#   GRADSYNC_DEBS=DIR  Debian packages that are unpacked below the build folder first, never installed
#
# Where libraries of the service are missing only the library is built (GRADSYNC_SERVICE=OFF), and the table says
# by name what was skipped for it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
sim=0 build=''
while [ $# -gt 0 ]; do
  case $1 in
    --sim) sim=1 ;;
    --build) build=${2:?--build needs a folder}; shift ;;
    *) sed -n '2,13p' "$0" >&2; exit 64 ;;
  esac
  shift
done
[ -n "$build" ] || { [ $sim -eq 1 ] && build=build/gpu-sim || build=build/gpu; }
[ $sim -eq 0 ] || patience=5 GRADSYNC_RUN_SECONDS=${GRADSYNC_RUN_SECONDS:-2400}  # limits that the time in all leaves room for
started=$SECONDS budget=${GRADSYNC_RUN_SECONDS:-$([ -n "${GRADSYNC_GPU_ARCHIVE:-}" ] && echo 360 || echo 525)} built=''
. tests/gpu/machine.sh
find_device tests/gpu/run.sh
export GRADSYNC_DEMAND_DEVICE=1  # tests/support/test_device.h
logs=${OUT:-$build}/run-logs
mkdir -p "$logs" || exit

device_answers() {
  [ $sim -eq 1 ] || timeout 20 nvidia-smi -L >/dev/null 2>&1
}
# shellcheck source=tests/gpu/steps.sh
. tests/gpu/steps.sh
# On every exit, also where a signal ends this.
# shellcheck disable=SC2317
table() {
  trap - EXIT
  end_step
  {
    echo
    print_rows
    printf '\n%s\n' "$(date -u +%FT%TZ), $((SECONDS - started)) s in all"
    printf 'commit: %s\n' "$(say_commit)"
    printf 'device: %s\n' "$device"
    printf 'built: %s\n' "${built:-here, CUDA compiler $(say_compiler)}"
    printf 'NCCL: %s\n' "$(sed -n 's/^NCCL //p' "$logs"/NCCL*.log 2>/dev/null | head -n 1 | grep . || echo 'not found')"
    printf 'logs: %s\n' "$logs"
  } | tee "$logs/table.txt"
}
trap table EXIT
trap 'exit 130' INT TERM HUP
# Each skip and run takes one off; at the end none is left, so that every step had its share (tests/gpu/steps.sh).
steps_to_come=21

# ---- the build
if ! find_libraries; then
  fail_step libraries 0 "$why"
  exit 1
fi
if use_archive; then
  row archive ok - "$built"
  drop_steps 1
elif [ -n "${GRADSYNC_GPU_ARCHIVE:-}" ] && { echo "$why: building"; ! has nvcc; }; then
  fail_step archive 0 "$why, and there is no nvcc"
  exit 1
elif ! find_targets; then
  fail_step build 0 "$why"
  exit 1
fi
# Tests of the library and the trainer that run on a device as well, where cmocka is there.
[ "$service" = OFF ] || ! pkg-config --exists cmocka 2>/dev/null || targets+=(device_tests)
[ -n "$built" ] || run build 330 bash -c "$(build_command "${targets[@]}")" || exit 1
[ "$service" = ON ] || row "the service, its tests, quickstart" skipped - "not installed: ${missing[*]}"

# ---- tests
bin=$build/tests
as_gpu=(env GRADSYNC_TEST_DEVICE=cuda:0) draw=()
in_ctest() { run "$1" "$2" ctest --test-dir "$build" --output-on-failure --timeout $(($2 * patience)) -j 4 -L '^gpu$' "${@:3}"; }
ctest_has() { [ "$(ctest --test-dir "$build" -N -L '^gpu$' "$@" | sed -n 's/^Total Tests: //p')" != 0 ]; }

part=''
families=(attention matmul layernorm loss optim reduce embedding batchnorm activation elementwise low_rank quantize residuals)
[ $sim -eq 0 ] || { families=(loss quantize) draw=(--draw 6) part=GRADSYNC_SAMPLE=8; }  # all are CTest's: every thread is slow there
run_beside "kernels = CPU twins" 200 4 "${families[@]}" -- "$bin/gpu_kernels"
run "every kernel has a case" 10 "$bin/gpu_kernels" --slots
if [ $sim -eq 1 ]; then drop_steps 1; else run "products without cuBLASLt" 60 env GRADSYNC_OWN_PRODUCTS=1 GRADSYNC_CUBLASLT=/nonexistent "$bin/gpu_kernels" matmul; fi
if has_cudnn; then
  run "attention by cuDNN" 60 env GRADSYNC_CUDA_CUDNN_ATTENTION=1 ${part:+"$part"} "$bin/gpu_kernels" half_attention half_attention_backward
else skip "attention by cuDNN" "$why"; fi
if [ -x "$build/bin/gradsync-conformance" ]; then
  run "GPT-2 vectors, fp32" 90 "${as_gpu[@]}" "$build/bin/gradsync-conformance" gpt2 tests/golden/gpt2_tiny.safetensors
  run "MLP vectors, fp32" 120 "${as_gpu[@]}" "$build/bin/gradsync-conformance" "${draw[@]}" train-mlp tests/golden/ddp_mlp/*.safetensors
  run "MLP vectors, sharded" 60 "${as_gpu[@]}" "$build/bin/gradsync-conformance" train-mlp --sharded tests/golden/ddp_mlp/w?_adamw.safetensors
else
  skip "GPT-2 and MLP vectors" "not installed: $(printf '%s ' "${missing[@]}")$(pkg-config --exists cmocka 2>/dev/null || echo libcmocka)"
  drop_steps 2
fi
others='^gpu_kernels|^gpu_nccl|^conformance'
# in_archive PROGRAM…: those of them that are.
in_archive() {
  local program
  for program in "$@"; do [ ! -x "$bin/$program" ] || echo "$program"; done
}
if [ -n "$built" ]; then
  mapfile -t contract < <(in_archive gpu_{device,stream,graph} test_multiprocess_update_ahead)
  ! has_cudnn || mapfile -t -O ${#contract[@]} contract < <(in_archive gpu_cudnn_graph)
  if [ ${#contract[@]} -gt 0 ]; then
    # One after the other: the first looks at what is free of the GPU's memory.
    # shellcheck disable=SC2016
    run_beside "device contract" 150 1 "${contract[@]}" -- bash -c '"$0/$1"' "$bin"
  else skip "device contract" "not in this archive"; fi
  if [ -x "$bin/gpu_models" ]; then run gpu_models 120 "$bin/gpu_models"; else skip gpu_models "not in this archive"; fi
elif ctest_has -E "$others"; then
  drop_steps 1
  in_ctest "device contract, library, trainer" 200 -E "$others"
else
  drop_steps 1
  skip "device contract, library, trainer" "no such tests in this build (cmocka, or the service, is missing)"
fi
for ranks in 2 4; do
  run "NCCL, $ranks ranks on one GPU" 100 "$bin/gpu_nccl_ranks" sums $ranks
  run "NCCL, kill -9 of one of $ranks" 100 "$bin/gpu_nccl_ranks" kill $ranks
done
if [ -z "$built" ]; then drop_steps 1  # among CTest's
else
  mapfile -t nccl < <(in_archive test_nccl{,_sums,_life,_lanes,_faults,_failures,_library})
  # shellcheck disable=SC2016
  if [ ${#nccl[@]} -gt 0 ]; then run_beside "NCCL, library and lanes" 200 1 "${nccl[@]}" -- bash -c '"$0/$1"' "$bin"
  else skip "NCCL, library and lanes" "not in this archive"; fi
fi

# ---- the quickstart's job, on the GPU; and one over NCCL, of two ranks where there are two GPUs
if [ "$service" = ON ]; then
  size=(--layers 4 --batch 16 --steps 300)
  [ $sim -eq 0 ] || size=(--layers 1 --batch 2 --steps 12)
  for precision in fp32 bf16; do
    run "quickstart's job, $precision" 100 tests/gpu/job.sh "$build/bin" --precision $precision "${size[@]}"
  done
  run "a job over NCCL" 100 tests/gpu/job.sh "$build/bin" --precision bf16 --backend nccl --ranks "$num_gpus" "${size[@]}"
else
  skip "quickstart's job on the GPU" "not installed: ${missing[*]}"
  drop_steps 2
fi

# ---- compute-sanitizer, on small shapes
if [ $sim -eq 1 ]; then
  skip "compute-sanitizer" "needs a device"
  drop_steps 2
elif ! has compute-sanitizer; then
  skip "compute-sanitizer" "not installed"
  drop_steps 2
else
  checked() { run "$1 of the kernels" "$2" env GRADSYNC_TEST_SMALL=1 compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$bin/gpu_kernels" "${@:3}"; }
  checked memcheck 120
  checked racecheck 120 attention layernorm loss batchnorm matmul
  checked synccheck 60 attention layernorm
fi
[ "$lost" -eq 1 ] || [ "$steps_to_come" -eq 0 ] || fail_step "shares of the time" 0 "$steps_to_come steps are planned that do not come"
exit $failed
