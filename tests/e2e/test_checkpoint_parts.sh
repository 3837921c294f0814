#!/usr/bin/env bash
# A checkpoint whose parts all ranks write: the same state as one that rank 0 writes, and never half of one,
# whoever is killed and whichever disk is full.
. "$(dirname "$0")/lib.sh"

mkdir "$run/checkpoints"
start_coordinator main "$run/data" --checkpoints "$run/checkpoints"
http_address=${server#http://}
start_worker agent 3
quick_restart='"restart":{"backoff_initial_seconds":0.1,"backoff_max_seconds":0.2}'
exact_job() { # NAME PARTS EVERY DELAY_MS
  printf '{"name":"%s","exact":true,"logical_shards":6,"world":{"min":3,"max":3,"threads_per_rank":1},
    "model":{"kind":"mlp","mlp":{"dims":[32,64,10]}},"data":{"kind":"synthetic","micro_batch":2},"steps":{"target":60},
    "checkpoint":{"parts":"%s","every_steps":%s,"every_seconds":0,"keep_last":3},"debug":{"step_delay_ms":%s},%s}' "$1" "$2" "$3" "$4" "$quick_restart"
}
last() { get "/v1/jobs/$job/checkpoints" | jq -r ".items[0] | select(.step == 60 and .verified) | $1"; }
directories() { ls "$run/checkpoints/$job" | grep '^step-' || true; }
# Every directory is a checkpoint that is listed, and every one that is listed is there; what is superseded goes behind
# the end of a job.
listed() { get "/v1/jobs/$job/checkpoints" | jq -r '.items[].directory' | sort; }
lists_all() { [ "$(listed)" = "$(directories | sort)" ]; }
no_rubbish() {
  local name
  wait_for 30 "what is listed of $job: $(listed | tr '\n' ' '), and there: $(directories | tr '\n' ' ')" lists_all
  for name in $(directories); do
    [ -f "$run/checkpoints/$job/$name/MANIFEST.json" ] || fail "$name has no manifest"
    [ -z "$(find "$run/checkpoints/$job/$name" -name '*.tmp.*' -o -name 'part-*.json')" ] || fail "$name is not tidy"
  done
}
start_again() {
  rm -f "$run/main.ports"
  "$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$run/data" \
    --checkpoints "$run/checkpoints" --port-file "$run/main.ports" >>"$run/logs/main.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
  wait_for 30 "the coordinator again" curl -fsS "$server/readyz"
}
final_records() { find "$run/checkpoints/$job" -path '*step-0000000060-*' -name 'part-*.json' | wc -l; }
all_parts_there() { [ "$(final_records)" = 3 ]; }
final_manifest() { find "$run/checkpoints/$job" -path '*step-0000000060-*' -name MANIFEST.json | grep .; }

claim "parts of three ranks are the state that rank 0 writes in one"
submit "$(exact_job whole one 0 0)"
await "$job" succeeded 60
undisturbed=$(last .digest)
same "$(last .parts)" 1 "parts of one"
elsewhere=$(dirname "$(find "$run/checkpoints/$job" -name MANIFEST.json)")
submit "$(exact_job parted ranks 10 5)"
await "$job" succeeded 60
same "$(last .digest)" "$undisturbed" "digest of the state in parts"
same "$(last .parts)" 3 "parts"
no_rubbish
manifest=$(final_manifest)
jq -e '.format_version == 2 and (.parts | length == 3) and ([.parts[].bytes] | max - min < 4096) and
  ([.tensors[] | select(.ranges | length > 1)] | length > 0)' "$manifest" >/dev/null || fail "manifest: $(head -c 900 "$manifest")"
grep -q PARTS <<<"$("$bin/gradsync" checkpoints "$job")" || fail "the command line shows no parts"
request POST /v1/jobs "$(exact_job odd halves 0 0)"
same "$status" 422 "parts: halves"
grep -q '/checkpoint/parts' "$run/body" || fail "not named: $(cat "$run/body")"

claim "kill -9 of ranks while they save every step: the job ends with the same bits and no rubbish"
submit "$(exact_job killed ranks 1 150)"
regrouped() { [ "$(job_field "$job" .generation)" -gt "$generation" ] && { job_is "$job" running || job_ended "$job"; }; }
for step in 8 20; do
  wait_for 60 "step $step" step_at_least "$job" $step
  generation=$(job_field "$job" .generation)
  kill -9 "$(trainer_pids "$job" | tail -n 1)"
  wait_for 60 "the ranks again" regrouped
done
await "$job" succeeded 100
[ "$(job_field "$job" .restarts)" -ge 1 ] || fail "nobody was killed"
same "$(last .digest)" "$undisturbed" "digest after kills"
no_rubbish

claim "kill -9 of the coordinator between parts and manifest: the next one makes it"
submit "$(exact_job orphan ranks 0 100)"
wait_for 60 "its steps" step_at_least "$job" 5
kill -9 "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
wait_for 60 "the parts" all_parts_there
[ -z "$(final_manifest)" ] || fail "a manifest without a coordinator"
start_again
await "$job" succeeded 60
same "$(last .digest)" "$undisturbed" "digest after the coordinator was killed"
no_rubbish

