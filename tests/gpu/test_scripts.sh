#!/usr/bin/env bash
# tests/gpu/run.sh and bench/gpu.sh from their first line to their last as on a machine with a GPU, in seconds: nvidia-smi,
# compute-sanitizer, PyTorch and the programs of an archive are stand-ins that say they passed, fail, hang, or lose the device. What
# they prove is the scripts: with programs of ours they are rehearsed by `--sim` (tests/long.sh, device/scripts).
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d)
finish() {
  [ ! -s "$work/hung" ] || xargs kill <"$work/hung" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
said=$work/said
fail() { echo "FAILED: $*" >&2; tail -n 40 "$said" >&2; exit 1; }

# ---- the stand-ins. A file in $work named like a program, or like one of its words, says what that one does.
mkdir -p "$work/path" "$work/gradsync-gpu/bin" "$work/gradsync-gpu/tests"
cat >"$work/path/nvidia-smi" <<'SMI'
#!/bin/sh
[ ! -e "$STAND_INS/lost" ] || exit 15
case "$*" in
  -L) echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)' ;;
  *memory.total*nounits*) echo 143771 ;;
  *) echo 'NVIDIA H200, 143771 MiB, 580.65.06, 9.0' ;;
esac
SMI
cat >"$work/path/compute-sanitizer" <<'SANITIZER'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
exec "$@"
SANITIZER
cat >"$work/path/python-with-torch" <<'PYTHON'
#!/bin/sh
case "$*" in
  *'import torch') ;;
  bench/peer_gpt2.py*) echo '{"peer": "pytorch", "tokens_per_second": 1}' ;;
  *) exit 1 ;;
esac
PYTHON
cat >"$work/program" <<'PROGRAM'
#!/usr/bin/env bash
name=${0##*/}
asked=''
for variable in "${!GRADSYNC_CUDA_@}" "${!GRADSYNC_MATMUL_@}"; do asked+="$variable=${!variable} "; done
for word in "$name" "$@" $asked; do
  case $(cat "$STAND_INS/does-$word" 2>/dev/null) in
    fails) printf '%s\n' "begins" "FAIL $word: sums differ" "FAIL $word: more of it"; exit 1 ;;
    loses) touch "$STAND_INS/lost"; echo "FAIL the device is lost to this process"; exit 1 ;;
    hangs) echo "half of $word"; sleep 600 & echo "$!" >"$STAND_INS/hung"; wait ;;
  esac
done
echo "$asked$name $*" >>"$STAND_INS/calls"
case "$name $*" in
  gradsync-coordinator*)
    while [ "$1" != --port-file ]; do shift; done
    echo '{"http": "127.0.0.1:1", "control": "tcp://127.0.0.1:2"}' >"$2"
    exec sleep 60 ;;
  gradsync-worker*) exec sleep 60 ;;
  'gradsync list'*) echo job-1 ;;
  'gradsync logs'*) echo 'rank=0 msg="first step" seconds=1.2' ;;
  'gradsync metrics'*) printf '%s\n' '1 3.1' '2 1.1' ;;
  gpu_nccl_ranks*) echo 'NCCL 2.32.3' ;;
  bench_gpu_train*) echo "train 124M bf16, batch 64 x 1024: 100.00 ms a step, $([ -z "$asked" ] && echo 500000 || echo 600000) tokens/s, 1.0 TFLOP/s" ;;
  bench_gpu_kernels*) echo 'matmul bf16 4096x4096x4096: 0.2 ms (0.2), 700.1 TFLOP/s' ;;
