#!/usr/bin/env bash
# What a worker allows its trainers: real jobs with secrets, limits, another user, and links that lead out of what a job may
# read and write.
. "$(dirname "$0")/lib.sh"

secret=correct-horse-battery-$SRANDOM
mkdir -p "$run/secrets/..2026" "$run/root/texts"
printf '%s\n' "$secret" >"$run/secrets/..2026/tracker"
ln -s ..2026 "$run/secrets/..data"
ln -s ..data/tracker "$run/secrets/tracker"  # as Kubernetes mounts them
chmod -R go= "$run/secrets"
# Whose a process is, and what it may, by its number.
status_of() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$1/status"; }

claim "a worker says what it cannot allow, before it takes a job"
refuses() { # CODE WHAT FLAG…
  local wanted=$1 what=$2 code=0
  shift 2
  timeout 20 "$bin/gradsync-worker" --coordinator tcp://127.0.0.1:1 "$@" >"$run/out" 2>&1 || code=$?
  same "$code" "$wanted" "exit code of $*: $(head -c 300 "$run/out")"
  grep -qF -- "$what" "$run/out" || fail "of $* is said: $(head -c 300 "$run/out")"
}
refuses 66 'there is no user' --run-as nobody-of-that-name
refuses 64 'is no size' --memory-per-slot much
refuses 64 'at least 64MiB' --memory-per-slot 1MiB
refuses 64 'at least 64' --open-files-per-slot 10
refuses 78 'memory controller' --cgroup /tmp

start_coordinator main "$run/data"
as=()
if [ "$(id -u)" -eq 0 ]; then
  # Whoever trains has to reach programs, data and checkpoints.
  chmod 711 "$run" "$run/data"
  mkdir -p "$run/data/checkpoints"
  chown -R nobody "$run/data/checkpoints"
  cp "$bin/gradsync-worker" "$run/gradsync-worker"
  as=(--run-as nobody)
fi
GRADSYNC_TOKEN=not-for-trainers "${run}/gradsync-worker" --version >/dev/null 2>&1 || ln -s "$bin/gradsync-worker" "$run/gradsync-worker"
CREDENTIALS_DIRECTORY=$run/secrets GRADSYNC_TOKEN=not-for-trainers CLOUD_KEY=not-for-trainers "$run/gradsync-worker" --coordinator "$control" --name confined --slots 2 \
  --data-root "$run/root" --open-files-per-slot 500 "${as[@]}" >>"$run/logs/confined.log" 2>&1 &
