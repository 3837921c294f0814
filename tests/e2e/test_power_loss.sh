#!/usr/bin/env bash
# D9: the power goes at a moment that is drawn, again and again, and the disk has what was forced out, nothing else
# (power_loss.c). What was answered is true afterwards: jobs that were accepted are there, what was deleted is not, and a
# job goes on from the newest checkpoint that was shown as verified, or a later one.
#   GRADSYNC_RUNS  all: ten times; else twice
. "$(dirname "$0")/lib.sh"
command -v "${CC:-cc}" >/dev/null || { echo "SKIP: no compiler"; exit 77; }
"${CC:-cc}" -D_GNU_SOURCE -O1 -shared -fPIC -o "$run/power_loss.so" "$(dirname "$0")/power_loss.c"
times=2
[ "${GRADSYNC_RUNS:-1}" = all ] && times=10

seed=${GRADSYNC_SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
echo "seed $seed"
disk=$run/disk-0
mkdir "$disk"

begin() { # the machine, on its disk
  python3 "$(dirname "$0")/power_loss.py" begin "$disk" "$disk.shadow"
  export LD_PRELOAD=$run/power_loss.so POWER_ROOT=$disk POWER_SHADOW=$disk.shadow
  rm -f "$run/c.ports"
  "$bin/gradsync-coordinator" --http 127.0.0.1:0 --control tcp://127.0.0.1:0 --data-dir "$disk/state/gradsync" \
    --port-file "$run/c.ports" >>"$run/logs/c.log" 2>&1 &
  coordinator_pid=$!
  unset LD_PRELOAD
  pids+=("$coordinator_pid")
  wait_for 30 "ports" test -s "$run/c.ports"
  server=http://$(jq -r .http "$run/c.ports")
  control=$(jq -r .control "$run/c.ports")
  wait_for 30 "the coordinator" curl -fsS "$server/readyz"
  LD_PRELOAD=$run/power_loss.so "$bin/gradsync-worker" --coordinator "$control" --name w --slots 2 --data-root "$run/root" \
    --pass-environment POWER_ROOT,POWER_SHADOW \
    >>"$run/logs/w.log" 2>&1 &
  worker_pid=$!
  pids+=("$worker_pid")
  unset POWER_ROOT POWER_SHADOW
  wait_for 30 "the worker" worker_is w connected
}
cut_power() {
  local trainers
  trainers=$({ pgrep -P "$worker_pid" || true; } | tr '\n' ' ')
  kill -STOP "$coordinator_pid" "$worker_pid" 2>/dev/null || true  # the same moment for all, about
  # shellcheck disable=SC2086
  kill -KILL $trainers "$worker_pid" "$coordinator_pid" 2>/dev/null || true
  wait "$coordinator_pid" "$worker_pid" 2>/dev/null || true
  pids=()
}
newest_verified() { get "/v1/jobs/$1/checkpoints" | jq '[.items[] | select(.verified) | .step] | max // -1'; }

accepted=() deleted=() kept_step=-1 trained='' number=0
for ((life = 0; life <= times; life++)); do
  claim "life $life: what was answered before the power went is true"
  begin
  for job in "${accepted[@]:-}"; do
    [ -z "$job" ] || same "$(job_field "$job" .id)" "$job" "a job that was accepted"
  done
  for job in "${deleted[@]:-}"; do
    [ -n "$job" ] || continue
    request GET "/v1/jobs/$job"
    same "$status" 404 "a job whose deletion was answered"
  done
  if [ -n "$trained" ]; then
    has_kept_step() { [ "$(newest_verified "$trained")" -ge "$kept_step" ]; }
    wait_for 30 "the checkpoint of step $kept_step, which was shown as verified" has_kept_step
    wait_for 60 "steps behind it" step_at_least "$trained" $((kept_step + 1))
    wait_for 60 "the job that trained" job_is "$trained" running
  fi
  [ "$life" -lt "$times" ] || break
  [ -n "$trained" ] || {
    submit "$(mlp_job trained 1000000 1 ',"exact":true,"debug":{"step_delay_ms":5},"checkpoint":{"every_steps":10,"keep_last":2}')"
    trained=$job
    accepted+=("$job")
  }
  # Until a moment that is drawn: jobs come and go. What is answered last is what counts.
  ends=$((SECONDS + 1 + RANDOM % 3))
  while [ $SECONDS -lt $ends ] || [ "$kept_step" -lt 0 ]; do
    [ $SECONDS -lt $((ends + 60)) ] || fail "no checkpoint was shown as verified"
    number=$((number + 1))
    submit "$(mlp_job "short-$number" 2 1)"
    accepted+=("$job")
    if [ $((RANDOM % 2)) -eq 0 ]; then
      await "$job" succeeded 60
      request DELETE "/v1/jobs/$job?purge=true"
      same "$status" 204 "delete"
      deleted+=("$job")
      unset 'accepted[-1]'
    fi
    step=$(newest_verified "$trained")
    [ "$step" -le "$kept_step" ] || kept_step=$step
  done
  cut_power
  python3 "$(dirname "$0")/power_loss.py" cut "$disk" "$disk.shadow" "$run/disk-$((life + 1))"
  disk=$run/disk-$((life + 1))
done
echo "${#accepted[@]} accepted, ${#deleted[@]} deleted, checkpoint of step $kept_step"