esac
PROGRAM
chmod +x "$work"/path/* "$work/program"
programs=$(tests/gpu/archive.sh --programs)
for program in $programs; do ln "$work/program" "$work/gradsync-gpu/$program"; done
pack() { # CUDNN: its headers' version, or none
  printf 'commit: x\nservice: ON\ncudnn: %s\n' "$1" >"$work/gradsync-gpu/BUILT"
  tar -C "$work" -cf "$work/archive.tar" gradsync-gpu
}
pack 9.19
unset GRADSYNC_RUN_SECONDS GRADSYNC_DEBS GRADSYNC_CUBLASLT GRADSYNC_NCCL "${!GRADSYNC_CUDA_@}" "${!GRADSYNC_MATMUL_@}"
export GRADSYNC_CUDNN=$work/path/libcudnn.so.9
export STAND_INS=$work PATH=$work/path:$PATH PYTHON=python-with-torch GRADSYNC_GPU_ARCHIVE=$work/archive.tar OUT=$work/out
table=$work/out/run-logs/table.txt rows=$work/out/run-logs/rows.txt

# script CODE SCRIPT [WORD DOES]: runs it, with one stand-in told what to do.
script() {
  local wanted=$1 name=$2 code=0
  rm -rf "$work"/{does-*,lost,calls,hung,out}
  [ $# -lt 4 ] || echo "$4" >"$work/does-$3"
  "$name" --build "$work/build" >"$said" 2>&1 || code=$?
  [ $code -eq "$wanted" ] || fail "$name${3:+, where $3 $4}: exit code $code"
}
# Not one that only waits to be reaped.
runs() { grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null; }
# interrupt SIGNAL SCRIPT WORD: the same where a program hangs, and the script gets a signal once it does.
interrupt() {
  local signal=$1 name=$2 i=0
  rm -rf "$work"/{does-*,lost,calls,hung,out}
  echo hangs >"$work/does-$3"
  "$name" --build "$work/build" >"$said" 2>&1 &
  local script=$! code=0 since=$SECONDS
  until [ -s "$work/hung" ] || [ $((i += 1)) -gt 600 ]; do sleep 0.1; done
  [ -s "$work/hung" ] || fail "$name: $3 was never started"
  kill "-$signal" "$script"
  since=$SECONDS
  wait "$script" || code=$?
  [ $((SECONDS - since)) -le 10 ] || fail "$name hears SIG$signal after $((SECONDS - since)) s"
  [ "$signal" = KILL ] || [ $code -eq 130 ] || fail "$name ended by SIG$signal: exit code $code"
  [ "$signal" = KILL ] || ! runs "$(cat "$work/hung")" || fail "$name ended by SIG$signal leaves its step running"
}

# ---- all is well: each step runs, none is left out
script 0 tests/gpu/run.sh
! grep -E ' (FAILED|skipped|not run) ' "$table" || fail "run.sh leaves out, where nothing is amiss: $(cat "$table")"
[ "$(grep -cE ' ok +[0-9-]+' "$table")" -eq 21 ] || fail "run.sh has other steps than 21: $(cat "$table")"
for words in 'gpu_kernels attention layernorm$' 'gpu_kernels matmul$' '^GRADSYNC_CUDA_CUDNN_ATTENTION=1 gpu_kernels half_attention half_attention_backward' 'gpu_kernels residuals' 'gpu_stream' 'gpu_graph' 'gradsync-conformance train-mlp --sharded' 'gpu_nccl_ranks kill 4' 'gradsync submit'; do
  grep -q "$words" "$work/calls" || fail "run.sh does not run: $words"
done
tests_run=$(cat "$work/calls")
grep -q 'NCCL: 2.32.3' "$table" || fail "run.sh does not say which NCCL"
script 0 bench/gpu.sh
! grep -E 'FAILED|skipped|not run' "$said" || fail "bench/gpu.sh leaves out, where nothing is amiss"
[ "$(find "$work/out/bench-logs" -name 'part_*.log' | wc -l)" -eq 17 ] || fail "bench/gpu.sh has other parts than 17"
grep -q '^bench_gpu_train --model 124M --precision bf16 --peak 700.1' "$work/calls" || fail "bench/gpu.sh does not tell the measured peak"
for words in '"peer": "pytorch"' '^loss 3.1 to 1.1' 'first step' '^NCCL'; do
  grep -q "$words" "$said" || fail "bench/gpu.sh does not show: $words"
done

# Whatever an archive is made of is run by the one or the other; the API is the coordinator's own.
for program in $programs; do
  [[ $program == bin/gradsync-api ]] || grep -Eq "(^| )${program#*/}( |$)" "$work/calls" - <<<"$tests_run" ||
    fail "neither script runs: $program"
done

# Each way that a device may go (kernels/choice.c) is tried alone, beside none of them, also where one is on in the shell.
for variable in $(grep -o 'GRADSYNC_CUDA_[A-Z_]*' kernels/choice.c) 'GRADSYNC_MATMUL_CANDIDATES=32 GRADSYNC_MATMUL_WORKSPACE_MIB'; do
  grep -q "^$variable=[0-9]* bench_gpu_train .*--rounds 2$" "$work/calls" || fail "bench/gpu.sh does not try $variable: $(cat "$work/calls")"
  grep -q "^# way .*${variable##*GRADSYNC_}=.*: 600000 tokens/s, 1.200 times that of none$" "$said" || fail "bench/gpu.sh does not compare $variable"
