#!/usr/bin/env bash
# Short training runs end with the bits that they have always ended with: the jobs of tests/golden/training, over
# HTTP, with the matrix products of one instruction set. A drawn part of them; GRADSYNC_RUNS says how many, `all`
# or a number, GRADSYNC_SEED which.
#   --record    writes the digests of all jobs, made by the programs in GRADSYNC_BIN_DIR, to standard output
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/training
grep -qw avx2 /proc/cpuinfo || { echo "SKIP: the digests are of AVX2's matrix products"; exit 77; }
export OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=1

for i in $(seq 600); do echo "the quick brown fox jumps over the lazy dog $((i % 10))"; done >"$run/root/text.txt"
for i in $(seq 6); do echo "a short part for the first rank $((i % 5))"; done >"$run/root/a.txt"
for i in $(seq 24); do echo "a longer one for the second rank $((i % 7))"; done >"$run/root/b.txt"

record=0
[ "${1-}" = --record ] && record=1
wanted=${GRADSYNC_RUNS:-12}
seed=${GRADSYNC_SEED:-$(git -C "$here" rev-parse --short=8 HEAD 2>/dev/null || date +%s)}
[ $record -eq 1 ] && wanted=all
if [ "$wanted" = all ]; then
  cp "$golden/jobs.jsonl" "$run/jobs"
else
  # By a digest of seed and job: each job is as likely as another (a text that repeats is no source for shuf).
  while read -r spec; do
    echo "$(sha256sum <<<"$seed $spec") $spec"
  done <"$golden/jobs.jsonl" | sort | sed -n "1,${wanted}s/^[^{]*//p" >"$run/jobs"
  echo "$wanted of $(wc -l <"$golden/jobs.jsonl") runs, GRADSYNC_SEED=$seed"
fi

# One of them once more, with the optimizer in its backward pass: the same bits.
if [ $record -eq 0 ]; then
  # Without `head`, which would leave while jq still writes.
  jq -nc 'first(inputs | select((.optimizer.grad_clip_norm // 0) == 0 and .reducer.op != "sample_mean" and .model.mlp.batch_norm != "sync"
           and (.world.replicas_per_process // 1) == 1) | .optimizer.in_backward = true | .name += "-in-backward")' \
    "$run/jobs" >"$run/early"
  cat "$run/early" >>"$run/jobs"
fi

start_coordinator main "$run/data" >&2
start_worker agent 4 >&2
[ $record -eq 1 ] || claim "training runs end with the bits that they have always had"
declare -A ids
while read -r spec; do
  submit "$spec"
  ids[$(jq -r .name <<<"$spec")]=$job
done <"$run/jobs"
bad=0
while read -r spec; do
  name=$(jq -r .name <<<"$spec")
  await "${ids[$name]}" succeeded 300
  checkpoint=$(find "$run/data" -path "*${ids[$name]}*" -name '*.safetensors' -printf '%h\n' | sort -V | tail -n 1)
  digest=$(python3 "$here/training_digest.py" "$checkpoint")
  if [ $record -eq 1 ]; then
    echo "$name $digest"
  elif [ "$(sed -n "s/^${name%-in-backward} //p" "$golden/digests.txt")" != "$digest" ]; then
    echo "$name ends with other bits ($digest): $spec" >&2
    bad=$((bad + 1))
  fi
done <"$run/jobs"
[ $bad -eq 0 ] || fail "$bad runs"
