#!/usr/bin/env bash
# D8: a disk on which a save takes longer than the time between two. What is due meanwhile is left out and counted, steps
# go on at their pace, and what is written in the end is a checkpoint. And one that hangs, while ranks bring their parts to the one
# that sees it.
. "$(dirname "$0")/lib.sh"
command -v "${CC:-cc}" >/dev/null || { echo "SKIP: no compiler"; exit 77; }
"${CC:-cc}" -D_GNU_SOURCE -O1 -shared -fPIC -o "$run/slow_disk.so" "$(dirname "$0")/../../bench/slow_disk.c"

start_coordinator c "$run/data"
LD_PRELOAD=$run/slow_disk.so BENCH_SLOW_DISK=$run/slow BENCH_HUNG_DISK=$run/hung GRADSYNC_PASS_ENVIRONMENT=BENCH_SLOW_DISK,BENCH_HUNG_DISK start_worker w 2
paced_job() { mlp_job "$1" 1000000 2 ",\"debug\":{\"step_delay_ms\":5},\"checkpoint\":{\"every_steps\":5,\"parts\":\"$2\",\"keep_last\":2}"; }
step_now() { job_field "$job" .progress.step; }
# Steps a second, while the disk is as it is. The pause is what is measured.
pace() {
  local from=$(step_now) begun=$EPOCHREALTIME
  sleep 2
  echo "$(step_now) $from $EPOCHREALTIME $begun" | awk '{ print ($1 - $2) / ($3 - $4) }'
}
has_checkpoint() { get "/v1/jobs/$job/checkpoints" | jq -e --argjson least "$1" '[.items[] | select(.verified) | .step] | max >= $least'; }
# What was left out is an event of the job, and counted.
left_out() { get /metrics | awk -v job="$job" '/^gradsync_checkpoint_failures_total\{/ && index($0, job) && /deadline/ { sum += $NF } END { print sum + 0 }'; }

for parts in one ranks; do
  claim "a disk that is slower than the cadence holds no step up ($parts)"
  submit "$(paced_job "paced-$parts" "$parts")"
  wait_for 60 "a checkpoint" has_checkpoint 5
  quick=$(pace)
  before=$(left_out)
  touch "$run/slow"
  wait_for 30 "a save that is left out" grep -q "checkpoint skipped.*$job" "$run/logs/"*.log "$run/data/jobs/$job/"log-*.ndjson
  # Waiting for each save, of at least a second, would leave five steps a second, whoever looks and however often; a machine
  # that is busy with other tests is slow at times.
  for look in $(seq 15); do
    slow=$(pace)
    echo "steps a second: $quick, with a slow disk $slow; left out: $before, then $(left_out)"
    ! awk -v slow="$slow" 'BEGIN { exit !(slow > 15) }' || break
    [ "$look" -lt 15 ] || fail "$slow steps a second, $quick before"
  done
  more_are_left_out() { [ "$(left_out)" -gt "$before" ]; }
  wait_for 30 "saves that are left out to be counted" more_are_left_out
  same "$(job_field "$job" .state)" running "the job"
  same "$(job_field "$job" .restarts)" 0 "restarts"
  at=$(step_now)
  wait_for 60 "a checkpoint that the slow disk took" has_checkpoint "$at"
  rm "$run/slow"
  request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
  await "$job" cancelled 60
done

claim "a disk that hangs while parts are brought holds no step up, and the next save has all of them"
mkdir "$run/own"
"$bin/gradsync-worker" --coordinator "$control" --name away --slots 1 --data-root "$run/root" --checkpoints "$run/own" >>"$run/logs/away.log" 2>&1 &
pids+=("$!")
wait_for 30 "worker away" worker_is away connected
submit "$(mlp_job brought 1000000 3 ',"debug":{"step_delay_ms":5},"reducer":{"sharding":"optimizer"},"optimizer":{"kind":"adamw"},"checkpoint":{"every_steps":5,"parts":"ranks","keep_last":2}')"
wait_for 60 "a checkpoint" has_checkpoint 5
find "$run/own" -name 'part-*' | grep . && fail "the part of the rank that is apart lies where nobody looks for it"
touch "$run/hung"
wait_for 30 "a save that is left out" grep -q "checkpoint skipped.*$job.*still write the last" "$run/logs/"*.log "$run/data/jobs/$job/"log-*.ndjson
from=$(step_now)
further() { step_at_least "$job" $((from + 100)); }
wait_for 30 "a hundred steps beside a disk that hangs" further
same "$(job_field "$job" .restarts)" 0 "restarts"
at=$(step_now)
rm "$run/hung"
wait_for 60 "a checkpoint of all parts" has_checkpoint "$at"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60
