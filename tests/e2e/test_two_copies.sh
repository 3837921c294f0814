#!/usr/bin/env bash
# Two coordinators at once, one on a copy of the other's data directory, each with a worker of its own, over one directory of
# checkpoints: one of them commands, whichever was there first, and no number of a generation is given out twice.
# Row C7 of docs/faults.md.
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }

mkdir "$run/checkpoints"
own=(--checkpoints "$run/checkpoints")
training() { # NAME
  mlp_job "$1" 1000000 2 ',"exact":true,"restart":{"backoff_initial_seconds":0.1,"healthy_after_steps":1},"debug":{"step_delay_ms":20},"checkpoint":{"every_steps":20}'
}
# As a backup takes it, of a database that a coordinator writes to.
copy_to() { # DIRECTORY
  cp -r "$run/data" "$1"
  rm -f "$1"/gradsync.db* "$1"/coordinator.lock
  python3 -c 'import sqlite3, sys; a, b = sqlite3.connect(sys.argv[1]), sqlite3.connect(sys.argv[2]); a.backup(b); b.close()' \
    "$run/data/gradsync.db" "$1/gradsync.db"
}
# Numbers of before the copy's own reserve: what was given out behind it is above, as behind a thousand more generations.
forget_numbers() { # DIRECTORY LEAST
  python3 -c 'import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.execute("UPDATE meta SET generation_mark = ?", [int(sys.argv[2])]); base.commit()' \
    "$1/gradsync.db" "$2"
}
shared_files() { find "$run/checkpoints" -maxdepth 2 -type f -not -name ALIVE.json -exec sha256sum {} + | sort; }
who_runs() { echo "$(trainer_pids "$job" | sort | xargs) of generation $(job_field "$job" .generation)"; }
generations_saved() { find "$run/checkpoints/$job" -name MANIFEST.json -exec jq .generation {} + | sort -un | xargs; }
end_all() { # PID…, and waits for their end
  kill -9 "$@" 2>/dev/null || true
  all_ended() { for pid in "$@"; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }
  wait "$@" 2>/dev/null || true
  wait_for 30 "their end" all_ended "$@"
}
# A coordinator beside the one that is there, and a worker that knows it alone. Sets code.
begin_beside() { # NAME DATA_DIR
  local address
  address=tcp://127.0.0.1:$(draw_port)
  "$bin/gradsync-worker" --coordinator "$address" --name "of-$1" --slots 2 --data-root "$run/root" >>"$run/logs/of-$1.log" 2>&1 &
  local worker=$!
  pids+=("$worker")
  code=0
  timeout 60 "$bin/gradsync-coordinator" --http "127.0.0.1:$(draw_port)" --control "$address" --data-dir "$2" "${own[@]}" >>"$run/logs/$1.log" 2>&1 || code=$?
  end_all "$worker"
}
is_refused() { # NAME HOLDER
  same "$code" 73 "exit code of $1"
  grep -q "another coordinator of cluster c-[0-9a-f]* commands over the checkpoints in .*data directory $2 on " "$run/logs/$1.log" ||
    fail "it does not say who has them: $(tail -n 3 "$run/logs/$1.log")"
  ! grep -q "msg=\"ready\"\|WorkerJoined" "$run/logs/$1.log" || fail "somebody was welcomed"
  ! grep -q "trainer started" "$run/logs/of-$1.log" || fail "a trainer was started"
}

start_coordinator right "$run/data" "${own[@]}"
start_worker agent 3
submit "$(training long)"
wait_for 60 "a checkpoint" step_at_least "$job" 30
copy_to "$run/copy"
forget_numbers "$run/copy" "$(job_field "$job" .generation)"
first=$(job_field "$job" .generation)
kill -9 "$(trainer_pids "$job" | head -n 1)"
is_later() { [ "$(job_field "$job" .generation)" -gt "$1" ] && job_is "$job" running; }
wait_for 60 "a generation behind the copy" is_later "$first"
wait_for 60 "its steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + 30))

claim "a copy that is started beside the right one ends with 73, says who has the checkpoints, welcomes nobody and writes nothing there"
before=$(who_runs)
begin_beside copy "$run/copy"
is_refused copy "$run/data"
same "$(who_runs)" "$before" "who runs"
step=$(job_field "$job" .progress.step)
wait_for 60 "more steps" step_at_least "$job" $((step + 20))
same "$(job_field "$job" '"\(.state) \(.restarts)"')" "running 1" "state and restarts"

claim "the same while the right one is suspended, and nobody there is heard"
kill -STOP "$coordinator_pid"
marks=$(shared_files | grep -v "$job")
begin_beside copy-again "$run/copy"
same "$(shared_files | grep -v "$job")" "$marks" "marks and locks among the checkpoints"
kill -CONT "$coordinator_pid"
is_refused copy-again "$run/data"
same "$(who_runs)" "$before" "who runs"

claim "where the copy is there first, with a worker, it goes on above what was given out, and the right one is refused"
second=$(job_field "$job" .generation)
# shellcheck disable=SC2046  # words
end_all "$coordinator_pid" "$worker_pid" $(trainer_pids "$job")
start_coordinator copy-alone "$run/copy" "${own[@]}"
start_worker agent 3
wait_for 60 "a generation above" is_later "$second"
wait_for 60 "its checkpoint" eval '[ "$(generations_saved | wc -w)" -gt 1 ]'
before=$(who_runs)
begin_beside right-again "$run/data"
is_refused right-again "$run/copy"
same "$(who_runs)" "$before" "who runs"

claim "and when the right one is back alone, its numbers are above those of the copy"
third=$(job_field "$job" .generation)
# shellcheck disable=SC2046  # words
end_all "$coordinator_pid" "$worker_pid" $(trainer_pids "$job")
start_coordinator right-alone "$run/data" "${own[@]}"
start_worker agent 3
wait_for 60 "a generation above" is_later "$third"
[ "$third" -gt "$second" ] && [ "$second" -gt "$first" ] || fail "generations $first, $second, $third"
step=$(job_field "$job" .progress.step)
wait_for 60 "its steps" step_at_least "$job" $((step + 20))
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