done
grep -q '^# way none: 500000 tokens/s, 1.000 times' "$said" || fail "bench/gpu.sh has nothing to compare with"
export GRADSYNC_CUDA_FACTOR_ON_DEVICE=1
script 0 bench/gpu.sh
grep -q '^# way none: 500000 tokens/s' "$said" || fail "what is on in the shell is on beside each way"
unset GRADSYNC_CUDA_FACTOR_ON_DEVICE
# What the archive or the machine has not is skipped by name, not taken for tried.
pack none
script 0 bench/gpu.sh
grep -q "^# way CUDA_CUDNN_ATTENTION=1: skipped: the archive was built without" "$said" || fail "a way that is not there is not skipped by name"
script 0 tests/gpu/run.sh
grep -q "^attention by cuDNN  *skipped .*without cuDNN's headers" "$table" || fail "cuDNN is not skipped by name: $(cat "$table")"
pack 9.19
script 1 bench/gpu.sh GRADSYNC_CUDA_FACTOR_ON_DEVICE=1 fails
grep -q '^# way CUDA_FACTOR_ON_DEVICE=1: failed$' "$said" || fail "a way that fails has a number"

# ---- a failure stands first, with its own words, and the rest runs
script 1 tests/gpu/run.sh layernorm fails
grep -m 1 . "$table" | grep -q '^FAILED kernels = CPU twins: exit code 1: FAIL layernorm: exit code 1: FAIL layernorm: sums differ$' || fail "run.sh begins with: $(grep -m 1 . "$table")"
grep -q '^synccheck of the kernels  *FAILED' "$table" || fail "run.sh ends behind a failure"
[ "$(grep -c ' ok ' "$table")" -eq 18 ] || fail "a family that fails takes others with it: $(cat "$table")"
script 1 bench/gpu.sh attention fails
grep -q '^# FAILED exit code 1: .*FAIL attention: sums differ$' "$work/out/bench-logs/failures.txt" || fail "bench/gpu.sh does not say what failed"
[ "$(find "$work/out/bench-logs" -name 'part_*.log' | wc -l)" -eq 17 ] || fail "bench/gpu.sh ends behind a failure"

# ---- a lost device ends the run
script 1 tests/gpu/run.sh gpu_models loses
grep -m 1 . "$table" | grep -q '^FAILED the device no longer answers, behind: gpu_models$' || fail "run.sh begins with: $(grep -m 1 . "$table")"
[ "$(grep -c ' not run ' "$table")" -eq 11 ] || fail "run.sh goes on without a device: $(cat "$table")"
! grep -q gpu_nccl_ranks "$work/calls" || fail "a step runs without a device"
script 1 bench/gpu.sh matmul loses
[ "$(grep -c '^# not run, the device is lost' "$said")" -eq 15 ] || fail "bench/gpu.sh goes on without a device"
grep -q '^# FAILED the device no longer answers' "$said" || fail "bench/gpu.sh does not say that the device is lost"

# ---- ended from outside: what was found out is in $OUT, nothing runs on
interrupt TERM tests/gpu/run.sh gpu_device
grep -q '^FAILED device contract: ended with this run' "$table" || fail "run.sh ended by SIGTERM does not say in which step: $(cat "$table")"
grep -q '^kernels = CPU twins  *ok' "$table" || fail "run.sh ended by SIGTERM forgets what passed: $(cat "$table")"
grep -q 'half of gpu_device' "$work"/out/run-logs/of_gpu_device.log || fail "the log of the step that was ended is not there"
interrupt KILL tests/gpu/run.sh gpu_device
grep -q '^kernels = CPU twins  *ok' "$rows" || fail "run.sh ended by SIGKILL leaves nothing"
xargs kill <"$work/hung"
interrupt TERM bench/gpu.sh tf32
grep -q 'half of tf32' "$said" || fail "bench/gpu.sh ended by SIGTERM does not show what the part had measured"
grep -q '^# FAILED .*--precision tf32.* by a signal' "$work/out/bench-logs/failures.txt" || fail "bench/gpu.sh does not say what was ended"
echo "scripts: from first line to last, as promised"
