#!/usr/bin/env bash
# Everything that happens to a coordinator alone, under one job that trains through all of it: killed, suspended, gone, its
# database damaged or of another version, its directory full, started again and again. The trainers stay who they are, lose no
# step, make steps as far apart as before, and end with the bytes of a job that was left alone. Then what a death costs.
#   GRADSYNC_DOWN_SECONDS  how long the coordinator is gone (3)     GRADSYNC_RESTARTS  how often in a row it is killed (5)
skip() { echo "SKIP: $*"; exit 77; }
if [ -z "${GRADSYNC_ROWS_WORLD:-}" ]; then
  world=(--mount)
  [ "$(id -u)" -eq 0 ] || world+=(--user --map-root-user)
  unshare "${world[@]}" mount -t tmpfs tmpfs /mnt >/dev/null 2>&1 || skip "no mounts of its own"
  GRADSYNC_ROWS_WORLD=1 exec unshare "${world[@]}" bash "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "no python3"
command -v "${CC:-cc}" >/dev/null || skip "no compiler"
"${CC:-cc}" -D_GNU_SOURCE -O1 -o "$run/flood" "$(dirname "$0")/flood.c"

down=${GRADSYNC_DOWN_SECONDS:-3}
restarts=${GRADSYNC_RESTARTS:-5}
mount -t tmpfs -o size=24m tmpfs /mnt  # a disk of its own, which can be filled
agent_dead_ms=$(timing_ms agent_dead)
# What is asserted of a death and a start: on a machine that has nothing else to do a tenth of it, or less.
verdict_most_ms=$((25 * $(timing_ms tick)))
start_most_ms=$(timing_ms grace)
regroup_most_ms=$((5 * $(timing_ms settle) / 2))
data=/mnt/data

quick_restart=',"restart":{"backoff_initial_seconds":0.1}'
now_ms() { date +%s%3N; }
exact_job() { # NAME STEPS MORE
  mlp_job "$1" "$2" 2 ",\"exact\":true$3"
}
# One of more ranks than there are slots.
waiting_job() { exact_job "$1" 10 '' | sed 's/"min":2,"max":2/"min":9,"max":9/'; }
# A checkpoint at every tenth step is what is seen of the trainers from outside.
submit_watched() { submit "$(exact_job "$1" 1000000 ',"debug":{"step_delay_ms":10},"checkpoint":{"every_steps":10,"keep_last":1000}')"; }
# Old ones are removed meanwhile.
saved_at() { { find "$run/checkpoints/$job" -name MANIFEST.json -printf '%T@ %h\n' 2>/dev/null || true; } | sed -E 's/ .*step-0*([0-9]+).*/ \1/' | sort -k2 -n; }
# longest_gap SINCE_MS: between two saves, one of them after it: ms, and when it began and ended.
longest_gap() {
  saved_at | awk -v since="$1" '{ at = $1 * 1000; if (last && at > since && at - last > most) { most = at - last; from = last; to = at } last = at }
    END { printf "%d %.0f %.0f", most, from, to }'
}
num_saved() { saved_at | wc -l; }
saves_more() { [ "$(num_saved)" -ge "$1" ]; }
trains_on() { wait_for 30 "more steps" saves_more $(($(num_saved) + ${1:-3})); }
who_runs() { echo "$(trainer_pids "$job" | sort | tr '\n' ' ')of generation $(job_field "$job" .generation)"; }
is_undisturbed() {
  same "$(who_runs)" "$before" "who runs"
  same "$(job_field "$job" '"\(.state) \(.restarts) \(.lost_steps)"')" "running 0 0" "state, restarts and lost steps"
}
metric() { get /metrics | awk -v name="$1" '$1 == name { print $2 }'; }
kill_coordinator() {
  kill -9 "$coordinator_pid"
  wait "$coordinator_pid" 2>/dev/null || true
}
arguments=()
# launch: the coordinator where it was, without waiting for it.
launch() { # [timeout SECONDS]
  rm -f "$run/main.ports"
  "$@" "$bin/gradsync-coordinator" "${arguments[@]}" --data-dir "$data" --port-file "$run/main.ports" \
    >>"$run/logs/main.log" 2>&1 &
  coordinator_pid=$!
}
is_ready() { [ -s "$run/main.ports" ] && curl -fsS "$server/readyz"; }
revive() {
  launch
  pids+=("$coordinator_pid")
  wait_for 30 "the coordinator again" is_ready
}
# refuses_to_start CODE WORDS
refuses_to_start() {
  local code=0
  launch timeout 60
  wait "$coordinator_pid" || code=$?
  same "$code" "$1" "exit code"
  tail -n 3 "$run/logs/main.log" | grep -q "$2" || fail "it does not say '$2': $(tail -n 3 "$run/logs/main.log")"
}
# edit SQL: of the database of a coordinator that is gone.
edit() { python3 -c 'import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.execute(sys.argv[2]); base.commit()' "$data/gradsync.db" "$1"; }
steps_again() { local step; step=$(job_field "$job" .progress.step); wait_for 30 "steps that are heard of" step_at_least "$job" $((step + 10)); }
sizes_of() { # PID…: descriptors and threads of each
  for pid in "$@"; do echo "$(ls "/proc/$pid/fd" | wc -l) $(ls "/proc/$pid/task" | wc -l)"; done
}
resident_kib() { for pid in "$@"; do cat "/proc/$pid/status"; done | awk '/^VmRSS/ { sum += $2 } END { print sum }'; }

