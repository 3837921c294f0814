#!/usr/bin/env bash
# The coordinator is killed with -9 while it looks for ranks that are gone with their worker: at one of its looks, before it closes
# their directory, and behind that, when nobody has heard of it yet. In its next life they are the job's again, or have no part in
# it any more, as the directory says; never are there two sets.
#   GRADSYNC_RUNS=all   each of the looks, of ranks that leave signs and of ranks that leave none; else two cases that GRADSYNC_SEED draws
# Row C2 of docs/faults.md.
. "$(dirname "$0")/network.sh"
grep -qF life.look "$bin/gradsync-coordinator" || skip "a build without failpoints"

cases=(close closed)
for look in 1 2 3 4 5 6; do cases+=("awake $look" "asleep $look"); done
seed=${GRADSYNC_SEED:-$(git -C "$(dirname "$0")" rev-parse --short=8 HEAD 2>/dev/null || date +%s)}
draw() { echo $((16#$(echo "$seed $1" | sha256sum | head -c 8) % $2)); }
if [ "${GRADSYNC_RUNS:-}" != all ]; then cases=("${cases[$(draw close 2)]}" "${cases[$((2 + $(draw look 12)))]}"); fi
echo "${cases[*]}, GRADSYNC_SEED=$seed"

# Its ranks have lines of their own; what is cut before it is closed is silent, and nobody else here is heard.
has_left() {
  grep -q "worker disconnected.*worker=far$" "$run/logs/centre.log" &&
    { has_died || get "/v1/jobs/$job/workers" | jq -e 'all(.items[]; .state == "disconnected")'; }
}
has_died() { ! kill -0 "$coordinator_pid" 2>/dev/null; }
is_there() { get /v1/workers | jq -e '.items[] | select(.id == "far") | .connected' >/dev/null; }
trains() { job_is "$job" running && step_at_least "$job" $((step_then + 10)); }
are_over() { for pid in $ranks; do ! kill -0 "$pid" 2>/dev/null || return 1; done; }

# kill_at NAME[=COUNT] SIGNAL: a job of its own, whose host is gone; with STOP nobody there leaves a sign.
kill_at() {
  local failpoint=$1 asleep=$2 first
  : >"$run/logs/centre.log"
  GRADSYNC_FAILPOINTS=$failpoint centre "$run/data"
  at=island agent far 2
  far=$worker_pid
  submit "$(mlp_job looks 100000 2 ',"exact":true,"debug":{"step_delay_ms":20},"checkpoint":{"every_steps":50}')"
  wait_for 60 "its steps" step_at_least "$job" 10
  first=$(job_field "$job" .generation)
  ranks=$(trainer_pids "$job" | xargs)
  local n=${link_of[far]}
  ip netns exec island iptables -w -A INPUT -i "r$n" -p tcp --tcp-flags RST RST -j ACCEPT
  ip netns exec island iptables -w -A INPUT -i "r$n" -p tcp -j REJECT --reject-with tcp-reset
  wait_for 60 "closed lines" has_left
  cut far both
  # shellcheck disable=SC2086  # words
  [ -z "$asleep" ] || kill -STOP "$far" $ranks
  wait_for 120 "the end of the coordinator" has_died
  centre "$run/data"
  step_then=$(job_field "$job" .progress.step)
  # shellcheck disable=SC2086  # words
  [ -z "$asleep" ] || kill -CONT "$far" $ranks
  heal
  wait_for 60 "the worker" is_there
  wait_for 120 "the job" trains
  if [ "$3" = same ]; then
    same "$(trainer_pids "$job" | xargs) $(job_field "$job" '"\(.generation) \(.restarts) \(.lost_steps)"')" "$ranks $first 0 0" "who trains"
  else
    [ "$(job_field "$job" .generation)" -gt "$first" ] || fail "ranks whose directory was closed to them train on"
    wait_for 60 "the end of the first set" are_over
    same "$(job_field "$job" .restarts)" 1 "restarts"
  fi
  request POST "/v1/jobs/$job/stop"
  await "$job" cancelled 60
  kill -TERM "$far"
  wait_for 60 "the end of the worker" worker_has_ended
  kill -9 "$coordinator_pid"
  wait "$coordinator_pid" 2>/dev/null || true
}
worker_has_ended() { ! kill -0 "$far" 2>/dev/null; }

host island
for case in "${cases[@]}"; do
  claim "killed at: $case"
  case $case in
  close) kill_at life.close=kill asleep same ;;
  closed) kill_at life.closed=kill asleep others ;;
  awake*) kill_at "life.look=kill@${case#* }" "" same ;;
  asleep*) kill_at "life.look=kill@${case#* }" asleep same ;;
  esac
done
