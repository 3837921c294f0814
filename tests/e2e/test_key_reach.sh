#!/usr/bin/env bash
# A worker whose trainers are another user, though nobody is root: what the service of the packages does. What runs as a trainer gets
# nothing of the worker's key, of its memory or of its files; and everything else goes on between the two users.
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" -eq 0 ] || { echo "SKIP key_reach: begins processes of two users, which root may"; exit 77; }
for tool in setpriv python3; do command -v $tool >/dev/null || { echo "SKIP key_reach: no $tool"; exit 77; }; done
case $(nm -D "$bin/gradsync-worker" 2>/dev/null) in
  *__tsan_init*) echo "SKIP key_reach: a sanitizer begins a thread of its own"; exit 77 ;;
esac
own=daemon theirs=nobody group=nogroup
data=$run/data
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
# Both reach the programs; a key that is the worker's alone, and checkpoints that are the group's.
chmod 711 "$run"
chmod 755 "$run/root" "$run/logs"
install -d -o $own -g $group -m 700 "$run/state"
install -d -m 755 "$run/bin"
install -m 755 "$bin/gradsync-worker" "$run/bin/"
start_coordinator keyed "$data" --require-key
chmod 711 "$data"
install -d -o root -g $group -m 2770 "$data/checkpoints"
make_key() { # FILE
  GRADSYNC_DATA_DIR=$data "$bin/gradsync" key new apart --role worker --out "$1" >"$run/key.said"
  chown $own:$group "$1"
}
make_key "$run/state/worker.key"
# As systemd starts it: its user, the right to change that, and nothing else.
as_service() { # COMMAND…
  setpriv --reuid $own --regid $group --clear-groups --inh-caps=-all,+setuid --ambient-caps=-all,+setuid --bounding-set=-all,+setuid \
    --no-new-privs -- env OPENBLAS_NUM_THREADS="${threads:-1}" CLOUD_KEY=not-for-trainers "$@"
}
as() { # USER COMMAND…
  local user=$1
  shift
  setpriv --reuid "$user" --regid $group --clear-groups --no-new-privs --bounding-set=-all "$@"
}
worker_flags=(--coordinator "$control" --name apart --slots 2 --data-root "$run/root" --key "$run/state/worker.key")
begin_worker() { # [FLAG…]
  (umask 0007; as_service "$run/bin/gradsync-worker" "${worker_flags[@]}" --run-as $theirs:$group "$@" >>"$run/logs/apart.log" 2>&1) &
  pids+=("$!")
  wait_for 30 "its worker" worker_is apart connected
  worker_pid=$(pgrep -f -n "^$run/bin/gradsync-worker --coordinator $control --name apart")
  pids+=("$worker_pid")
}
refuses() { # CODE WHAT FLAG…
  local wanted=$1 what=$2 code=0
  shift 2
  as_service timeout 30 "$run/bin/gradsync-worker" "${worker_flags[@]}" "$@" >"$run/out" 2>&1 || code=$?
  same "$code" "$wanted" "exit code with $*: $(head -c 400 "$run/out")"
  grep -qF -- "$what" "$run/out" || fail "with $* is said: $(head -c 400 "$run/out")"
}
status_of() { awk -v name="$2:" '$1 == name { $1 = ""; print }' "/proc/$1/status" | xargs; }

claim "it does not start where it could not keep its word"
chmod 640 "$run/state/worker.key"
chmod 750 "$run/state"
refuses 78 "trainers ($theirs:$group) may read it" --run-as $theirs:$group
chmod 600 "$run/state/worker.key"
threads=2 refuses 78 OPENBLAS_NUM_THREADS=1 --run-as $theirs:$group
refuses 77 "not its group" --run-as $theirs:$own
refuses 77 "are not root" --run-as root:$group
code=0
as $own timeout 30 "$run/bin/gradsync-worker" "${worker_flags[@]}" --run-as $theirs:$group >"$run/out" 2>&1 || code=$?
same "$code" 77 "without the right: $(head -c 300 "$run/out")"

claim "a job trains and saves, as the other user"
begin_worker
job_of_two() { mlp_job "$1" 100000000 2 ',"checkpoint":{"every_steps":20,"keep_last":2},"debug":{"step_delay_ms":10},"environment":[{"name":"TRACKER","value":"x"}]'; }
submit "$(job_of_two first)"
wait_for 60 "its steps" step_at_least "$job" 30
saved() { get "/v1/jobs/$job/checkpoints" | jq -e 'any(.items[]; .verified)'; }
wait_for 60 "a checkpoint" saved
theirs_id=$(id -u $theirs) own_id=$(id -u $own)
same "$(status_of "$worker_pid" Uid)" "$theirs_id $own_id $own_id $own_id" "whose the worker is"
same "$(for set in CapInh CapPrm CapEff CapAmb; do status_of "$worker_pid" $set; done | sort -u)" 0000000000000000 "what the worker still may"
same "$(cat /proc/"$worker_pid"/task/*/status | awk '/^CapPrm:/ { print $2 }' | sort -u)" 0000000000000000 "what any thread of it still may"
trainers=$(trainer_pids "$job")
same "$(wc -w <<<"$trainers")" 2 "trainers"
for pid in $trainers; do
  same "$(status_of "$pid" Uid)" "$theirs_id $theirs_id $theirs_id $theirs_id" "whose trainer $pid is"
  same "$(for set in CapInh CapPrm CapEff CapAmb; do status_of "$pid" $set; done | sort -u)" 0000000000000000 "what trainer $pid may"
  ! tr '\0' '\n' <"/proc/$pid/environ" | grep -q not-for-trainers || fail "trainer $pid has what is its worker's"
  tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "USER=$theirs" || fail "trainer $pid has another's name"
