#!/usr/bin/env bash
# Ranks are killed, or suspended until they are given up, at drawn moments of a job that brings parts of its checkpoints over a slow
# line nearly all of the time: every checkpoint that is taken for whole is the one of an undisturbed job, and the job ends with its bytes.
#   GRADSYNC_SEED=N draws the same moments again
. "$(dirname "$0")/network.sh"

RANDOM=${GRADSYNC_SEED:-$SRANDOM}
echo "seed $RANDOM"
RANDOM=${GRADSYNC_SEED:-$RANDOM}
centre "$run/data"
route_all
mkdir "$run/own"
join away --checkpoints "$run/own"
join seen
steps=40
job_of() { # NAME
  printf '{"name":"%s","exact":true,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[256,1024,512,10]}},
    "data":{"kind":"synthetic","micro_batch":4},"optimizer":{"kind":"adamw"},"debug":{"step_delay_ms":150},"checkpoint":{"every_steps":2,"parts":"ranks","keep_last":100},
    "restart":{"max_restarts":100},"reducer":{"sharding":"optimizer","timeout_seconds":3},"steps":{"target":%s}}' "$1" "$steps"
}
# STEP DIGEST of all that count.
taken() { get "/v1/jobs/$1/checkpoints?limit=100" | jq -r '.items[] | select(.verified) | "\(.step) \(.digest)"' | sort -n; }
has_last() { taken "$job" | grep -q "^$steps "; }
every_byte() { # JOB: of its newest, whoever wrote it; a file's head names the run
  local file=$run/$1.safetensors
  gradsync checkpoints export "$1" "$file" >/dev/null || fail "the newest checkpoint of $1 cannot be read"
  tail -c +$(($(od -An -t u8 -N 8 "$file") + 9)) "$file" | sha256sum
}

claim "an undisturbed job"
submit "$(job_of whole)"
await "$job" succeeded 180
wait_for 60 "its last checkpoint" has_last
taken "$job" >"$run/wanted"
wanted=$(every_byte "$job")
[ "$(wc -l <"$run/wanted")" -ge 5 ] || fail "checkpoints: $(cat "$run/wanted")"

claim "nothing that was cut off counts, and the job ends with the same bytes"
submit "$(job_of hunted)"
kills=0 amid=0
pid_on() { get "/v1/jobs/$job/workers" | jq -r --arg worker "$1" '.items[] | select(.worker == $worker).pid // empty'; }
trains() { job_ended "$job" || job_is "$job" running; }
begun() { find "$run/data/checkpoints" -path "*/$job/step-*" -type d 2>/dev/null | while read -r one; do [ -e "$one/MANIFEST.json" ] || echo "$one"; done | wc -l; }
while [ "$kills" -lt 6 ] && ! job_ended "$job"; do
  wait_for 120 "ranks that train" trains
  sleep "$(printf '0.%03d' $((RANDOM % 700)))"
  victim=seen
  [ $((RANDOM % 3)) -eq 0 ] || victim=away
  pid=$(pid_on "$victim" 2>/dev/null || true)
  [ -n "$pid" ] || continue
  before=$(job_field "$job" .restarts)
  if [ $((kills % 3)) -eq 2 ]; then kill -STOP "$pid" 2>/dev/null || continue; else kill -KILL "$pid" 2>/dev/null || continue; fi
  [ "$(begun)" = 0 ] || amid=$((amid + 1))
  kills=$((kills + 1))
  restarted() { job_ended "$job" || [ "$(job_field "$job" .restarts)" -gt "$before" ]; }
  wait_for 120 "the next set of ranks" restarted
  kill -CONT "$pid" 2>/dev/null || true  # behind its successors
done
await "$job" succeeded 240
echo "  $kills hit, $amid of them where a checkpoint had begun and did not count yet"
[ "$kills" -ge 2 ] || fail "only $kills were hit"
wait_for 60 "its last checkpoint" has_last
taken "$job" >"$run/found"
# A save that is still on its way puts off the next, in either job: what both have of a step is the same.
awk 'NR == FNR { wanted[$1] = $2; next } $1 in wanted && wanted[$1] != $2' "$run/wanted" "$run/found" >"$run/wrong"
[ ! -s "$run/wrong" ] || fail "checkpoints of another state: $(cat "$run/wrong")"
common=$(awk 'NR == FNR { wanted[$1]; next } $1 in wanted' "$run/wanted" "$run/found" | wc -l)
[ "$common" -ge 3 ] || fail "only $common checkpoints of the same steps: $(cat "$run/found")"
same "$(every_byte "$job")" "$wanted" "every byte of the last one"