mkdir "$run/checkpoints"
own=(--checkpoints "$run/checkpoints" --orphan-limit $((down + 600)))
start_coordinator main "$data" "${own[@]}"
arguments=(--http "${server#http://}" --control "$control" "${own[@]}")
start_worker agent 4
agent_pid=$worker_pid
submit_watched through
wait_for 60 "its steps" step_at_least "$job" 30
before=$(who_runs)
everybody="$agent_pid $(trainer_pids "$job" | tr '\n' ' ')"
began=$(now_ms)
trains_on 20
read -r undisturbed_ms _ <<<"$(longest_gap "$began")"
echo "  undisturbed: ten steps at most $undisturbed_ms ms apart"
# How busy the machine is with other tests, who needs no coordinator says: ten naps and a file on the same disk, again and again;
# and the system, which knows for how long the trainers could have run and had no core.
# shellcheck disable=SC2046  # words
python3 - "$run/checkpoints/beat" "$run/beats" $(trainer_pids "$job") <<'END' &
import glob, os, sys, time
def waited_ms(pids):
    waited = 0
    for path in (p for pid in pids for p in glob.glob(f"/proc/{pid}/task/*/schedstat")):
        try:
            waited += int(open(path).read().split()[1]) // 1_000_000
        except (OSError, IndexError):
            pass  # a thread that has ended
    return waited
with open(sys.argv[1], "wb") as disk, open(sys.argv[2], "w", buffering=1) as beats:
    while True:
        for _ in range(10):
            time.sleep(0.01)
        disk.write(b"beat")
        disk.flush()
        os.fsync(disk.fileno())
        beats.write("%d %d\n" % (time.time() * 1000, waited_ms(sys.argv[3:])))
END
pids+=($!)
longest_beat_ms() { awk -v since="$1" '{ if (last && $1 > since && $1 - last > most) most = $1 - last; last = $1 } END { printf "%d", most }' "$run/beats"; }
# waited_ms FROM_MS TO_MS: from the beat before to the beat behind.
waited_ms() { awk -v from="$1" -v to="$2" '$1 <= from { first = $2 } !(over) { last = $2 } $1 >= to { over = 1 } END { printf "%d", last - first }' "$run/beats"; }
# in_time SINCE_MS MS MOST_MS WHAT: on a machine that has nothing else to do; else so much later as others were.
in_time() {
  local beat waited
  beat=$(longest_beat_ms "$1") waited=$(waited_ms "$1" "$(now_ms)")
  [ "$2" -le $(($3 + 10 * (beat > 150 ? beat - 150 : 0) + waited)) ] || fail "$4: $2 ms; beats of nobody's $beat ms, trainers had no core for $waited ms"
}
# T5. As far apart as undisturbed, three times that and half a second. Ranks that waited for a coordinator would do so for longer.
keeps_pace() { # SINCE_MS
  local gap from to beat waited most
  read -r gap from to <<<"$(longest_gap "$1")"
  beat=$(longest_beat_ms "$1") waited=$(waited_ms "$from" "$to")
  most=$((3 * (beat > undisturbed_ms ? beat : undisturbed_ms) + 500 + waited))
  echo "  ten steps at most $gap ms apart, beats of nobody's $beat ms, no core for $waited ms"
  [ "$gap" -le "$most" ] || fail "T5: two saves are $gap ms apart, undisturbed $undisturbed_ms ms, beats $beat ms, no core for $waited ms"
}