done

claim "what runs as a trainer gets nothing of the worker: no key, no memory, no descriptor"
for name in reach.py memory_has.py; do install -m 755 "$here/$name" "$run/bin/"; done
as $theirs "$run/bin/reach.py" "$worker_pid" "$run/state/worker.key" >"$run/got" || fail "a trainer $(tr '\n' ';' <"$run/got")"
# The means are good: on what is its own it gets all of that.
as $own cat "$run/state/worker.key" >/dev/null || fail "the worker's user does not read its key"
setpriv --reuid $theirs --regid $group --clear-groups sleep 600 &
sleeper=$!
pids+=("$sleeper")
sleeps() { [ "$(cat "/proc/$sleeper/comm")" = sleep ]; }
wait_for 10 "a process of that user" sleeps
as $theirs "$run/bin/reach.py" "$sleeper" >"$run/got" || true
for what in "opens /proc/PID/mem" "opens /proc/PID/environ" "sees /proc/PID/fd" "follows /proc/PID/exe" "traces it" "reads its memory" "takes its descriptor"; do
  grep -qF "$what" "$run/got" || fail "nobody would find out: of its own process it is not so that it $what ($(tr '\n' ';' <"$run/got"))"
done
holds_key() { "$here/memory_has.py" "$1" "$(jq -r .secret "$run/state/worker.key")"; }
same "$(holds_key "$worker_pid")" yes "the worker has its key"
for pid in $trainers; do same "$(holds_key "$pid")" no "trainer $pid has the worker's key"; done

claim "also where core files are wanted, when no rule of the kernel's about those helps"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
kill "$worker_pid"
wait_for 30 "its end" test ! -e "/proc/$worker_pid"
begin_worker --core-files
submit "$(job_of_two second)"
wait_for 60 "its steps" step_at_least "$job" 30
as $theirs "$run/bin/reach.py" "$worker_pid" "$run/state/worker.key" >"$run/got" || fail "a trainer $(tr '\n' ';' <"$run/got")"

claim "a key that takes another's place while the job trains"
before=$(job_field "$job" .generation)
first=$(jq -r .public "$run/state/worker.key")
make_key "$run/state/new.key"
mv "$run/state/new.key" "$run/state/worker.key"
wait_for 30 "it is seen" grep -q 'another key' "$run/logs/apart.log"
id=$(GRADSYNC_DATA_DIR=$data "$bin/gradsync" worker keys -o json | jq -r --arg public "$first" '.items[] | select(.public == $public) | .id')
[ -n "$id" ] || fail "no such key: $(GRADSYNC_DATA_DIR=$data "$bin/gradsync" worker keys -o json)"
GRADSYNC_DATA_DIR=$data "$bin/gradsync" key revoke "$id" >/dev/null
sleep 3
at=$(job_field "$job" .progress.step)
wait_for 60 "steps behind $at" step_at_least "$job" $((at + 50))
same "$(job_field "$job" .generation)" "$before" "generation"
! grep -q "not the worker's alone" "$run/logs/apart.log" || fail "the new key is said to be others', too"

claim "signals reach trainers: they stop when asked, and end with their worker"
trainers=$(trainer_pids "$job")
request POST "/v1/jobs/$job/stop" '{"mode":"graceful"}'
await "$job" cancelled 60
for pid in $trainers; do wait_for 30 "the end of $pid" test ! -e "/proc/$pid"; done
submit "$(job_of_two third)"
wait_for 60 "its steps" step_at_least "$job" 30
trainers=$(trainer_pids "$job")
kill -STOP "${trainers%%[[:space:]]*}"
kill -KILL "$worker_pid"
for pid in $trainers; do wait_for 30 "the end of $pid" test ! -e "/proc/$pid"; done
begin_worker
at=$(job_field "$job" .progress.step)
wait_for 60 "the job goes on" step_at_least "$job" $((at + 50))
[ -n "$(find "$data/checkpoints" -name 'part-*' -user $theirs -group $group -perm 640)" ] || fail "checkpoints: $(ls -lR "$data/checkpoints")"
request POST "/v1/jobs/$job/stop" '{"mode":"now"}'
await "$job" cancelled 60

end_worker() {
  kill -TERM "$worker_pid"
  wait_for 30 "the end of the worker" test ! -e "/proc/$worker_pid"
}
claim "one that enrolled starts again with its key, where its trainers see nothing of it and the token is gone"
end_worker
chmod 700 "$run/state"
begin_worker --enrol "$run/state/used.token"

claim "one whose trainers are its own user gives up the right to change it"
end_worker
as_service "$run/bin/gradsync-worker" "${worker_flags[@]}" >>"$run/logs/apart.log" 2>&1 &
pids+=("$!")
wait_for 30 "its worker" worker_is apart connected
worker_pid=$(pgrep -f -n "^$run/bin/gradsync-worker --coordinator $control --name apart")
for set in CapPrm CapEff CapAmb; do same "$(status_of "$worker_pid" $set)" 0000000000000000 "$set"; done
