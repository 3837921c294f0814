#!/usr/bin/env bash
# The data directory of version 0.1 (tests/golden/v0.1-7ff7b41), at another path: its jobs are there with their logs,
# metrics and checkpoints, and the one that was stopped half-way goes on and ends with the bits that 0.1 came to.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/v0.1-7ff7b41
[ "$(uname -m)" = x86_64 ] || { echo "SKIP: the bits are those of matrix products on x86-64"; exit 77; }
export OPENBLAS_CORETYPE=Prescott OPENBLAS_NUM_THREADS=1
expected() { jq -r ".$1" "$golden/expected.json"; }
ended=$(expected ended)
half=$(expected half)
cp -r "$golden/data" "$run/data"
loss_steps() { get "/v1/jobs/$1/series?name=loss&max_points=4096" | jq -c '[.series[0].points[][0]]'; }
schema_version() { python3 -c 'import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute("SELECT schema_version FROM meta").fetchone()[0])' "$1/gradsync.db"; }
num_lines() { curl -fsS -H 'Accept: application/x-ndjson' "$server/v1/jobs/$1/logs?rank=all&level=debug" | wc -l; }

claim "a data directory of version 0.1 opens: the job that had ended is there"
same "$(schema_version "$run/data")" 1 "version of its schema"
start_coordinator main "$run/data"
same "$(job_field "$ended" '"\(.name) \(.state) \(.progress.step)"')" "done succeeded 12" "job"
same "$(num_lines "$ended")" "$(wc -l <"$golden/data/jobs/$ended/log-0.ndjson")" "lines of its log"
[ "$(loss_steps "$ended" | jq 'max')" -ge 11 ] || fail "its losses: $(loss_steps "$ended")"
same "$(get "/v1/jobs/$ended/checkpoints" | jq -c '[.items[] | [.step, .verified // .state]] | length')" 1 "its checkpoints"

claim "it has the identity of a cluster from now on"
get /v1/system | jq -e '.cluster | test("^c-[0-9a-f]{16}$")' >/dev/null || fail "cluster: $(get /v1/system)"

claim "programs of before open it no more: its schema has another version from now on"
same "$(schema_version "$run/data")" 2 "version of its schema"

claim "so is the one that was stopped half-way"
same "$(job_field "$half" '"\(.name) \(.state) \(.progress.step)"')" "half queued $(expected step)" "job"
same "$(num_lines "$half")" "$(wc -l <"$golden/data/jobs/$half/log-0.ndjson")" "lines of its log"
same "$(get "/v1/jobs/$half/checkpoints" | jq '[.items[].step] | max')" "$(expected step)" "its newest checkpoint"
get "/v1/jobs/$half/events" | jq -e '[.items[].reason] | index("GenerationFormed")' >/dev/null || fail "its events"

claim "it goes on where it was, to the same bits"
start_worker agent 2
await "$half" succeeded 120
same "$(job_field "$half" .progress.step)" "$(expected target)" "step"
get "/v1/jobs/$half/events" | jq -e --arg words "checkpoint of step $(expected step)" \
  '[.items[].message | select(contains($words))] | length > 0' >/dev/null || fail "it did not begin from its checkpoint"
steps=$(loss_steps "$half")
jq -e '. == (. | unique)' <<<"$steps" >/dev/null || fail "steps are doubled: $steps"
[ "$(jq 'min' <<<"$steps")" -lt "$(expected step)" ] || fail "what version 0.1 wrote is lost: $steps"
checkpoint=$(find "$run/data/checkpoints/$half" -name MANIFEST.json -printf '%h\n' | sort -V | tail -n 1)
same "$(python3 "$here/training_digest.py" "$checkpoint")" "$(expected digest)" "digest of its last checkpoint"
stop_all() {
  kill -TERM "$worker_pid" "$coordinator_pid"
  wait "$worker_pid" "$coordinator_pid" || true
}
stop_all

golden=$here/../golden/v0.1-98af560
claim "a data directory of 98af560 opens: who had ended, who was forgotten and who was deleted"
cp -r "$golden/data" "$run/later"
same "$(schema_version "$run/later")" 1 "version of its schema"
start_coordinator later "$run/later" --keep-jobs 1
same "$(schema_version "$run/later")" 2 "version of its schema"
ended=$(expected ended)
half=$(expected half)
same "$(job_field "$ended" '"\(.name) \(.state) \(.progress.step) \(.spec.model.kind)"')" "done succeeded 12 mlp" "job"
same "$(num_lines "$ended")" "$(wc -l <"$golden/data/jobs/$ended/log-0.ndjson")" "lines of its log"
[ "$(loss_steps "$ended" | jq 'max')" -ge 11 ] || fail "its losses: $(loss_steps "$ended")"
for gone in forgotten deleted; do
  request GET "/v1/jobs/$(expected $gone)"
  same "$status" 404 "the job that was $gone"
done

claim "keys make no second job, but that of the one that was deleted"
# replay NAME: asks for it again with its key; what is refused or answered has made no job.
replay() {
  request POST /v1/jobs "$(mlp_job "$1" 12 2 ',"exact":true,"logical_shards":2,"checkpoint":{"keep_last":1}')" -H "Idempotency-Key: key-$1"
}
replay done
same "$status $(body .id)" "201 $ended" "the key of the job that had ended"
replay forgotten
same "$status $(body .code)" "409 wrong_state" "the key of the forgotten one"
same "$(get /v1/jobs | jq '.items | length')" 2 "jobs"
replay deleted
same "$status" 201 "the key of the deleted one"
[ "$(body .id)" != "$(expected deleted)" ] || fail "the deleted job is back"

claim "the one that trained goes on from its checkpoint, to the same bits"
start_worker agent 4
await "$half" succeeded 120
checkpoint=$(find "$run/later/checkpoints/$half" -name MANIFEST.json -printf '%h\n' | sort -V | tail -n 1)
same "$(python3 "$here/training_digest.py" "$checkpoint")" "$(expected digest)" "digest of its last checkpoint"
