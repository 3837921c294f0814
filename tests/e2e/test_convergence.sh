#!/usr/bin/env bash
# What PowerSGD costs in what is learned: a byte-level GPT on two ranks, three seeds, the same steps each. With error
# feedback the loss on text that no rank trained on is that of plain sums within 2 %; without it the gap is at least three
# times as large. There a gap below 0.2 %, or a gain, counts as 0.2 %.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
export OPENBLAS_NUM_THREADS=1

# The words of this project; each tenth passage is kept for the evaluation.
cat "$here"/../../docs/*.md | awk -v to="$run/root" '{ print > (to "/" (int(NR / 8) % 10 == 9 ? "unseen" : "seen") ".txt") }'

start_coordinator main "$run/data"
start_worker agent 2
powersgd='"kind":"powersgd","rank":2,"start_step":10'

# learned HOOK SEED: sets loss, of unseen text after the last step.
learned() {
  submit '{"name":"learns","world":{"min":2,"max":2,"threads_per_rank":1},
    "model":{"kind":"gpt2","seed":'"$2"',"gpt2":{"layers":2,"heads":2,"channels":32,"context":32,"vocab":256}},
    "data":{"kind":"bytes","train":["seen.txt"],"eval":["unseen.txt"],"micro_batch":8,"shuffle_seed":'"$2"',
      "eval_every_steps":500,"eval_batches":30},
    "optimizer":{"kind":"sgd","lr":2,"grad_clip_norm":0.5,"schedule":{"kind":"cosine","final_ratio":0.02}},
    "reducer":{"hook":{'"$1"'}},"steps":{"target":500}}'
  await "$job" succeeded 200
  loss=$(job_field "$job" .latest.eval_loss)
}

claim "PowerSGD with error feedback learns what plain sums learn, and much less without"
for seed in 1 2 3; do
  learned '"kind":"allreduce"' "$seed"
  plain=$loss
  learned "$powersgd"',"error_feedback":false' "$seed"
  bare=$loss
  learned "$powersgd" "$seed"
  echo "$plain $loss $bare" | tee -a "$run/losses"
done
get "/v1/jobs/$job/plan" | jq -e '.total_wire_bytes * 9 < .total_bytes' >/dev/null || fail "what is sent: $(get "/v1/jobs/$job/plan")"
awk '{ plain += $1; fed += $2; bare += $3 }
  END {
    gap = fed / plain - 1; lost = bare / plain - 1
    printf "loss %.3f; with feedback %+.2f %%, without %+.2f %%\n", plain / NR, 100 * gap, 100 * lost
    exit !(plain / NR < 3.2 && gap <= 0.02 && lost >= 3 * (gap > 0.002 ? gap : 0.002))
  }' "$run/losses" || fail "the gaps"
