#!/usr/bin/env bash
# What a job's ranks hold in memory, foretold before it runs, against what the system counts: proportional set sizes of
# trainers while they train and save, the largest, less those of a job of the same kind that is next to nothing. Of programs
# as they are shipped: sanitizers have memory of their own.
. "$(dirname "$0")/lib.sh"

start_coordinator main "$run/data"
GRADSYNC_EARLY_UPDATES=1 start_worker agent 2
job_of() { # NAME WIDTH REDUCER [PRECISION]
  printf '{"name":"%s","world":{"min":2,"max":2,"threads_per_rank":1},"data":{"kind":"synthetic","micro_batch":8},
    "model":{"kind":"mlp","precision":"%s","mlp":{"dims":[64,%s,%s,10]}},"optimizer":{"kind":"adamw"},"reducer":{%s},
    "checkpoint":{"every_steps":4,"keep_last":1},"steps":{"target":100000}}' "$1" "${4-fp32}" "$2" "$2" "$3"
}
pss() { awk '/^Pss:/ { print $2 * 1024 }' "/proc/$1/smaps_rollup"; }
has_saved() { get "/v1/jobs/$1/checkpoints" | jq -e '.items | length > 0'; }
# The most that a rank of the job holds at any of ten looks or more, while it takes ten steps and so saves twice at least.
peak_of() { # JOB
  local most=0 looks=0 from pid held
  from=$(job_field "$1" .progress.step)
  while [ $((looks++)) -lt 10 ] || ! step_at_least "$1" $((from + 10)); do
    [ "$looks" -lt 1000 ] || fail "no steps while it is looked at"
    for pid in $(trainer_pids "$1"); do
      held=$(pss "$pid")
      [ "$held" -le "$most" ] || most=$held
    done
    sleep 0.05
  done
  echo "$most"
}
# measure WIDTH REDUCER [PRECISION]: sets foretold, undo and held, of the rank that holds more.
measure() {
  request POST '/v1/jobs?dry_run=true' "$(job_of ahead "$@")"
  same "$status" 200 "dry run: $(head -c 300 "$run/body")"
  foretold=$(body '[.memory.ranks[].total_bytes] | max')
  undo=$(body '.memory.ranks | max_by(.total_bytes).undo_bytes')
  same "$(body '.memory | "\(.device) \(.not_counted)"')" "cpu []" "device, not counted"
  submit "$(job_of "held-$((++num_jobs))" "$@")"
  wait_for 60 "a checkpoint of $job" has_saved "$job"
  held=$(peak_of "$job")
  request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
  await "$job" cancelled 30
}
num_jobs=0

measure 8 '"sharding":"none"'
base=$((held - foretold))
# expect BYTES: of the last measured job.
expect() {
  off=$((held - base - $1))
  echo "  foretold $(($1 >> 20)) MiB, held $(((held - base) >> 20)) MiB"
  [ "${off#-}" -le $(($1 / 50 + (16 << 20))) ] || fail "$((held - base)) bytes held, $1 foretold"
}
near() { # REDUCER [PRECISION]
  claim "{$1} ${2-fp32}: within 2 % and 16 MiB of what was foretold"
  measure 3000 "$@"
  expect "$foretold"
}
for reducer in '"sharding":"none"' '"sharding":"optimizer"' '"sharding":"optimizer","partition":"oss"' \
  '"sharding":"gradients","bucket_cap_bytes":4194304' '"sharding":"optimizer","zero_overlap":"step"'; do
  near "$reducer"
done
near '"sharding":"optimizer"' bf16

claim "where updates come at the end nothing is kept of what they replace, and the log says so"
kill "$worker_pid" && wait "$worker_pid" || true
GRADSYNC_EARLY_UPDATES=0 start_worker late 2
measure 3000 '"sharding":"optimizer","zero_overlap":"step"'
[ "$undo" -gt $((64 << 20)) ] || fail "the most that there can be is $undo bytes"
expect $((foretold - undo))
says_why() { get "/v1/jobs/$1/logs?rank=all" | grep -c 'updates come at the end of steps.*GRADSYNC_EARLY_UPDATES is 0'; }
same "$(says_why "$job")" 2 "lines of two ranks"