claim "C1, T5, T6: kill -9 while it trains, back after two thirds of a worker's silence: no step is lost or late, no new generation, one more epoch"
epoch=$(metric gradsync_coordinator_epoch)
since=$(now_ms)
kill_coordinator
sleep_ms $((agent_dead_ms * 2 / 3))
begin=$(now_ms)
revive
steps_again
recovered=$(($(now_ms) - begin))
echo "  steps are heard of $recovered ms after the start"
in_time "$begin" "$recovered" "$start_most_ms" "T6: from start to steps"
keeps_pace "$since"
is_undisturbed
same "$(metric gradsync_coordinator_epoch)" $((epoch + 1)) "coordinator epoch"

claim "C4: gone for $down s: training goes on, memory is flat, the steps of meanwhile are known"
since=$(now_ms)
trainers=$(trainer_pids "$job" | tr '\n' ' ')
kib=$(resident_kib $trainers) agent_kib=$(resident_kib "$agent_pid") saved=$(num_saved)
kill_coordinator
sleep "$down"
kib_after=$(resident_kib $trainers) agent_kib_after=$(resident_kib "$agent_pid")
echo "  trainers $kib KiB, $kib_after KiB after; worker $agent_kib KiB, $agent_kib_after KiB after"
[ "$kib_after" -le $((kib + kib / 20 + 2048)) ] || fail "memory of trainers: $kib KiB, $kib_after KiB after $down s"
# It keeps the lines of meanwhile, 8 MiB of them at most.
[ "$agent_kib_after" -le $((agent_kib + 12288)) ] || fail "memory of the worker: $agent_kib KiB, $agent_kib_after KiB after $down s"
saves_more $((saved + down * 1000 / (4 * (undisturbed_ms + 100)))) || fail "few steps: $saved saves before, $(num_saved) after"
keeps_pace "$since"
meanwhile=$(saved_at | tail -n 1 | cut -d' ' -f2)
revive
steps_again
keeps_pace "$since"
is_undisturbed
step_at_least "$job" "$meanwhile" || fail "the steps of meanwhile are not known"

claim "C5: suspended for five thirds of a worker's silence: nobody is evicted"
since=$(now_ms)
kill -STOP "$coordinator_pid"
sleep_ms $((agent_dead_ms * 5 / 3))
kill -CONT "$coordinator_pid"
steps_again
keeps_pace "$since"
is_undisturbed

claim "C6: a second one on the same directory is refused with 73"
code=0
"$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$data" >"$run/second" 2>&1 || code=$?
same "$code" 73 "exit code"
is_undisturbed

claim "C8: a damaged database is set aside whole and named, and no start begins with an empty one; who trains never notices"
kill -TERM "$coordinator_pid"  # what is in the log by then goes into the database, where it can be damaged
wait "$coordinator_pid" || true
revive
steps_again
since=$(now_ms)
kill_coordinator
mkdir "$run/kept"
cp "$data"/gradsync.db* "$run/kept"
[ -s "$run/kept/gradsync.db-wal" ] || fail "there is no log that could be lost"
python3 - "$data/gradsync.db" <<'END'
import random, sys
with open(sys.argv[1], "r+b") as file:
    size = file.seek(0, 2)
    for _ in range(200):
        file.seek(random.Random(_).randrange(size))
        file.write(b"\xfe" * 64)
