#!/usr/bin/env bash
# Workers without a shared volume: one sees the coordinator's checkpoints, the other has a directory of its own. The job says so when
# it starts, saves where it is seen, what only the other holds (parts, a sharded state) too, and after a kill the rank that has no
# checkpoint gets its state from the other; where nobody sees it, the job says so instead of starting again from nothing.
. "$(dirname "$0")/network.sh"

centre "$run/data"
route_all
sees() { gradsync doctor -o json | jq -e --arg worker "$1" --arg state "$2" 'any(.hosts[]; .worker == $worker and .checkpoints.state == $state)'; }
says() { get "/v1/jobs/$job/events?limit=500" | jq -e --arg reason "$1" --arg text "$2" 'any(.items[]; .reason == $reason and (.message | contains($text)))' >/dev/null; }
digest_of() { get "/v1/jobs/$job/checkpoints" | jq -er '.items[0] | select(.step == 150 and .verified).digest'; }
job_of() { # NAME STEP_DELAY_MS [MORE]
  printf '{"name":"%s","exact":true,"world":{"min":2,"max":2,"threads_per_rank":1},"model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":4},
    "optimizer":{"kind":"adamw"},"checkpoint":{"every_steps":25%s},"debug":{"step_delay_ms":%s},"steps":{"target":150}%s}' "$1" "${3:+,\"parts\":\"ranks\"}" "$2" "${4-}"
}

# By name the one without them would be rank 0.
mkdir "$run/own"
join away --checkpoints "$run/own"
away_pid=$worker_pid
join seen
seen_pid=$worker_pid
wait_for 30 "what workers see" sees away missing
wait_for 30 "what workers see" sees seen same

claim "rank 0 is where checkpoints are seen, and the job says who does not see them"
submit "$(job_of whole 0)"
await "$job" succeeded 90
same "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.rank == 0).worker')" seen "the worker of rank 0"
says CheckpointsNotShared "worker away on" || fail "events: $(get "/v1/jobs/$job/events?limit=500" | jq -c '[.items[] | {reason, message}]')"
wait_for 60 "its checkpoint" digest_of
wanted=$(digest_of)

exported() {
  local file=$run/$job.safetensors
  gradsync checkpoints export "$job" "$file" >/dev/null && tail -c +$(($(od -An -t u8 -N 8 "$file") + 9)) "$file" | sha256sum
}
precision_of() { case $1 in *gradients) jq -c '.model.precision = "bf16"' ;; *) cat ;; esac; }
# lives_through NAME [PARTS [MORE]]: as it goes on behind the death of the rank that sees no checkpoint. On a busy machine a job may be
# done before anybody is killed; then another is slower.
over() { [ "$(job_field "$job" .restarts)" = 1 ] || job_ended "$job"; }
lives_through() {
  local delay
  for delay in 40 200 800; do
    submit "$(job_of "$1" "$delay" "${2-}" "${3-}" | precision_of "$1")"
    has_saved() { get "/v1/jobs/$job/checkpoints" | jq -e 'any(.items[]; .step >= 25 and .verified)'; }
    wait_for 60 "its first checkpoint" has_saved
    kill -KILL "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.worker == "away").pid')" || continue
    wait_for 60 "the restart" over
    [ "$(job_field "$job" .restarts)" = 0 ] || break
  done
  await "$job" succeeded 120
  same "$(job_field "$job" .restarts)" 1 "restarts"
  wait_for 60 "its checkpoint" digest_of
}
claim "a rank that is killed where no checkpoint is comes back with the state of the other"
lives_through killed
same "$(digest_of)" "$wanted" "the state behind the kill"
same "$(job_field "$job" '.lost_steps // 0')" 0 "steps that were lost"

claim "parts that all ranks write are where they are seen"
lives_through parts ranks
same "$(digest_of)" "$wanted" "the state behind the kill, in parts"
same "$(get "/v1/jobs/$job/checkpoints" | jq -r '.items[0].parts')" 2 "parts"

# The second with masters that only their owner has, too.
for name in optimizer gradients; do
  claim "what only the other rank holds is saved where it is seen, and it comes back with it: sharding $name"
  more=',"reducer":{"sharding":"'$name'"}'
  submit "$(job_of "whole-$name" 0 ranks "$more" | precision_of "$name")"
  await "$job" succeeded 90
  wait_for 60 "its checkpoint" digest_of
  sharded=$(digest_of) bytes=$(exported)
  lives_through "killed-$name" ranks "$more"
  same "$(digest_of)" "$sharded" "the state behind the kill"
  same "$(exported)" "$bytes" "every byte of it, the optimizer's too"
  says RestoringCheckpoint "from the checkpoint of step" || fail "it began anew: $(get "/v1/jobs/$job/events?limit=500" | jq -c '[.items[] | {reason, message}]')"
  [ -z "$(find "$run/own" -name 'part-*')" ] || fail "parts in the directory that nobody sees: $(find "$run/own")"
done

claim "while nobody is there who sees the checkpoint that there is, the job waits and says so"
submit "$(job_of moved 70)"
has_checkpoint() { get "/v1/jobs/$job/checkpoints" | jq -e '.items | length > 0 and .[0].verified'; }
wait_for 60 "a checkpoint" has_checkpoint
kill -KILL "$seen_pid"
gone() { ! worker_is seen; }
wait_for 60 "the end of worker seen" gone
mkdir "$run/another"
join other --checkpoints "$run/another"
wait_for 30 "what workers see" sees other missing
waits() { [ "$(job_field "$job" .reason)" = CheckpointElsewhere ]; }
wait_for 60 "that it waits" waits
job_field "$job" .message | grep -q "no worker with a free slot sees the checkpoint of step" || fail "$(job_field "$job" .message)"

claim "a worker comes that sees it, and the job goes on from there at once, with rank 0 on it"
join returns
await "$job" succeeded 120
same "$(get "/v1/jobs/$job/workers" | jq -r '.items[] | select(.rank == 0).worker')" returns "the worker of rank 0"
wait_for 60 "its checkpoint" digest_of
same "$(digest_of)" "$wanted" "the state behind the wait"