pids+=("$!")
wait_for 30 "its worker" worker_is confined connected
[ ${#as[@]} -eq 0 ] || grep -q 'trainers may ask the coordinator for anything.*run_as=nobody' "$run/logs/confined.log" ||
  fail "a worker of trainers that are another user, without a key, warns of nothing"

claim "a job has its secret, and nobody sees it who sees the job"
submit "$(mlp_job secretive 100000 2 ',"environment":[{"name":"TRACKER_TOKEN","secret":"tracker"},{"name":"TRACKER_NAME","value":"plain-value"}],"limits":{"open_files":300}')"
wait_for 60 "its steps" step_at_least "$job" 5
trainers=$(trainer_pids "$job")
same "$(wc -w <<<"$trainers")" 2 "trainers"
for pid in $trainers; do
  tr '\0' '\n' <"/proc/$pid/environ" >"$run/environ"
  grep -qx "TRACKER_TOKEN=$secret" "$run/environ" || fail "trainer $pid does not have it"
  grep -qx TRACKER_NAME=plain-value "$run/environ" || fail "trainer $pid does not have the plain one"
  ! grep -q 'not-for-trainers\|CREDENTIALS_DIRECTORY' "$run/environ" || fail "trainer $pid has what is its agent's"
done

if [ "$(id -u)" -eq 0 ]; then
  claim "who holds a secret is not looked into by others of its user, nor leaves a core file"
  for pid in $trainers; do
    same "$(awk '/Max core file size/ { print $5 }' "/proc/$pid/limits")" 0 "core files of $pid"
    ! setpriv --reuid=nobody --clear-groups cat "/proc/$pid/environ" >"$run/environ" 2>&1 || fail "another process of its user reads what $pid holds"
    same "$(stat -c %U "/proc/$pid/mem")" root "whose memory of $pid is"
  done
fi

claim "a trainer keeps no privilege, and has the limits that job and worker say"
for pid in $trainers; do
  same "$(status_of "$pid" NoNewPrivs)" 1 "no_new_privs of $pid"
  if [ "$(id -u)" -eq 0 ]; then
    same "$(status_of "$pid" Uid)" "$(id -u nobody)" "whose $pid is"
    same "$(status_of "$pid" CapEff)$(status_of "$pid" CapPrm)$(status_of "$pid" CapBnd)" "$(printf '0%.0s' {1..48})" "capabilities of $pid"
  fi
  same "$(awk '/Max open files/ { print $5 }' "/proc/$pid/limits")" 300 "descriptors of $pid"
done
get "/v1/jobs/$job" | jq -e '.spec.environment[0] == {name: "TRACKER_TOKEN", secret: "tracker"} and .spec.limits.open_files == 300' >/dev/null ||
  fail "the job shows: $(get "/v1/jobs/$job" | jq -c '.spec | {environment, limits}')"
for route in "" /events /logs /workers /plan /diagnosis /metrics; do get "/v1/jobs/$job$route" >>"$run/shown"; done
get /metrics >>"$run/shown"
get /v1/workers >>"$run/shown"
request POST "/v1/jobs/$job/stop"
await "$job" cancelled 60
! grep -rlF "$secret" "$run/data" "$run/logs" "$run/shown" || fail "the secret is there for others"
grep -rlF TRACKER_TOKEN "$run/data" >/dev/null || fail "what was looked through does not even have its name"

claim "a job whose secret is not there fails once, and says which"
submit "$(mlp_job missing 10 1 ',"environment":[{"name":"A","secret":"not-there"}]')"
await "$job" failed 60
job_field "$job" '.failure | tostring' | grep -q 'not-there' || fail "the failure: $(job_field "$job" .failure)"
same "$(job_field "$job" .restarts)" 0 "restarts"
request POST /v1/jobs "$(mlp_job loader 10 1 ',"environment":[{"name":"LD_PRELOAD","value":"/data/x.so"}]')"
same "$status" 422 "a job that sets LD_PRELOAD"
same "$(body '.errors[0].pointer')" /environment/0/name "what is refused"

claim "data are not read through a link that leads out, and nothing is saved through one"
printf 'what others wrote, %.0s' {1..200} >"$run/outside.txt"
ln -s "$run/outside.txt" "$run/root/texts/out.txt"
submit '{"name":"reads","model":{"kind":"gpt2"},"data":{"kind":"bytes","train":"texts/*.txt"},"steps":{"target":3}}'
await "$job" failed 60
job_field "$job" '.failure | tostring' | grep -q 'leads out' || fail "the failure: $(job_field "$job" .failure)"

claim "a rank that wants more memory than it may ends, and the job says so"
case $(nm -D "$bin/gradsync-worker" 2>/dev/null) in
  *__asan_init* | *__tsan_init*) echo "  a sanitizer has memory of its own: left out" ;;
  *)
    submit "$(mlp_job greedy 10 1 ',"limits":{"memory_bytes":300000000},"restart":{"max_restarts":0}' | sed 's/"dims":\[32,64,10\]/"dims":[4096,8192,4096,10]/')"
    await "$job" failed 60
    job_field "$job" '.failure | tostring' | grep -qi 'memory' || fail "the failure: $(job_field "$job" .failure)"
    submit "$(mlp_job modest 10 1 ',"limits":{"memory_bytes":2000000000}')"
    await "$job" succeeded 60
    ;;
esac