END
refuses_to_start 65 'gradsync.db was damaged and is now .*gradsync.db.damaged-'
cmp "$run/kept/gradsync.db-wal" "$data"/gradsync.db.damaged-*-wal || fail "its log was not kept"
refuses_to_start 65 'was damaged, and nothing is in its place'
refuses_to_start 65 'was damaged, and nothing is in its place'
rm "$data"/gradsync.db.damaged-*
cp "$run/kept"/* "$data"
revive
steps_again
keeps_pace "$since"
is_undisturbed

claim "C8, found behind readiness: of a large database damage that no row shows ends it, set aside; who trains never notices"
since=$(now_ms)
kill_coordinator
edit "CREATE TABLE filler AS SELECT randomblob(8000000)"
edit "PRAGMA wal_checkpoint(TRUNCATE)"
rm -rf "$run/kept" && mkdir "$run/kept"
cp "$data"/gradsync.db* "$run/kept"
# Pages of the filler, which lies behind all else: where the next one is. As they were they are in the copy.
patch_filler() { # FILE PYTHON: what is written there, of page
  python3 - "$1" "$run/kept/gradsync.db" <<END
import sys
with open(sys.argv[1], "r+b") as file, open(sys.argv[2], "rb") as kept:
    size = kept.seek(0, 2) // 4096
    for page in range(size - 900, size - 800):
        kept.seek(4096 * page)
        file.seek(4096 * page)
        file.write($2)
END
}
patch_filler "$data/gradsync.db" 'b"\xfe" * 4'
refuses_to_start 65 'was damaged and is now .*gradsync.db.damaged-'
refuses_to_start 65 'was damaged, and nothing is in its place'
# Repaired, not replaced by the copy: workers may have met the one that became ready, and a copy of before knows nothing of it.
for file in "$data"/gradsync.db.damaged-*; do mv "$file" "$(sed -E 's/[.]damaged-[0-9]+//' <<<"$file")"; done
patch_filler "$data/gradsync.db" 'kept.read(4)'
edit "DROP TABLE filler"
revive
steps_again
keeps_pace "$since"
is_undisturbed

claim "C12: data of a newer version are refused and left as they are; who trains never notices"
since=$(now_ms)
kill_coordinator
edit "UPDATE meta SET schema_version = schema_version + 98"
refuses_to_start 69 'schema version [0-9]*, this program knows'
refuses_to_start 69 'schema version [0-9]*, this program knows'
edit "UPDATE meta SET schema_version = schema_version - 98"
revive
steps_again
keeps_pace "$since"
is_undisturbed

claim "C12: data of an older version are brought to this one while trainers train on: they are the job's again"
since=$(now_ms)
schema_version() { python3 -c 'import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute("SELECT schema_version FROM meta").fetchone()[0])' "$data/gradsync.db"; }
kill_coordinator
same "$(schema_version)" 2 "version of its schema"
# As a version left them that knew who it is and of whom it was asked, and nothing of what came later.
edit "UPDATE meta SET schema_version = 1"
for table in tombstone owed_purge card request_key event_mark; do edit "DROP TABLE $table"; done
revive
steps_again
same "$(schema_version)" 2 "version of its schema"
keeps_pace "$since"
is_undisturbed

claim "a record that cannot be read is kept, its trainers are left alone and keep their slots; they are the job's again when it can be"
since=$(now_ms)
kill_coordinator
edit "UPDATE job SET body = '#' || body"
revive
wait_for 30 "its trainers as unknown ones" bash -c "curl -fsS $server/v1/workers | jq -e '.items[0] | .slots_busy == 2 and (.unknown | length == 2)'"
tail -n 20 "$run/logs/main.log" | grep -q "job not readable" || fail "nothing says so"
for path in "" /workers /events; do
  request GET "/v1/jobs/$job$path"
  same "$status $(body .code)" "409 unreadable" "GET of the job$path"
done
request POST "/v1/jobs/$job/stop"
same "$status $(body .code)" "409 unreadable" "a stop of it"
request GET /v1/jobs/j-zzzzzzzzzzzz
same "$status" 404 "GET of a job that nobody knows"
same "$(metric gradsync_jobs_unreadable)" 1 "the gauge"
get '/v1/events?limit=500' | jq -e --arg job "$job" '[.items[] | select(.reason == "JobsUnreadable" and .severity == "error" and (.message | contains($job)))] | length == 1' >/dev/null ||
  fail "no event says so"
trains_on
kill_coordinator
edit "UPDATE job SET body = substr(body, 2)"
revive
steps_again
same "$(metric gradsync_jobs_unreadable)" 0 "the gauge when it can be read"
keeps_pace "$since"
is_undisturbed

claim "checkpoints that were acknowledged and whose rows were never written are found on the disk"
since=$(now_ms)
known() { get "/v1/jobs/$job/checkpoints" | jq '[.items[] | select(.verified) | .step]'; }
known | jq 'sort | .[-100:]' >"$run/known"  # older ones may go meanwhile
[ "$(jq length "$run/known")" -ge 10 ] || fail "too few: $(jq -c . "$run/known")"
kill_coordinator
edit "DELETE FROM checkpoint"
edit "VACUUM"  # what comes next needs room on the disk
revive
all_known() { known | jq -e --slurpfile before "$run/known" '$before[0] - . == []'; }
wait_for 30 "checkpoints known again" all_known
keeps_pace "$since"
is_undisturbed

claim "C9: the directory is full: what is asked for is answered with 507, training goes on, and so does a job that loses a rank"
submit "$(exact_job regroups 1000000 "$quick_restart,\"debug\":{\"step_delay_ms\":10},\"checkpoint\":{\"every_steps\":20}" | sed 's/"min":2,"max":2/"min":1,"max":1/')"
other=$job
wait_for 60 "its steps" step_at_least "$other" 30
job=$(get /v1/jobs | jq -r '.items[] | select(.name == "through") | .id')
since=$(now_ms)
failures=$(metric gradsync_store_failures_total)
cat /dev/zero >"$data/filler" 2>/dev/null || true
# Some may still find room within the files. A refused one is none of the jobs.
tried=0
refused() {
  tried=$((tried + 1))
  request POST /v1/jobs "$(waiting_job "tried-$tried")"
  [ "$status" = 507 ]
}
wait_for 40 "a refusal" refused
same "$(get '/v1/jobs?limit=500' | jq '[.items[] | select(.name | startswith("tried-"))] | length')" $((tried - 1)) "jobs that were accepted"
is_unready() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$server/readyz")" = 503 ]; }
wait_for 10 "no readiness" is_unready
counts_failures() { [ "$(metric gradsync_store_failures_total)" -gt "$failures" ]; }
wait_for 10 "the metric of failures" counts_failures
generation=$(job_field "$other" .generation)
kill -9 "$(trainer_pids "$other")"
again() { [ "$(job_field "$other" .generation)" -gt "$generation" ] && [ "$(job_field "$other" .state)" = running ]; }
wait_for 30 "the other job again" again
trains_on
rm "$data/filler"
wait_for 30 "readiness" curl -fsS "$server/readyz"
request POST "/v1/jobs/$other/stop"
same "$status" 202 "stop"
await "$other" cancelled 30
keeps_pace "$since"
is_undisturbed

claim "C11: killed $restarts times in a row: epochs increase, no event is lost, and nothing is left open"
sizes=$(sizes_of $everybody)
kill_coordinator  # what was not written while the disk was full is gone with this one
revive
steps_again
events() { # of all pages
  local page cursor=0
  while [ "$cursor" != null ]; do
    page=$(get "/v1/events?limit=500&cursor=$cursor")
    jq '.items[].sequence' <<<"$page"
    cursor=$(jq -r .next_cursor <<<"$page")
  done | jq -sc .
}
events | jq -c 'sort | .[-100:]' >"$run/events.before"
# They are written a moment after they are shown, and before the answer to what is asked for later.
settled=$job
submit "$(waiting_job settles)"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 30
request DELETE "/v1/jobs/$job"
same "$status" 204 "deletion"
job=$settled
epoch=$(metric gradsync_coordinator_epoch)
since=$(now_ms)
for _ in $(seq "$restarts"); do
  kill_coordinator
  revive
done
steps_again
same "$(metric gradsync_coordinator_epoch)" $((epoch + restarts)) "coordinator epoch"
events | jq -e --slurpfile before "$run/events.before" '($before[0] - . == []) and (unique | length) == length' >/dev/null ||
  fail "events: $(cat "$run/events.before") before, $(events)"
as_before() { paste -d ' ' <(sizes_of $everybody) <(echo "$sizes") | awk '$1 > $3 || $2 > $4 { exit 1 }'; }
wait_for 10 "no more descriptors and threads than before: $(echo $sizes), now $(echo $(sizes_of $everybody))" as_before
keeps_pace "$since"
is_undisturbed

claim "T1, T2: a rank of another job is killed: the verdict comes at once, and soon the job trains again; no step is lost"
through=$job
submit "$(exact_job dies 1000000 "$quick_restart,\"debug\":{\"step_delay_ms\":10}")"
dies=$job job=$through
wait_for 60 "its steps" step_at_least "$dies" 30
verdict_ms() { # after BEGIN_MS
  get "/v1/jobs/$dies/events?limit=500" | jq -r --argjson begin "$1" '[.items[] | select(.reason == "WorkerLost") | .at |
    capture("^(?<s>.*)[.](?<ms>...)Z$") | ((.s + "Z") | fromdate) * 1000 + (.ms | tonumber) | select(. >= $begin)] | min // empty'
}
judged() { [ -n "$(verdict_ms "$1")" ]; }
# goes_on GENERATIONS: since the first one, with two ranks and without a lost step.
goes_on() { [ "$(job_field "$dies" '"\(.state) \(.world_size) \(.generation - '"$generation"') \(.lost_steps)"')" = "running 2 $1 0" ]; }
generation=$(job_field "$dies" .generation)
begin=$(now_ms)
kill -9 "$(trainer_pids "$dies" | tail -n 1)"
wait_for 20 "a verdict" judged "$begin"
until goes_on 1; do sleep 0.02; [ $(($(now_ms) - begin)) -le 90000 ] || fail "the job does not go on: $(job_field "$dies" '"\(.state) \(.message)"')"; done
again=$(($(now_ms) - begin))
verdict=$(($(verdict_ms "$begin") - begin))
echo "  verdict after $verdict ms, the job trains again after $again ms"
in_time "$begin" "$verdict" "$verdict_most_ms" "T1: the verdict"
in_time "$begin" "$again" "$regroup_most_ms" "T2: the job was away"

claim "C3: kill -9, and a rank of that job dies while nobody looks: one regroup when the coordinator is back, no step lost"
step=$(job_field "$dies" .progress.step)
wait_for 30 "steps" step_at_least "$dies" $((step + 10))
victim=$(trainer_pids "$dies" | tail -n 1)
kill_coordinator
kill -9 "$victim"
sleep_ms $((agent_dead_ms / 3))
begin=$(now_ms)
revive
generation=$(job_field "$dies" .generation)
until [ "$(job_field "$dies" .generation)" -gt "$generation" ] && [ "$(job_field "$dies" .state)" = running ]; do
  [ $(($(now_ms) - begin)) -le 90000 ] || fail "the job does not go on: $(job_field "$dies" '"\(.state) \(.message)"')"
done
again=$(($(now_ms) - begin))
echo "  the job trains again $again ms after the start"
in_time "$begin" "$again" $((start_most_ms + regroup_most_ms)) "C3: the job was away"
same "$(job_field "$dies" '"\(.restarts) \(.lost_steps) \(.world_size)"')" "2 0 2" "restarts, lost steps and ranks"
request POST "/v1/jobs/$dies/stop"
await "$dies" cancelled 30
steps_again
is_undisturbed

claim "T8: under a flood of requests each answer comes in time, and the trainers keep their pace"
since=$(now_ms)
# More connections than one address may have: what is too much is refused by a connection that is closed, and asks again at once.
"$run/flood" "${server##*:}" 3000 200 /v1/jobs /metrics >"$run/answers" || fail "the flood"
answers() { awk -v code="$1" '$1 == code { print int($2) }' "$run/answers" | sort -n; }
late_one() { answers "$1" | awk '{ at[NR] = $1 } END { print NR ? at[int((NR * 99 + 99) / 100)] : -1 }'; } # its 99th percentile
accepted=$(late_one 200) refused=$(late_one 000)
echo "  $(answers 200 | wc -l) answers, p99 $accepted ms; $(answers 000 | wc -l) refusals, p99 $refused ms"
same "$(($(answers 200 | wc -l) + $(answers 000 | wc -l)))" 3000 "answers and refusals"
[ "$accepted" -ge 0 ] || fail "T8: no answers"
in_time "$since" "$accepted" 1000 "T8: an answer"
in_time "$since" "$refused" 500 "T8: a refusal"
steps_again
keeps_pace "$since"
is_undisturbed

claim "what has come of it are the bytes of a job that was left alone"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
steps=$(saved_at | cut -d' ' -f2 | tr '\n' ' ')
step=$(job_field "$job" .progress.step)
missing=$(for s in $(seq 10 10 "$step"); do echo " $steps" | grep -q " $s " || echo "$s"; done | wc -l)
echo "  step $step, $missing saves of every tenth step are left out"
tensors_of() { (command cd "$(dirname "$(find "$run/checkpoints/$1" -name MANIFEST.json | sort | tail -n 1)")" && sha256sum part-*.safetensors | sha256sum); }
disturbed=$(tensors_of "$job")
submit "$(exact_job alone "$step" '')"
await "$job" succeeded 60
same "$disturbed" "$(tensors_of "$job")" "tensors"
