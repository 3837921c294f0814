#!/usr/bin/env bash
# How fast it is on this machine's GPU, in one run of under nine minutes: kernels beside the copy of the same run,
# matrix products, attention, GPT-2 with our trainer's parts and with PyTorch, the reducer's cost, and how long a
# communicator and a first step take.
#
#   bench/gpu.sh [--sim] [--build DIR]
#     --sim        tiny sizes on the software machine, as a rehearsal of this script: no number means anything
#     --build DIR  where to build (default build/gpu, build/gpu-sim: what tests/gpu/run.sh has built is taken)
#   PYTHON=python3
#   GRADSYNC_GPU_ARCHIVE, OUT   as tests/gpu/run.sh has them
# Exit code 77 without a device. Goals stand behind the numbers they are about.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
sim=0 build='' python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
  case $1 in
    --sim) sim=1 ;;
    --build) build=${2:?--build needs a folder}; shift ;;
    *) sed -n '2,12p' "$0" >&2; exit 64 ;;
  esac
  shift
done
[ -n "$build" ] || { [ $sim -eq 1 ] && build=build/gpu-sim || build=build/gpu; }
started=$SECONDS budget=${GRADSYNC_RUN_SECONDS:-525}
. tests/gpu/machine.sh
find_device bench/gpu.sh
mkdir -p "$build" || exit
built='' why=''
logs=${OUT:-$build}/bench-logs
mkdir -p "$logs" || exit
if ! find_libraries || { ! use_archive && { [ -z "${GRADSYNC_GPU_ARCHIVE:-}" ] || echo "# $why"; ! find_targets; }; }; then
  echo "bench/gpu.sh: $why" >&2
  exit 1
fi
grep -q '^GRADSYNC_SERVICE:BOOL=OFF' "$build/CMakeCache.txt" 2>/dev/null && service=OFF
targets=(bench_gpu_kernels gpu_nccl_ranks)
[ "$service" = OFF ] || targets+=(bench_gpu_train)
if [ -z "$built" ] && ! timeout -k 5 330 bash -c "$(build_command "${targets[@]}")" >"$build/bench-gpu-build.log" 2>&1; then
  echo "bench/gpu.sh: $build does not build within 330 s; the end of $build/bench-gpu-build.log:" >&2
  tail -n 20 "$build/bench-gpu-build.log" >&2
  exit 1
fi

echo "# $(date -u +%FT%TZ), commit $(say_commit)"
echo "# device: $device"
echo "# built: ${built:-here, CUDA compiler $(say_compiler)}"
failed=0
# part LIMIT COMMAND…: a failure is said and the rest goes on.
part() {
  local limit=$1 code=0 left=$((budget - SECONDS + started))
  shift
  [ "$left" -gt 5 ] || { echo "# not run, no time left: $*"; failed=1; return; }
  [ "$limit" -lt "$left" ] || limit=$left
  timeout -k 5 "$limit" "$@" 2>&1 | tee -a "$logs/parts.log"
  code=${PIPESTATUS[0]}
  case $code in
    0 | 77) ;;
    124) echo "# over its $limit s: $*"; failed=1 ;;
    *) echo "# exit code $code: $*"; failed=1 ;;
  esac
}
small=() train_124=(--model 124M) train_774=(--model 774M --rounds 3 --steps 6)
[ $sim -eq 0 ] || { small=(--small) train_124=(--model tiny --rounds 1 --steps 1) train_774=("${train_124[@]}"); }

echo "## Kernels (goal for reducer, optimizer and elementwise: at least 85 % of copy)"
part 90 "$build/bin/bench_gpu_kernels" "${small[@]}" bandwidth
echo "## Matrix products and attention"
part 60 "$build/bin/bench_gpu_kernels" "${small[@]}" matmul attention >"$logs/products.log"
cat "$logs/products.log"
peak=$(sed -n 's/^matmul bf16 .* \([0-9.]*\) TFLOP.*/\1/p' "$logs/products.log" | sort -g | tail -n 1)
echo "## GPT-2 (goals: 124M in bf16 at least 600000 tokens/s; 774M at least 60 % MFU; the reducer at most +1 %)"
if [ ${#targets[@]} -eq 3 ]; then
  part 90 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision bf16 --peak "${peak:-0}"
  part 120 "$build/bin/bench_gpu_train" "${train_774[@]}" --precision bf16 --peak "${peak:-0}"
  part 60 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision tf32 --rounds 1 --steps 3
else
  echo "# skipped: bench_gpu_train needs the worker, which this build is without (GRADSYNC_SERVICE=OFF${missing[*]:+; not installed: ${missing[*]}})"
fi
echo "## PyTorch on the same GPU"
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "# skipped: $python has no torch"
elif [ $sim -eq 1 ]; then
  part 60 "$python" bench/peer_gpt2.py --model tiny --positions 64 --micro-batch 2 --tokens-per-step 128 --steps 2 --warmup 1 --device cpu --no-compile
else
  # Its activations and fp32 logits at 64 sequences want more than 80 GB.
  memory_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  micro_batch=$([ "${memory_mib:-0}" -ge 120000 ] && echo 64 || echo 32)
  part 150 "$python" bench/peer_gpt2.py --model 124M --micro-batch "$micro_batch" --tokens-per-step 65536 --steps 20 --warmup 5 --device cuda
fi
echo "## NCCL: initialisation to the end of the first collective (goal: at most 3 s)"
part 60 "$build/tests/gpu_nccl_ranks" first 2
echo "# $((SECONDS - started)) s in all"
exit $failed
