#!/usr/bin/env bash
# The wall clock of one machine jumps by a day, back and forth: of the coordinator's, of the ranks', of both. Nothing is decided by
# it: the job goes on in its generation, no deadline passes, and what people are shown jumps.
#   GRADSYNC_RUNS  all: of each machine; else of one, which GRADSYNC_SEED draws
. "$(dirname "$0")/lib.sh"
command -v "${CC:-cc}" >/dev/null || { echo "SKIP: no compiler"; exit 77; }
"${CC:-cc}" -D_GNU_SOURCE -O1 -shared -fPIC -o "$run/wall_clock.so" "$(dirname "$0")/wall_clock.c"

day=86400
# turn FILE SECONDS: the clocks that read the file, from now on.
turn() { python3 -c 'import struct,sys; open(sys.argv[1], "r+b").write(struct.pack("<q", int(sys.argv[2])))' "$1" "$2"; }
for machine in centre host; do
  head -c 8 /dev/zero >"$run/$machine.wall"
done
who_runs() { echo "$(trainer_pids "$job" | sort | tr '\n' ' ')of generation $(job_field "$job" .generation), restarts $(job_field "$job" .restarts)"; }
finds_step() { wait_for 30 "more steps" step_at_least "$job" $(($(job_field "$job" .progress.step) + $1)); }
exact_job() { # NAME STEPS DELAY_MS
  mlp_job "$1" "$2" 2 ",\"exact\":true,\"debug\":{\"step_delay_ms\":$3},\"steps\":{\"target\":$2,\"deadline_seconds\":3600},\"checkpoint\":{\"every_seconds\":600},\"restart\":{\"window_seconds\":3600}" |
    jq -c .  # of two members of one name the last counts
}
tensors_of() { # JOB
  local newest
  newest=$(find "$run/data" -path "*/$1/step-*" -name MANIFEST.json | sort | tail -n 1)
  [ -n "$newest" ] || { echo none; return; }
  (cd "$(dirname "$newest")" && sha256sum part-*.safetensors | sha256sum)
}

start_worker_of() { # NAME SLOTS
  LD_PRELOAD=$run/wall_clock.so GRADSYNC_WALL_FILE=$run/host.wall GRADSYNC_PASS_ENVIRONMENT=GRADSYNC_WALL_FILE \
    "$bin/gradsync-worker" --coordinator "$control" --name "$1" --slots "$2" --data-root "$run/root" >>"$run/logs/$1.log" 2>&1 &
  pids+=($!)
  wait_for 30 "worker $1" worker_is "$1" connected
}
export LD_PRELOAD=$run/wall_clock.so GRADSYNC_WALL_FILE=$run/centre.wall
start_coordinator centre "$run/data"
unset LD_PRELOAD GRADSYNC_WALL_FILE
start_worker_of a 2
submit "$(exact_job through 100000 50)"
wait_for 60 "its steps" step_at_least "$job" 10
before=$(who_runs)

machines=("centre" "host" "centre host")
seed=${GRADSYNC_SEED:-$(git -C "$(dirname "$0")" rev-parse --short=8 HEAD 2>/dev/null || date +%s)}
[ "${GRADSYNC_RUNS:-1}" = all ] || machines=("${machines[$((0x$(sha256sum <<<"$seed" | head -c 4) % 3))]}")
for whose in "${machines[@]}"; do
  for seconds in $day $((-day)) 0; do
    claim "M12: the clock of $whose is off by $seconds s"
    for machine in $whose; do turn "$run/$machine.wall" "$seconds"; done
    sleep 0.5
    finds_step 10
    same "$(who_runs)" "$before" "who runs"
    same "$(job_field "$job" .state)" running "state"
    same "$(get /v1/workers | jq -r '.items[0].connected')" true "the worker"
  done
done

claim "what is shown follows the clock; what is decided does not: a job that waits, a key, a deadline"
turn "$run/centre.wall" $day
waiting=$job
submit "$(mlp_job waits 10 2 | jq -c '.world.wait_seconds = 600')"
same "$(job_field "$job" .created_at | cut -c1-10)" "$(date -u -d "+$day seconds" +%F)" "created"
turn "$run/centre.wall" $((2 * day))
sleep 0.5
same "$(job_field "$job" .state)" queued "the job that waits"
request POST "/v1/jobs/$job/stop"
job=$waiting
finds_step 10
same "$(who_runs)" "$before" "who runs"

claim "what has come of it are the bytes of a job that was left alone"
turn "$run/centre.wall" 0
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
step=$(job_field "$job" .progress.step)
disturbed=$(tensors_of "$job")
[ "$disturbed" != none ] || fail "no checkpoint"
submit "$(exact_job alone "$step" 0)"
await "$job" succeeded 60
same "$disturbed" "$(tensors_of "$job")" "tensors"
