#!/usr/bin/env bash
# A copy of a data directory that was taken while a job trained, from within the life that ran on: nothing in it says that it is old
# but the numbers of generations. It is started where the right one was, with the workers there, and where nobody is left of them.
# Row C7 of docs/faults.md. Keys are shown, so that what workers say counts with the proof that they were given, and no other.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }

# Beside the copies: what is on the disk of checkpoints no backup of a database takes along.
own=(--checkpoints "$run/checkpoints" --require-key)
mkdir "$run/checkpoints"
unset GRADSYNC_KEY
start_coordinator right "$run/data" "${own[@]}"
GRADSYNC_DATA_DIR=$run/data "$bin/gradsync" key new agent --role worker --out "$run/agent.key" 2>/dev/null
export GRADSYNC_KEY=$run/agent.key
http_address=${server#http://}
start_worker agent 3
training() { # NAME STEPS
  mlp_job "$1" "$2" 2 ',"exact":true,"restart":{"backoff_initial_seconds":0.1,"healthy_after_steps":1},"debug":{"step_delay_ms":20},"checkpoint":{"every_steps":20}'
}
end_coordinator() {
  kill "-$1" "$coordinator_pid" 2>/dev/null || true
  wait "$coordinator_pid" 2>/dev/null || true
}
# begin NAME DATA_DIR: another coordinator at the addresses of the one before.
begin() {
  rm -f "$run/$1.ports"
  "$bin/gradsync-coordinator" --http "$http_address" --control "$control" --data-dir "$2" "${own[@]}" \
    --port-file "$run/$1.ports" >>"$run/logs/$1.log" 2>&1 &
  coordinator_pid=$!
  pids+=("$coordinator_pid")
}
# Of a database at rest, or one that a coordinator writes to: as a backup takes it.
copy_to() { # DIRECTORY
  cp -r "$run/data" "$1"
  rm -f "$1"/gradsync.db*
  python3 -c 'import sqlite3, sys; a, b = sqlite3.connect(sys.argv[1]), sqlite3.connect(sys.argv[2]); a.backup(b); b.close()' \
    "$run/data/gradsync.db" "$1/gradsync.db"
}
sorted_pids() { trainer_pids "$job" | sort | xargs; }
trains_above() { [ "$(job_field "$job" .state)" = running ] && [ "$(job_field "$job" .generation)" -gt "$1" ]; }
# What was given out behind the copy reaches over what it has reserved, as behind a thousand more generations.
forget_numbers() { edit "$1" "UPDATE meta SET generation_mark = $2"; }
edit() { python3 -c 'import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.execute(sys.argv[2]); base.commit()' "$1/gradsync.db" "$2"; }
newest_saved() { find "$run/checkpoints/$job" -name MANIFEST.json | xargs -r cat | jq -s 'map(.position.step) | max // 0'; }
begin_well() { # NAME DATA_DIR
  begin "$1" "$2"
  wait_for 30 "$1" curl -fsS "$server/readyz"
  wait_for 30 "the worker" worker_is agent connected
}

submit "$(training long 1000000)"
wait_for 60 "steps" step_at_least "$job" 10
copy_to "$run/copy"
first=$(job_field "$job" .generation)
kill -9 "$(trainer_pids "$job" | head -n 1)"
wait_for 60 "another generation" trains_above "$first"
second=$(job_field "$job" .generation)
wait_for 60 "its steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + 30))
ranks=$(sorted_pids)
end_coordinator KILL

claim "on a copy that has not given out the generation that its worker runs the coordinator says so, starts and ends nothing, and ends with 65"
cp -r "$run/copy" "$run/short"
forget_numbers "$run/short" "$second"
begin short "$run/short"
has_ended() { ! kill -0 "$coordinator_pid" 2>/dev/null; }
wait_for 60 "its end" has_ended
code=0
wait "$coordinator_pid" || code=$?
same "$code" 65 "exit code"
grep -q "OldDatabase.*agent runs generation $second of job $job .*, and this database has given out none above" "$run/logs/short.log" ||
  fail "it does not say why: $(tail -n 3 "$run/logs/short.log")"
# shellcheck disable=SC2086  # words
kill -0 "$worker_pid" $ranks || fail "a worker or trainer has ended"
same "$(grep -c 'trainer started' "$run/logs/agent.log")" 4 "trainers that were started"

claim "behind it the right one has its job as it was: the same ranks in the same generation, and no restart for the copy"
before=$(newest_saved)
begin_well right "$run/data"
trains_on() { job_is "$job" running && step_at_least "$job" $((before + 20)); }
wait_for 60 "its job" trains_on
same "$(job_field "$job" '"\(.generation) \(.restarts) \(.lost_steps)"')" "$second 1 0" "generation, restarts and lost steps"
same "$(sorted_pids)" "$ranks" "its ranks"

claim "where all of the later generation are gone, a copy finds their fence, says so, and goes on above it from what they have saved"
kill -9 "$worker_pid"
are_over() { for pid in $ranks; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
wait_for 60 "the end of the trainers" are_over
end_coordinator KILL
saved=$(newest_saved)
forget_numbers "$run/copy" "$second"
begin copy "$run/copy"
wait_for 60 "the copy" curl -fsS "$server/readyz"
told() { grep -q "OtherDatabase.*generation $second of this cluster has trained" "$run/logs/copy.log"; }
wait_for 60 "word of the fence" told
start_worker agent 3
wait_for 60 "a generation above" trains_above $((second + 999999))
wait_for 60 "its steps" step_at_least "$job" $((saved + 10))
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
[ "$(newest_saved)" -gt "$saved" ] || fail "nothing was saved behind the fence"
