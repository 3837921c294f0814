#!/usr/bin/env bash
# How fast it is on this machine's GPU, in one run of under nine minutes, six with an archive: kernels beside the copy of the same run,
# matrix products, attention, GPT-2 with our trainer's parts and with PyTorch, the reducer's cost, how long a
# communicator and a first step take, and last what each way to the same results that is off (docs/gpu.md) makes of GPT-2.
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
[ $sim -eq 0 ] || patience=5 GRADSYNC_RUN_SECONDS=${GRADSYNC_RUN_SECONDS:-2400}  # limits that the time in all leaves room for
started=$SECONDS budget=${GRADSYNC_RUN_SECONDS:-$([ -n "${GRADSYNC_GPU_ARCHIVE:-}" ] && echo 360 || echo 525)}
. tests/gpu/machine.sh
find_device bench/gpu.sh
built='' why='' part_number=0 shown=1 steps_to_come=17
logs=${OUT:-$build}/bench-logs
mkdir -p "$logs" || exit
# shellcheck disable=SC2317
device_answers() { [ $sim -eq 1 ] || timeout 20 nvidia-smi -L >/dev/null 2>&1; }
# shellcheck source=tests/gpu/steps.sh
. tests/gpu/steps.sh
# What failed once more, behind what was measured, on every exit.
# shellcheck disable=SC2317
say_failures() {
  trap - EXIT
  end_step
  [ "$shown" -eq 1 ] || cat "$logs/part_$part_number.log"
  [ ${#failures[@]} -eq 0 ] || printf '# FAILED %s\n' "${failures[@]}" | tee "$logs/failures.txt"
  echo "# $((SECONDS - started)) s in all; logs: $logs"
}
trap say_failures EXIT
trap 'exit 130' INT TERM HUP

if ! find_libraries || { ! use_archive && { [ -z "${GRADSYNC_GPU_ARCHIVE:-}" ] || echo "# $why"; ! find_targets; }; }; then
  echo "bench/gpu.sh: $why" >&2
  exit 1
fi
grep -q '^GRADSYNC_SERVICE:BOOL=OFF' "$build/CMakeCache.txt" 2>/dev/null && service=OFF
targets=(bench_gpu_kernels gpu_nccl_ranks)
[ "$service" = OFF ] || targets+=(bench_gpu_train product)
current=build
if [ -z "$built" ] && ! limited 330 "$logs/build.log" bash -c "$(build_command "${targets[@]}")"; then
  echo "bench/gpu.sh: $build does not build within 330 s; the end of $logs/build.log:" >&2
  tail -n 20 "$logs/build.log" >&2
  exit 1
fi

echo "# $(date -u +%FT%TZ), commit $(say_commit)"
echo "# device: $device"
echo "# built: ${built:-here, CUDA compiler $(say_compiler)}"
fail_part() {
  failed=1
  failures+=("$1")
  echo "# $1"
  device_answers || { lost=1; failures=("the device no longer answers, behind: $1" "${failures[@]}"); }
}
# part LIMIT COMMAND…: a failure is said and the rest goes on, as long as there is a device.
part() {
  local limit code=0
  local log=$logs/part_$((++part_number)).log
  drop_steps 1
  limit=$(grant $(($1 * patience)))
  shift
  [ "$lost" -eq 0 ] || { echo "# not run, the device is lost: $*"; return 1; }
  [ "$limit" -gt 5 ] || { fail_part "not run, no time left: $*"; return 1; }
  current=$* shown=0
  limited "$limit" "$log" "$@" || code=$?
  cat "$log"
  shown=1
  case $code in
    0) return 0 ;;
    77) fail_part "found nothing to run on: $*" ;;
    *) fail_part "$(say_code $code "$limit"): $*: $(first_failure "$log")" ;;
  esac
  return 1
}
small=() train_124=(--model 124M) train_774=(--model 774M --rounds 3 --steps 6)
[ $sim -eq 0 ] || { small=(--small) train_124=(--model tiny --rounds 1 --steps 1) train_774=("${train_124[@]}"); }