claim "no coordinator at the end: rank 0 makes the manifest, and a later coordinator takes it"
submit "$(exact_job alone ranks 0 100)"
wait_for 60 "its steps" step_at_least "$job" 5
trainers=$(trainer_pids "$job")
kill -9 "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
wait_for 60 "the parts" all_parts_there
kill -TERM $trainers
wait_for 30 "the manifest" final_manifest
made=$(basename "$(dirname "$(final_manifest)")")
none_alive() { for pid in $trainers; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 30 "the end of the trainers" none_alive
# Newer, and none of its own: another job's, one that lies elsewhere, a pipe.
strange=("$run/checkpoints/$job"/step-000000007{0,1,2}-0badf00d)
cp -r "$elsewhere" "${strange[0]}"
ln -s "$elsewhere" "${strange[1]}"
mkdir "${strange[2]}"
mkfifo "${strange[2]}/part-0.json"
start_again
is_listed() { get "/v1/jobs/$job/checkpoints" | jq -e --arg made "$made" --arg digest "$undisturbed" \
  'any(.items[]; .directory == $made and .digest == $digest and .verified)'; }
wait_for 60 "the checkpoint that rank 0 made" is_listed
await "$job" succeeded 60
get "/v1/jobs/$job/events?limit=200" | jq -e 'any(.items[]; .message | test("starting 3 ranks from the checkpoint of step 60"))' \
  >/dev/null || fail "it started before it was known from what: $(get "/v1/jobs/$job/events?limit=200")"
[ "$(get "/v1/jobs/$job/checkpoints" | jq '[.items[] | select(.step != 60)] | length')" = 0 ] ||
  fail "what is not its own: $(get "/v1/jobs/$job/checkpoints")"
rm -r "${strange[@]}"
no_rubbish

claim "kill -9 of the coordinator that has heard of all parts and makes the manifest: the next one does"
kill "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
GRADSYNC_FAILPOINTS=checkpoint.commit=kill start_again
submit "$(exact_job heard ranks 0 5)"
is_dead_or_done() { ! kill -0 "$coordinator_pid" 2>/dev/null || job_ended "$job"; }
wait_for 60 "its end" is_dead_or_done
if kill -0 "$coordinator_pid" 2>/dev/null; then
  echo "  no failpoints in this build: left out"
else
  [ -z "$(final_manifest)" ] || fail "a manifest of a coordinator that was killed before it wrote one"
  start_again
  await "$job" succeeded 60
  same "$(last .digest)" "$undisturbed" "digest"
  no_rubbish
fi

claim "an error that passes while the coordinator makes the manifest: no part is lost"
kill "$coordinator_pid"
wait "$coordinator_pid" 2>/dev/null || true
GRADSYNC_FAILPOINTS=checkpoint.commit=error start_again
submit "$(exact_job passing ranks 0 0)"
await "$job" succeeded 60
is_taken() { get "/v1/jobs/$job/checkpoints" | jq -e --arg digest "$undisturbed" 'any(.items[]; .digest == $digest and .verified)'; }
wait_for 30 "the checkpoint" is_taken
get "/v1/jobs/$job/events?limit=200" | jq -e 'any(.items[]; .reason == "CheckpointFailed") | not' >/dev/null ||
  fail "events: $(get "/v1/jobs/$job/events?limit=200")"
no_rubbish

claim "parts that the coordinator does not see: the save fails with that reason, and training goes on"
kill "$worker_pid"
wait "$worker_pid" || fail "how the worker ended"
left() { ! worker_is agent connected; }
wait_for 30 "word of its end" left
"$bin/gradsync-worker" --coordinator "$control" --name blind --slots 3 --data-root "$run/root" \
  --checkpoints "$run/elsewhere" >>"$run/logs/blind.log" 2>&1 &
pids+=("$!")
wait_for 30 "worker blind" worker_is blind connected
submit "$(exact_job unseen ranks 0 0)"
await "$job" succeeded 60
get "/v1/jobs/$job/events?limit=200" | jq -e 'any(.items[]; .reason == "CheckpointFailed" and (.message | test("not seen here")))' \
  >/dev/null || fail "events: $(get "/v1/jobs/$job/events?limit=200")"
same "$(get "/v1/jobs/$job/checkpoints" | jq '.items | length')" 0 "checkpoints"

claim "a disk that has no room for two of three parts: the save fails, once, and training goes on"
mkdir "$run/checkpoints/small"
if mount -t tmpfs -o size=28k none "$run/checkpoints/small" 2>/dev/null; then
  # Lazily: its coordinator lives still, and holds a lock there.
  trap 'umount -l "$run/checkpoints/small"; finish' EXIT
  start_coordinator tight "$run/tight" --checkpoints "$run/checkpoints/small"
  start_worker tight-agent 3
  submit "$(exact_job tight ranks 30 0)"
  await "$job" succeeded 60
  same "$(get "/v1/jobs/$job/checkpoints" | jq '.items | length')" 0 "checkpoints"
  get "/v1/jobs/$job/events?limit=200" | jq -e '[.items[] | select(.reason == "CheckpointFailed")] | length == 2 and
    all(.[]; .message | test("\\(space\\)"))' >/dev/null || fail "events: $(get "/v1/jobs/$job/events?limit=200")"
  same "$(find "$run/checkpoints/small" -type f ! -name FENCE.json ! -name 'PLACE-*.json' ! -name 'COORDINATOR-*.lock' | wc -l)" 0 "files left"
else
  echo "  no tmpfs can be mounted here: left out"
fi