echo "## Kernels (goal for reducer, optimizer and elementwise: at least 85 % of copy)"
part 90 "$build/bin/bench_gpu_kernels" "${small[@]}" bandwidth
echo "## Matrix products and attention"
part 60 "$build/bin/bench_gpu_kernels" "${small[@]}" matmul attention
peak=$(sed -n 's/^matmul bf16 .* \([0-9.]*\) TFLOP.*/\1/p' "$logs/part_2.log" | sort -g | tail -n 1)
echo "## GPT-2 (goals: 124M in bf16 at least 600000 tokens/s; 774M at least 60 % MFU; the reducer at most +1 %)"
if [ -x "$build/bin/bench_gpu_train" ]; then
  part 90 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision bf16 --peak "${peak:-0}"
  echo "## Kernel by kernel: one step of 124M without graphs (what is below some 10 us waits for the host)"
  part 60 env GRADSYNC_KERNEL_TIMES=0 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision bf16 --rounds 1 --steps 1
  echo "## 774M, other precisions"
  part 120 "$build/bin/bench_gpu_train" "${train_774[@]}" --precision bf16 --peak "${peak:-0}"
  part 60 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision tf32 --rounds 1 --steps 3
  echo "## optimizer.offload: the update with its state in the host's memory"
  part 60 "$build/bin/bench_gpu_train" "${train_124[@]}" --precision bf16 --rounds 1 --steps 3 --offload 1
else
  drop_steps 5
  echo "# skipped: bench_gpu_train needs the worker, which this build is without (GRADSYNC_SERVICE=OFF${missing[*]:+; not installed: ${missing[*]}})"
fi
echo "## PyTorch on the same GPU"
if ! "$python" -c 'import torch' 2>/dev/null; then
  drop_steps 1
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
echo "## A job over NCCL, $num_gpus ranks: seconds from the begin of the communicator to the end of the first step (goal: at most 3 s)"
if [ "$service" = ON ] && [ -x "$build/bin/gradsync-coordinator" ]; then
  job_size=(--layers 4 --batch 16)
  [ $sim -eq 0 ] || job_size=(--layers 1 --batch 2)
  part 90 bash -c 'set -o pipefail; tests/gpu/job.sh "$@" | grep -E "msg=.first step|^FAIL|^loss"' job "$build/bin" --precision bf16 --backend nccl --ranks "$num_gpus" --steps 20 "${job_size[@]}"
else
  drop_steps 1
  echo "# skipped: needs the service"
fi
echo "## Other ways to the same results, one at a time, beside none of them"
ways=(none GRADSYNC_CUDA_{SHARED_LOSS_ROWS,RESIDUAL_IN_PRODUCT,BIAS_GRAD_IN_PRODUCT,FACTOR_ON_DEVICE,CUDNN_ATTENTION}"=1"
  'GRADSYNC_MATMUL_CANDIDATES=32 GRADSYNC_MATMUL_WORKSPACE_MIB=128')
# Whatever else this was started with: none of them is on beside another.
for way in "${ways[@]:1}"; do
  read -ra words <<<"$way"
  unset "${words[@]%%=*}"
done
rates=() plain=''
rate_of() { sed -n 's/^train .* \([0-9.]*\) tokens\/s.*/\1/p' "$1" | tail -n 1; }
# try_way WAY: its tokens/s, and how many times that of none.
try_way() {
  local rate='' note='' words
  read -ra words <<<"${1#none}"
  if ! part 40 env "${words[@]}" "$build/bin/bench_gpu_train" "${train_124[@]}" --precision bf16 "${ways_size[@]}"; then
    rate=failed
  else
    rate=$(rate_of "$logs/part_$part_number.log")
    ! grep -q 'cuDNN does not take an attention' "$logs/part_$part_number.log" || note=', some attention on own kernels'
  fi
  [ "$1" != none ] || plain=$rate
  rates+=("$(awk -v way="${1//GRADSYNC_/}" -v rate="$rate" -v plain="$plain" -v note="$note" 'BEGIN {
    times = rate + 0 > 0 && plain + 0 > 0 ? sprintf(", %.3f times that of none", rate / plain) : ""
    text = rate + 0 > 0 ? rate " tokens/s" : rate == "failed" ? rate : "no number"
    print "way " way ": " text times note }')")
}
ways_size=(--rounds 2)
[ $sim -eq 0 ] || ways_size=(--rounds 1 --steps 1)
if [ -x "$build/bin/bench_gpu_train" ]; then
  for way in "${ways[@]}"; do
    if [[ $way == *CUDNN* ]] && ! has_cudnn; then
      drop_steps 1
      rates+=("way ${way#GRADSYNC_}: skipped: $why")
    else try_way "$way"; fi
  done
  printf '# %s\n' "${rates[@]}"
else
  drop_steps ${#ways[@]}
  echo "# skipped: bench_gpu_train needs the worker"
fi
exit $failed
